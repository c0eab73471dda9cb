"""A checkpoint on disk: arrays by Orbax, everything else in ``checkpoint.json``, complete or not there at all.

``step_0000500000/arrays/`` holds the arrays under numbers; ``checkpoint.json`` names and describes them, and lists
every file with its size and CRC-32. A checkpoint is written under another name, brought to the disk, and then renamed,
so that one with a right name is complete; what happens to its files later shows when it is read.
"""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import zlib
from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np

from nnx_ppo.algorithms.disk import crc_of, files_in, require_space, sync, to_disk
from nnx_ppo.algorithms.leaves import LeafSpec, Leaves

FORMAT = 1
"""Version of the layout of files and of ``checkpoint.json``."""
ABOUT = "checkpoint.json"
ARRAYS = "arrays"
_NAME = re.compile(r"step_(\d{10,})")


class CheckpointError(ValueError):
    """A checkpoint cannot be written, or is not there, or does not fit."""


class DamagedCheckpointError(CheckpointError):
    """Files of a checkpoint are missing, cut off, changed, or not a checkpoint's."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """One array as ``checkpoint.json`` lists it.

    Attributes:
        spec: what it is.
        number: its name in ``arrays/``; ``None`` for one without entries, of which there is nothing to store.
    """

    spec: LeafSpec
    number: str | None


def checkpoint_path(directory: pathlib.Path, steps: int) -> pathlib.Path:
    """Folder of the checkpoint after ``steps`` environment steps."""
    return directory / f"step_{steps:010d}"


def steps_of(path: pathlib.Path) -> int | None:
    """Environment steps that a folder's name stands for, ``None`` if it is no checkpoint's."""
    match = _NAME.fullmatch(path.name)
    return None if match is None else int(match[1])


def write_checkpoint(directory: pathlib.Path, steps: int, leaves: Leaves, about: dict[str, Any]) -> pathlib.Path:
    """Write a checkpoint, in place of one for the same steps.

    Args:
        directory: made where there is none.
        steps: environment steps.
        leaves: arrays by name.
        about: what else ``checkpoint.json`` is to hold, values that JSON can hold.

    Raises:
        OSError: the disk is full, or the folder cannot be written; nothing is left of the attempt.
    """
    path = checkpoint_path(directory, steps)
    aside = path.with_name(f".{path.name}.partial")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        require_space(aside, sum(array.nbytes for array, _ in leaves.values()))
        numbers = {name: str(i) for i, name in enumerate(leaves) if leaves[name][0].size}
        _save_arrays(aside / ARRAYS, {number: leaves[name][0] for name, number in numbers.items()})
        arrays = {name: {**dataclasses.asdict(spec), "number": numbers.get(name)} for name, (_, spec) in leaves.items()}
        files = {str(p.relative_to(aside)): [p.stat().st_size, crc_of(p)] for p in files_in(aside)}
        content = {"format": FORMAT, "steps": steps, **about, "arrays": arrays, "files": files}
        text = json.dumps({"crc32": _crc_of_json(content), **content}, indent=1, allow_nan=False)
        (aside / ABOUT).write_text(text)
        to_disk(aside)
        _put_in_place(aside, path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return path


def read_about(path: pathlib.Path) -> dict[str, Any]:
    """Read and check ``checkpoint.json``, and that all files are there in full size.

    Raises:
        CheckpointError: there is no checkpoint, or one of a newer version of the format.
        DamagedCheckpointError: a file is missing, cut off or changed.
    """
    if not path.is_dir():
        raise CheckpointError(f"there is no checkpoint {path}." + _beside(path))
    try:
        content = json.loads((path / ABOUT).read_text())
        crc = content.pop("crc32")
        version = content["format"]
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise DamagedCheckpointError(f"{path} holds no readable {ABOUT} ({error!r}): it is no checkpoint.") from error
    if isinstance(version, int) and version > FORMAT:
        raise CheckpointError(f"{path} has format {version}, this nnx-ppo reads up to {FORMAT}: update nnx-ppo.")
    if crc != _crc_of_json(content):
        raise DamagedCheckpointError(f"{path / ABOUT} was changed after it was written (its CRC-32 is wrong).")
    for name, (size, _) in content["files"].items():
        file = path / name
        if not file.is_file() or file.stat().st_size != size:
            found = f"has {file.stat().st_size} bytes instead of {size}" if file.is_file() else "is missing"
            raise DamagedCheckpointError(f"{path} is damaged: {name} {found}.")
    return content


def stored_arrays(about: dict[str, Any]) -> dict[str, Stored]:
    """What a checkpoint holds, by name, from what :func:`read_about` returned."""
    stored = {}
    for name, entry in about["arrays"].items():
        spec: dict[str, Any] = {**entry, "shape": tuple(entry["shape"])}
        number = spec.pop("number")
        stored[name] = Stored(LeafSpec(**spec), number)
    return stored


def read_arrays(path: pathlib.Path, about: dict[str, Any], names: Iterable[str]) -> dict[str, np.ndarray]:
    """Read some arrays of a checkpoint into host memory; no others are loaded.

    Raises:
        DamagedCheckpointError: a file has been changed.
    """
    for name, (_, crc) in about["files"].items():
        if crc_of(path / name) != crc:
            raise DamagedCheckpointError(f"{path} is damaged: {name} was changed after it was written.")
    stored = stored_arrays(about)
    numbers = {name: stored[name].number for name in names}
    loaded = _restore_arrays(path / ARRAYS, [number for number in numbers.values() if number is not None])
    return {
        name: np.zeros(stored[name].spec.shape, jnp.dtype(stored[name].spec.dtype))
        if number is None
        else loaded[number]
        for name, number in numbers.items()
    }


def complete_checkpoints(directory: str | os.PathLike[str]) -> list[pathlib.Path]:
    """Complete checkpoints in a folder, newest first; anything else in it is passed over."""
    found = []
    for path in all_checkpoints(directory):
        try:
            read_about(path)
        except CheckpointError:
            continue
        found.append(path)
    return found


def all_checkpoints(directory: str | os.PathLike[str]) -> list[pathlib.Path]:
    """Folders with the name of a checkpoint, newest first, whatever they hold."""
    folder = pathlib.Path(directory)
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if steps_of(p) is not None), key=lambda p: steps_of(p) or 0)[::-1]


def remove_checkpoint(path: pathlib.Path) -> None:
    """Remove a checkpoint; one that is half removed does not count as one."""
    trash = path.with_name(f".{path.name}.removed")
    shutil.rmtree(trash, ignore_errors=True)
    path.replace(trash)
    shutil.rmtree(trash)


def remove_leftovers(directory: pathlib.Path) -> None:
    """Remove what a process that was killed while it wrote or removed a checkpoint has left."""
    for pattern in (".step_*.partial", ".step_*.removed"):
        for path in directory.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def _beside(path: pathlib.Path) -> str:
    there = [p.name for p in all_checkpoints(path.parent)][:5]
    return f" There are {', '.join(there)}." if there else ""


def _put_in_place(aside: pathlib.Path, path: pathlib.Path) -> None:
    if path.exists():
        remove_checkpoint(path)
    aside.replace(path)
    sync(path.parent)


def _crc_of_json(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _save_arrays(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
    import orbax.checkpoint as ocp

    if not arrays:
        return
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path.absolute(), arrays)


def _restore_arrays(path: pathlib.Path, names: list[str]) -> dict[str, np.ndarray]:
    import orbax.checkpoint as ocp

    if not names:
        return {}
    arguments = ocp.args.PyTreeRestore(
        item=dict.fromkeys(names, 0),
        restore_args={name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names},
        partial_restore=True,
    )
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        restored = checkpointer.restore(path.absolute(), args=arguments)
    return {name: np.asarray(restored[name]) for name in names}
