"""Whether a recording on disk is what was written: every chunk is there, and its checksum is right."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from nnx_ppo.recordings.chunk_files import has_its_checksum
from nnx_ppo.recordings.reading import open_recording


@dataclasses.dataclass(frozen=True)
class RecordingCheck:
    """What :func:`check_recording` found.

    Attributes:
        n_steps: steps that are complete.
        n_envs: environments.
        finished: whether the recording went to its end; if not, it was interrupted, and the complete steps are right.
        n_arrays: arrays in the store.
        n_chunks: chunks that were read.
        damage: one line per chunk that is missing or does not have its checksum; empty if all is well.
    """

    n_steps: int
    n_envs: int
    finished: bool
    n_arrays: int
    n_chunks: int
    damage: tuple[str, ...]


def check_recording(
    path: str | os.PathLike[str], *, on_progress: Callable[[int, int], None] | None = None
) -> RecordingCheck:
    """Read every chunk of a recording, and compare it with its checksum. One chunk is in memory at a time.

    Args:
        path: the recording.
        on_progress: called with the number of chunks read, and that of all.

    Raises:
        FileNotFoundError: there is nothing.
        ValueError: it is no recording.
    """
    recording = open_recording(path)
    arrays = list(recording.arrays())
    n_chunks = sum(_n_chunks(array) for array in arrays)
    damage: list[str] = []
    read = 0
    for array in arrays:
        if array.shape[0] != recording.n_steps:
            damage.append(f"{array.path} has {array.shape[0]} steps, and not {recording.n_steps}")
        for line in _damaged_chunks(recording.path, array):
            read += 1
            if line:
                damage.append(line)
            if on_progress is not None:
                on_progress(read, n_chunks)
    return RecordingCheck(recording.n_steps, recording.n_envs, recording.finished, len(arrays), read, tuple(damage))


def _n_chunks(array: Any) -> int:
    """Chunks along time."""
    return -(-array.shape[0] // array.chunks[0])


def _damaged_chunks(folder: pathlib.Path, array: Any) -> Iterator[str]:
    """One string per chunk along time, empty where it is well."""
    size = array.chunks[0]
    for i in range(_n_chunks(array)):
        name = f"{array.path}, chunk {i} (steps {i * size} to {min((i + 1) * size, array.shape[0]) - 1})"
        key = array.metadata.encode_chunk_key((i, *(0 for _ in array.shape[1:])))
        file = folder / array.path / key
        if not array.size:
            yield ""
        elif not file.is_file():  # Zarr reads a missing chunk as zeros
            yield f"{name} is missing"
        else:
            yield "" if has_its_checksum(file) else f"{name} does not have its checksum"
