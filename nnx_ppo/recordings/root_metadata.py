"""The one file that readers of a recording see: the metadata of all arrays, replaced as a whole after each chunk."""

import json
import os
import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

METADATA = "zarr.json"
"""Name of a metadata file; the root has one, and every array and group its own."""


class RootMetadata:
    """Metadata of a store with all its arrays, kept in memory, so that a commit writes one small file.

    The arrays have files of their own, which Zarr reads where it is told not to look at the root. Those say that there
    is nothing yet, until :meth:`commit_arrays`.

    Args:
        folder: a store, with all its arrays.
    """

    def __init__(self, folder: pathlib.Path):
        import zarr

        with warnings.catch_warnings():
            # Zarr warns that other implementations may not know metadata in one file; they read it array by array.
            warnings.simplefilter("ignore")
            zarr.consolidate_metadata(folder)
        self._folder = folder
        self._root = json.loads((folder / METADATA).read_text())
        nodes = self._root["consolidated_metadata"]["metadata"]
        self._arrays = {path: node for path, node in nodes.items() if node["node_type"] == "array"}

    def commit(self, n_steps: int, attributes: Mapping[str, Any]) -> None:
        """Let readers see the first ``n_steps`` steps of all arrays, and the attributes, at one moment."""
        self._set_steps(n_steps)
        self._root["attributes"].update(attributes)
        _replace(self._folder, self._root)

    def commit_arrays(self, n_steps: int) -> None:
        """Write into the arrays' own files that they have ``n_steps`` steps."""
        self._set_steps(n_steps)
        for path, node in self._arrays.items():
            _replace(self._folder / path, node)

    def moved(self, folder: pathlib.Path) -> None:
        """Take note that the store is somewhere else now."""
        self._folder = folder

    def _set_steps(self, n_steps: int) -> None:
        for node in self._arrays.values():
            node["shape"][0] = n_steps


def _replace(folder: pathlib.Path, contents: Any) -> None:
    aside = folder / f".{METADATA}.partial"
    aside.write_text(json.dumps(contents))
    os.replace(aside, folder / METADATA)
