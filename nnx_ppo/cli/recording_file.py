"""Recordings in one ``.npz`` file, and which recording a path given on the command line means."""

import pathlib
import zipfile
import zlib
from typing import Any

import numpy as np

from nnx_ppo.cli.output_files import write_output
from nnx_ppo.recordings.layout import SUFFIX

DONES = "dones"
RESERVED = (DONES, "file", "allow_pickle")
NPZ = ".npz"


def save_recording(path: pathlib.Path, activations: dict[str, Any], dones: Any) -> None:
    """Write a recording as ``.npz``: one array ``[T, N, ...]`` per canonical layer path, and ``dones`` ``[T, N]``.

    Args:
        path: file to write; a missing folder is made.
        activations: flat canonical path to array.
        dones: whether an environment's episode had ended before the step.

    Raises:
        ValueError: a layer has one of the names that the file format keeps for itself.
    """
    if taken := sorted(set(RESERVED) & set(activations)):
        raise ValueError(f"an .npz file cannot hold layers named {taken}: rename them, or leave them out by --exclude.")
    arrays: dict[str, Any] = {name: np.asarray(x) for name, x in activations.items()}
    arrays[DONES] = np.asarray(dones)

    def write(aside: pathlib.Path) -> None:
        with aside.open("wb") as file:
            np.savez_compressed(file, **arrays)

    write_output(path, write)


def load_recording(path: pathlib.Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Read what :func:`save_recording` wrote.

    Returns:
        Activations by canonical path, and ``dones``.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: the file is no recording.
    """
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        dones = arrays.pop(DONES)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no recording {path}.") from None
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is no recording that nnx-ppo record made, or it is damaged ({error}).") from error
    return arrays, dones


def damaged_arrays(path: pathlib.Path) -> list[str]:
    """Names of the arrays in an ``.npz`` file that do not have their checksum.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: the file is no ``.npz`` at all, or is cut off.
    """
    damaged = []
    try:
        with zipfile.ZipFile(path) as file:
            for name in file.namelist():
                try:
                    file.read(name)
                except (zipfile.BadZipFile, zlib.error):
                    damaged.append(name.removesuffix(".npy"))
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no recording {path}.") from None
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is no recording that nnx-ppo record made, or it is damaged ({error}).") from error
    return damaged


def require_recording(path: pathlib.Path) -> None:
    """Refuse a run where a recording is expected, and name those in it.

    Raises:
        ValueError: the path is a run folder.
    """
    if not (path / "config.json").is_file():
        return
    found = sorted(p for p in (path / "recordings").glob("*") if p.suffix in (SUFFIX, NPZ))
    names = f"name one of its recordings: {', '.join(map(str, found))}" if found else "it has no recording yet"
    raise ValueError(f"{path} is a run, and no recording: {names}.")
