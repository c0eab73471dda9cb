"""One writer for a recording on disk: a Zarr store that at any moment opens, and shows exactly what is complete.

Rows are appended a chunk at a time. What a reader sees is one file, the metadata of the root, which holds the shapes of
all arrays and is replaced as a whole after each chunk; a writer that dies in between has changed nothing that is seen.
Every chunk carries a checksum (CRC32C), and all are read back before the recording counts as finished. Zarr makes the
store and reads it; the bytes of chunks, of which there may be very many, are written without it.
"""

import concurrent.futures
import contextlib
import os
import pathlib
import shutil
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np

from nnx_ppo.recordings import layout
from nnx_ppo.recordings.check import check_recording
from nnx_ppo.recordings.chunk_files import CHUNK_NAMES, chunk_name, codecs, write_chunk
from nnx_ppo.recordings.extra import analysis_packages
from nnx_ppo.recordings.root_metadata import RootMetadata


class RecordingError(ValueError):
    """A path that cannot take a recording, or a recording that is damaged."""


class RecordingWriter:
    """Writes one recording; a context manager. Leaving it without :meth:`finish` keeps what is complete.

    Args:
        path: folder to make.
        rows: nested ``{kind: {label: shape and dtype [N, ...]}}``.
        chunk_steps: steps of a chunk; every :meth:`append` but the last has as many.
        attributes: what JSON can hold, for the attributes of the root.
        replace: put the recording in the place of one that exists, once it is finished.

    Raises:
        RecordingError: the path is taken, or is being written by someone else.
    """

    def __init__(
        self,
        path: pathlib.Path,
        rows: Mapping[str, Mapping[str, Any]],
        *,
        chunk_steps: int,
        attributes: Mapping[str, Any],
        replace: bool = False,
    ):
        analysis_packages()
        self.path = path
        self._places = layout.places(rows)
        self._chunk_steps = chunk_steps
        self._aside = _beside(path, "partial")
        self._old = _beside(path, "old")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _acquire(path)
        try:
            _recover(path, self._aside, self._old)
            require_free(path, replace)
            try:
                self.folder = self._create(attributes)
            except BaseException:  # of a full disk, say, which keeps even an empty store from being made
                shutil.rmtree(self._aside, ignore_errors=True)
                raise
        except BaseException:
            self._release()
            raise
        # Half of the processors for the compressor, half for the simulator.
        self._pool = concurrent.futures.ThreadPoolExecutor(max_workers=n_threads())
        self.n_steps = 0
        self._finished = False

    def __enter__(self) -> "RecordingWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True)
        if error is not None and not isinstance(error, GeneratorExit):
            error.add_note(f"The first {self.n_steps:,} steps of the recording are complete in {self.folder}.")
        if not self._finished:
            with contextlib.suppress(OSError):  # of a full disk, say: readers of the root need no more
                self._metadata.commit_arrays(self.n_steps)
        self._release()

    def append(self, rows: Mapping[str, Mapping[str, np.ndarray]], attributes: Mapping[str, Any] | None = None) -> None:
        """Write one chunk, arrays ``[steps, N, ...]``; it counts as soon as all of it is on disk.

        Args:
            rows: as in the constructor, with values.
            attributes: what to add to the attributes of the root.

        Raises:
            ValueError: the chunk before was shorter than the others.
        """
        chunk, begun = divmod(self.n_steps, self._chunk_steps)
        if begun:
            raise ValueError(
                f"after a chunk of {begun} steps, and not {self._chunk_steps}, the recording is at its end."
            )
        tasks = [self._pool.submit(self._write, key, chunk, rows[key[0]][key[1]]) for key in self._places]
        (n_rows,) = {task.result() for task in tasks}
        self._metadata.commit(self.n_steps + n_rows, {"complete_steps": self.n_steps + n_rows, **(attributes or {})})
        self.n_steps += n_rows

    def finish(self, attributes: Mapping[str, Any] | None = None) -> None:
        """Read every chunk back, mark the recording as finished, and put it in its place.

        Args:
            attributes: what to add to the attributes of the root.

        Raises:
            RecordingError: a chunk is not what was written.
        """
        report = check_recording(self.folder)
        if report.damage:
            raise RecordingError(
                f"{self.folder} is damaged right after it was written: {'; '.join(report.damage)}. Check the disk."
            )
        self._metadata.commit_arrays(self.n_steps)
        self._metadata.commit(self.n_steps, {**(attributes or {}), "finished": True})
        self._finished = True
        if self.folder != self.path:
            os.replace(self.path, self._old)
            os.replace(self.folder, self.path)
            shutil.rmtree(self._old)
            self.folder = self.path

    def _create(self, attributes: Mapping[str, Any]) -> pathlib.Path:
        """Make the empty store beside the path, then move it there if the path is free."""
        import zarr

        shutil.rmtree(self._aside, ignore_errors=True)
        root = zarr.create_group(self._aside, attributes=_root_attributes(self._places, attributes))
        for place in self._places.values():
            _create_array(root, place, self._chunk_steps)
        self._metadata = RootMetadata(self._aside)
        if self.path.exists():
            return self._aside
        os.rename(self._aside, self.path)
        self._metadata.moved(self.path)
        return self.path

    def _write(self, key: tuple[str, str], chunk: int, rows: np.ndarray) -> int:
        place = self._places[key]
        if rows.size:  # Zarr has no file for a chunk without values
            file = self.folder / place.path / chunk_name(chunk, rows.ndim)
            write_chunk(file, np.asarray(rows, dtype=place.dtype.newbyteorder("<")), self._chunk_steps)
        return len(rows)

    def _release(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._lock.lock_file)
        self._lock.release()


def n_threads() -> int:
    """Chunks of arrays that are compressed and written at a time."""
    return max(1, min(8, (os.cpu_count() or 1) // 2))


def require_free(path: pathlib.Path, replace: bool) -> None:
    """Refuse a path that is taken.

    Raises:
        RecordingError: it exists and ``replace`` is false, or it is no recording, which is never replaced.
    """
    if not path.exists():
        return
    if not replace:
        raise RecordingError(f"{path} exists: choose another path, or put the new one in its place by replace=True.")
    if not is_recording(path):
        raise RecordingError(f"{path} is no recording, and only a recording can be replaced: choose another path.")


def is_recording(path: pathlib.Path) -> bool:
    """Whether a folder holds a recording, whole or not."""
    import zarr

    try:
        return zarr.open_group(path, mode="r").attrs.get("format") == layout.FORMAT
    except (OSError, ValueError):
        return False


def _root_attributes(
    places: Mapping[tuple[str, str], layout.ArrayPlace], attributes: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "format": layout.FORMAT,
        "format_version": layout.FORMAT_VERSION,
        "complete_steps": 0,
        "finished": False,
        "layers": [label for kind, label in places if kind == layout.LAYERS],
        "coordinates": " ".join(layout.COORDINATES),
        **attributes,
    }


def _create_array(root: Any, place: layout.ArrayPlace, chunk_steps: int) -> None:
    root.create_array(
        place.path,
        shape=(0, *place.shape),
        chunks=(chunk_steps, *(max(1, n) for n in place.shape)),
        dtype=place.dtype,
        compressors=codecs(),
        chunk_key_encoding=CHUNK_NAMES,
        dimension_names=place.dims,
        attributes={"path": place.label},
    )


def _beside(path: pathlib.Path, what: str) -> pathlib.Path:
    return path.with_name(f".{path.name}.{what}")


def _acquire(path: pathlib.Path) -> Any:
    import filelock

    lock = filelock.FileLock(_beside(path, "lock"), timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise RecordingError(f"{path} is being written by another recording: wait, or choose another path.") from error
    return lock


def _recover(path: pathlib.Path, aside: pathlib.Path, old: pathlib.Path) -> None:
    """Put right what a writer that was killed while it replaced a recording left behind."""
    if not old.exists():
        return
    if not path.exists():
        os.rename(aside if aside.exists() else old, path)
    shutil.rmtree(old, ignore_errors=True)
