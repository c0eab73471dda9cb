"""Files as the disk has them: whether there is room, whether they arrived whole, whether they are what was written."""

import errno
import os
import pathlib
import shutil
import zlib
from collections.abc import Callable
from typing import Any

_ROOM = 2**20
"""Bytes for what is written beside the arrays."""


def require_space(folder: pathlib.Path, n_bytes: int) -> None:
    """Refuse to begin what the disk has no room for.

    Raises:
        OSError: ``ENOSPC``, with the sizes.
    """
    # Found out before, since Orbax's threads print what happens to them there.
    free = shutil.disk_usage(folder).free
    if free < n_bytes + _ROOM:
        sizes = f"{n_bytes / 2**20:,.1f} MiB are to be written, {free / 2**20:,.1f} MiB are free"
        raise OSError(errno.ENOSPC, f"No space left on device, {sizes}")


def write_aside(path: pathlib.Path, write: Callable[[pathlib.Path], Any]) -> None:
    """Let ``write`` make a file or folder under another name, then rename it to ``path``."""
    aside = path.with_name(f".{path.name}.partial{path.suffix}")
    try:
        write(aside)
        aside.replace(path)
    except BaseException:
        if aside.is_file():
            aside.unlink()
        raise


def files_in(folder: pathlib.Path) -> list[pathlib.Path]:
    """All files below a folder, sorted."""
    return sorted(p for p in folder.rglob("*") if p.is_file())


def crc_of(path: pathlib.Path) -> int:
    """CRC-32 of a file, read block by block."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


def to_disk(folder: pathlib.Path) -> None:
    """Return when a folder and all in it would survive a power failure."""
    for path in [*files_in(folder), *(p for p in folder.rglob("*") if p.is_dir()), folder]:
        sync(path)


def sync(path: pathlib.Path) -> None:
    """Bring one file, or the entries of one folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
