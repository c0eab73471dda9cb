"""Where everything stands in a recording on disk: groups, arrays, dimensions, attributes.

The root group holds what has one array per step, ``[time, env]`` or ``[time, env, ..._unit]``: ``observation``,
``action``, ``log_likelihood``, ``value``, ``reward``, ``done``, ``truncated``, ``valid``, ``episode``, ``step``. Where
one of these is a tree (a dict of observations, say), it is a group instead, with a group per leaf. Every layer is a
group of its own, ``layers/<canonical path>``, with one array ``activation`` ``[time, env, unit]``, and so is every
extra, ``extras/<name>`` with one array ``values``. A group for each is what lets layers of different sizes share the
name of their dimension.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

FORMAT = "nnx_ppo recording"
FORMAT_VERSION = 1
SUFFIX = ".zarr"

LAYERS = "layers"
EXTRAS = "extras"
COORDINATES = ("episode", "step", "valid")

_ARRAY_NAMES = {LAYERS: "activation", EXTRAS: "values"}


@dataclasses.dataclass(frozen=True)
class ArrayPlace:
    """Where one array stands.

    Attributes:
        path: path of the array in the store.
        dims: names of its dimensions, ``time`` first.
        shape: shape of one row, ``[env, ...]``.
        dtype: NumPy dtype on disk.
        label: canonical path of the layer, name of the extra, or path in the tree; ``""`` for a lone array.
    """

    path: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    label: str


def place(kind: str, label: str, row: Any) -> ArrayPlace:
    """Return where the array ``label`` of ``kind`` (``"layers"``, ``"observation"``, ...) stands.

    Args:
        kind: group of the rows.
        label: path within it.
        row: shape ``[N, ...]`` and dtype of one row.
    """
    first = "unit" if label or kind in _ARRAY_NAMES else f"{kind}_unit"
    dims = ("time", "env", *feature_names(len(row.shape) - 1, first))
    return ArrayPlace(array_path(kind, label), dims, tuple(row.shape), disk_dtype(row.dtype), label)


def feature_names(n: int, first: str = "unit") -> list[str]:
    """Return the names of ``n`` feature dimensions."""
    return [f"{first}_{i}" if i else first for i in range(n)]


def array_path(kind: str, label: str) -> str:
    """Return the path in the store of the array ``label`` of ``kind``."""
    name = _ARRAY_NAMES.get(kind, kind)
    if not label and kind not in _ARRAY_NAMES:
        return name
    return "/".join(part for part in (kind, group_path(label), name) if part)


def group_path(label: str) -> str:
    """Return the path of the group for a canonical path; :func:`~nnx_ppo.networks.naming.parse_path` reads both alike.

    Zarr keeps ``.``, ``..`` and names that begin with two underscores to itself. The first character of such a key is
    percent-encoded, the way that canonical paths encode a slash.
    """
    return "/".join(_escape(part) for part in label.split("/"))


def require_prefix_free(labels: Iterable[str], what: str) -> None:
    """Refuse labels of which one lies below another.

    Raises:
        ValueError: naming both.
    """
    taken = set(labels)
    for label in taken:
        parts = label.split("/")
        for n in range(1, len(parts)):
            if (above := "/".join(parts[:n])) in taken:
                raise ValueError(f"{what}: {above!r} is an array with nothing below it, but there is {label!r}.")


def disk_dtype(dtype: Any) -> np.dtype:
    """Return the dtype on disk: bfloat16, which Zarr does not have, is written as float32, everything else as it is.

    The lower half of such a float32 is zero, so that the compressor removes it.
    """
    return np.dtype(np.float32) if str(dtype) == "bfloat16" else np.dtype(dtype)


def places(rows: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str], ArrayPlace]:
    """Return the place of every array of nested rows ``{kind: {label: [N, ...]}}``.

    Raises:
        ValueError: an extra lies below another one.
    """
    for kind, arrays in rows.items():
        require_prefix_free(arrays, kind)
    return {(kind, label): place(kind, label, row) for kind, arrays in rows.items() for label, row in arrays.items()}


def _escape(part: str) -> str:
    reserved = part in (".", "..") or part.startswith("__") or part == "zarr.json"
    return f"%{ord(part[0]):02X}{part[1:]}" if reserved else part
