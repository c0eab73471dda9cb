"""Reading a recording on disk, piece by piece: what is asked for comes into memory, and nothing else."""

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from nnx_ppo.networks.naming import near_names
from nnx_ppo.recordings import layout
from nnx_ppo.recordings.extra import analysis_packages

ALL = slice(None)


class Recording:
    """A recording on disk. Made by :func:`open_recording` and by :func:`~nnx_ppo.recordings.record`.

    Shows the steps that were complete when it was opened.

    Attributes:
        path: the folder.
        attributes: configuration, network, key, versions and the like, as they stand in the store.
        layers: canonical paths, in the order of the network.
        n_steps: complete steps, ``T``.
        n_envs: environments, ``N``.
        finished: whether the recording went to its end.
    """

    def __init__(self, path: pathlib.Path, root: Any):
        self.path = path
        self.attributes: dict[str, Any] = dict(root.attrs)
        self.layers: tuple[str, ...] = tuple(self.attributes["layers"])
        self.finished: bool = self.attributes["finished"]
        self._arrays = dict(_walk(root))
        self._chunk_steps = int(self._arrays["valid"].chunks[0])
        self.n_steps, self.n_envs = (int(n) for n in self._arrays["valid"].shape)

    def __repr__(self) -> str:
        state = "finished" if self.finished else "not finished"
        return f"Recording({str(self.path)!r}, {self.n_steps} steps, {self.n_envs} environments, {state})"

    def layer(self, path: str, steps: slice = ALL, envs: slice | int = ALL) -> np.ndarray:
        """Read the activations of a layer, ``[T, N, ...]``.

        Args:
            path: canonical path.
            steps: which steps.
            envs: which environments; an integer drops the axis.

        Raises:
            KeyError: there is no such layer; names near ones.
            IndexError: the steps or environments begin beyond the last one.
        """
        if path not in self.layers:
            near = near_names(path, self.layers) or list(self.layers)
            raise KeyError(f"{self.path} has no layer {path!r}; near names: {near}.")
        return self.array(layout.array_path(layout.LAYERS, path), steps, envs)

    def array(self, path: str, steps: slice = ALL, envs: slice | int = ALL) -> np.ndarray:
        """Read any array by its path in the store, e.g. ``"reward"`` or ``"extras/metrics/speed/values"``.

        Args:
            path: see the page on recordings at scale.
            steps: which steps.
            envs: which environments; an integer drops the axis.

        Raises:
            KeyError: there is no such array; names near ones.
            IndexError: the steps or environments begin beyond the last one.
            ValueError: what is on disk is damaged.
        """
        if path not in self._arrays:
            near = near_names(path, self._arrays) or list(self._arrays)
            raise KeyError(f"{self.path} has no array {path!r}; near names: {near}.")
        self._require_within("steps", steps, self.n_steps)
        self._require_within("environments", envs, self.n_envs)
        try:
            return self._arrays[path][steps, envs]
        except (ValueError, RuntimeError) as error:
            raise ValueError(
                f"{self.path} is damaged in {path!r} ({str(error).splitlines()[0]}); to see where: nnx-ppo check "
                f"{self.path}"
            ) from error

    def valid(self, steps: slice = ALL) -> np.ndarray:
        """Which steps count, bool ``[T, N]``: those before the end of an episode that is not followed by another."""
        return self.array("valid", steps)

    def spans(self) -> list[slice]:
        """Steps of each chunk on disk, in order: reading these reads each chunk once."""
        size = self._chunk_steps
        return [slice(start, min(start + size, self.n_steps)) for start in range(0, self.n_steps, size)]

    @property
    def n_bytes(self) -> int:
        """Size of all arrays in memory."""
        return sum(array.nbytes for array in self._arrays.values())

    def n_bytes_on_disk(self) -> int:
        """Size of the store."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())

    def array_paths(self) -> list[str]:
        """Paths of all arrays in the store."""
        return list(self._arrays)

    def arrays(self) -> Iterator[Any]:
        """All arrays, as Zarr opens them."""
        yield from self._arrays.values()

    def _require_within(self, what: str, chosen: slice | int, n: int) -> None:
        """Refuse what NumPy would answer with an empty array."""
        first = chosen.start if isinstance(chosen, slice) else chosen
        if first is not None and (first >= max(n, 1) or (isinstance(chosen, int) and first < -n)):
            raise IndexError(f"{self.path} has {n} {what}, numbered from 0; asked was for those from {first} on.")

    def to_tree(self) -> Any:
        """Open the store with ``xarray.open_datatree``; nothing is read before it is used."""
        analysis_packages("xarray")
        import xarray

        return xarray.open_datatree(self.path, engine="zarr")


def open_recording(path: str | os.PathLike[str]) -> Recording:
    """Open a recording, whole or interrupted.

    Args:
        path: folder that ``record`` made.

    Raises:
        FileNotFoundError: there is nothing.
        ValueError: it is no recording, or one of a newer format.
    """
    analysis_packages("zarr")
    import zarr

    folder = pathlib.Path(path)
    if not folder.exists():
        raise FileNotFoundError(f"there is no recording {folder}.")
    try:
        root = zarr.open_group(folder, mode="r")
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} is no recording: it is no Zarr group that can be read ({error}).") from error
    if root.attrs.get("format") != layout.FORMAT:
        raise ValueError(
            f"{folder} is a Zarr group, but no recording: its attribute 'format' is not {layout.FORMAT!r}."
        )
    version: Any = root.attrs["format_version"]
    if version > layout.FORMAT_VERSION:
        raise ValueError(
            f"{folder} has format version {version}, and this nnx_ppo reads up to {layout.FORMAT_VERSION}: update it."
        )
    return Recording(folder, root)


def _walk(group: Any) -> Iterator[tuple[str, Any]]:
    import zarr

    for path, node in group.members(max_depth=None):
        if isinstance(node, zarr.Array):
            yield path, node
