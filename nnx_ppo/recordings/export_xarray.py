"""Recordings as xarray: one array with names for its axes, time in seconds, and which episode each step belongs to."""

from typing import Any

import numpy as np

from nnx_ppo.recordings import layout
from nnx_ppo.recordings.extra import analysis_packages
from nnx_ppo.recordings.reading import ALL, Recording


def to_xarray(recording: Recording, path: str, *, steps: slice = ALL, time_step: int | float | None = None) -> Any:
    """Return a layer, or any other array of a recording, as an ``xarray.DataArray`` in memory.

    Coordinates: ``time`` in seconds where the length of a step is known, else in steps; ``env``; ``unit``; and over
    time and environments ``episode``, ``step`` (of the episode) and ``valid``. For the whole store, unread, see
    :meth:`Recording.to_tree`.

    Args:
        recording: from ``record`` or ``open_recording``.
        path: canonical path of a layer, or path of another array in the store, such as ``"reward"``.
        steps: which steps.
        time_step: seconds of a step; by default as the environment knew it.

    Raises:
        ImportError: xarray is missing.
        KeyError: there is no such layer or array; names near ones.
    """
    analysis_packages("xarray")
    import xarray

    stored = layout.array_path(layout.LAYERS, path) if path in recording.layers else path
    x = recording.array(stored, steps)
    numbers = np.arange(recording.n_steps)[steps]
    seconds = time_step or recording.attributes.get("time_step")
    dims = ["time", "env", *layout.feature_names(x.ndim - 2)]
    over_steps = {name: (("time", "env"), recording.array(name, steps)) for name in layout.COORDINATES}
    coords: dict[str, Any] = {
        "time": ("time", numbers * (seconds or 1), {"units": "s" if seconds else "environment steps"}),
        "env": np.arange(recording.n_envs),
        **{dim: np.arange(size) for dim, size in zip(dims[2:], x.shape[2:], strict=True)},
        **{name: value for name, value in over_steps.items() if name != stored},
    }
    return xarray.DataArray(x, coords, dims, name=path, attrs={"recording": str(recording.path)})
