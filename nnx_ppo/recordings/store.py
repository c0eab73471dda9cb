"""One writer for a recording on disk: a Zarr store that at any moment opens, and shows exactly what is complete.

Rows are appended a chunk at a time. What a reader sees is one file, the metadata of the root, which holds the shapes of
all arrays and is replaced as a whole after each chunk; a writer that dies in between has changed nothing that is seen.
Every chunk carries a checksum (CRC32C), and all are read back before the recording counts as finished.
"""

import concurrent.futures
import contextlib
import os
import pathlib
import shutil
import warnings
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np

from nnx_ppo.recordings import layout
from nnx_ppo.recordings.check import check_recording
from nnx_ppo.recordings.extra import analysis_packages
from nnx_ppo.recordings.freeing import return_free_memory


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
        self._aside = _beside(path, "partial")
        self._old = _beside(path, "old")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _acquire(path)
        try:
            _recover(path, self._aside, self._old)
            require_free(path, replace)
            self.folder = self._create(chunk_steps, attributes)
        except BaseException:
            self._release()
            raise
        self._pool = concurrent.futures.ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1))
        self.n_steps = 0

    def __enter__(self) -> "RecordingWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True)
        if error is not None and not isinstance(error, GeneratorExit):
            error.add_note(f"The first {self.n_steps:,} steps of the recording are complete in {self.folder}.")
        self._release()

    def append(self, rows: Mapping[str, Mapping[str, np.ndarray]], attributes: Mapping[str, Any] | None = None) -> None:
        """Write one chunk, arrays ``[steps, N, ...]``; it counts as soon as all of it is on disk.

        Args:
            rows: as in the constructor, with values.
            attributes: what to add to the attributes of the root.
        """
        tasks = [self._pool.submit(self._write, key, rows[key[0]][key[1]]) for key in self._places]
        (n_steps,) = {task.result() for task in tasks}
        _publish(self.folder, {"complete_steps": n_steps, **(attributes or {})})
        self.n_steps = n_steps
        return_free_memory()

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
        _publish(self.folder, {**(attributes or {}), "finished": True})
        if self.folder != self.path:
            os.replace(self.path, self._old)
            os.replace(self.folder, self.path)
            shutil.rmtree(self._old)
            self.folder = self.path

    def _create(self, chunk_steps: int, attributes: Mapping[str, Any]) -> pathlib.Path:
        """Make the empty store beside the path, then move it there if the path is free."""
        import zarr

        shutil.rmtree(self._aside, ignore_errors=True)
        # Half of the processors for the compressor, half for the simulator. Every thread of Zarr's keeps the memory of
        # the largest chunk that it has seen.
        with zarr.config.set({"threading.max_workers": max(1, (os.cpu_count() or 1) // 2)}):
            root = zarr.create_group(self._aside, attributes=_root_attributes(self._places, attributes))
            for place in self._places.values():
                _create_array(root, place, chunk_steps)
            _publish(self._aside, {})
        folder = self._aside
        if not self.path.exists():
            os.rename(self._aside, self.path)
            folder = self.path
        root = zarr.open_group(folder, mode="r+", use_consolidated=False)
        # A chunk of zeros is written too, so that a missing one can be told from it.
        config: Any = {"write_empty_chunks": True}
        arrays = {key: root.get(place.path) for key, place in self._places.items()}
        self._arrays = {
            key: array.with_config(config) for key, array in arrays.items() if isinstance(array, zarr.Array)
        }
        return folder

    def _write(self, key: tuple[str, str], rows: np.ndarray) -> int:
        array = self._arrays[key]
        array.append(np.asarray(rows, dtype=self._places[key].dtype), axis=0)
        return array.shape[0]

    def _release(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._lock.lock_file)
        self._lock.release()


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
    from zarr.codecs import BloscCodec, Crc32cCodec

    root.create_array(
        place.path,
        shape=(0, *place.shape),
        chunks=(chunk_steps, *(max(1, n) for n in place.shape)),
        dtype=place.dtype,
        # The fastest compressor that is any good at floats: see the measurements in the docs.
        compressors=(BloscCodec(cname="lz4", clevel=1, shuffle="bitshuffle"), Crc32cCodec()),
        dimension_names=place.dims,
        attributes={"path": place.label},
    )


def _publish(folder: pathlib.Path, attributes: Mapping[str, Any]) -> None:
    """Let readers see the arrays as they are now, and only then the attributes."""
    import zarr

    with warnings.catch_warnings():
        # Zarr warns that other implementations may not know metadata in one file; they then read it array by array.
        warnings.simplefilter("ignore")
        root = zarr.consolidate_metadata(folder)
    if attributes:
        root.attrs.update(attributes)


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
