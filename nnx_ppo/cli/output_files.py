"""Files that a command is asked to write: nothing is written over unasked, and a failure names the path."""

import contextlib
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from nnx_ppo.algorithms.disk import write_aside


def require_place(path: pathlib.Path, *, replace: bool) -> None:
    """Find out before anything is computed whether ``path`` can be written; a missing folder is made.

    Raises:
        ValueError: it exists and ``replace`` is false, or a folder is where a file should be.
        OSError: its folder cannot be made, or not be written.
    """
    if path.is_dir() and path.suffix != ".zarr":
        raise ValueError(f"{path} is a folder: name a file in it.")
    if path.exists() and not replace:
        raise ValueError(f"{path} exists: choose another place with --out, or write over it with --replace.")
    with saving(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass


def write_output(path: pathlib.Path, write: Callable[[pathlib.Path], Any]) -> None:
    """Let ``write`` make a file aside, then put it in its place; a missing folder is made.

    Raises:
        OSError: with a note that names ``path``; of what was written, nothing is left.
    """
    with saving(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_aside(path, write)


@contextlib.contextmanager
def saving(path: pathlib.Path, choose: str = "choose another place with --out") -> Iterator[None]:
    """Say of an error of the disk which file of the user's it kept from being written, and what to do."""
    try:
        yield
    except OSError as error:
        error.add_note(f"{path} cannot be written: make room there, or {choose}.")
        raise
