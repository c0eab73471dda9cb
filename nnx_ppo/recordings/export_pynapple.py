"""Recordings as pynapple: the units of a layer over the true time, and the episodes as epochs."""

from typing import Any

from nnx_ppo.recordings import layout
from nnx_ppo.recordings.episodes import episodes, require_env, seconds_per_step
from nnx_ppo.recordings.extra import analysis_packages
from nnx_ppo.recordings.reading import Recording


def to_pynapple(recording: Recording, path: str, *, env: int = 0, time_step: int | float | None = None) -> Any:
    """Return a layer, or any other array, of one environment as a ``pynapple.TsdFrame`` with a column for each unit.

    Step ``t`` of the recording is at ``t * time_step`` seconds. The time support are the episodes, from the time of the
    first step to half a step after the last one, as pynapple takes epochs that touch for one; its metadata are
    ``episode``, ``episode_reward`` and ``end_of_episode``. Steps that do not count are left out.

    Args:
        recording: from ``record`` or ``open_recording``.
        path: canonical path of a layer, or path of another array in the store, such as ``"observation"``.
        env: number of the environment.
        time_step: seconds of a step; by default as the environment knew it.

    Raises:
        ImportError: pynapple is missing.
        KeyError: there is no such layer or array; names near ones.
        ValueError: no such environment, or nobody says how long a step is.
    """
    analysis_packages("pynapple")
    import numpy as np
    import pynapple

    require_env(recording, env)
    seconds = seconds_per_step(recording, time_step)
    stored = layout.array_path(layout.LAYERS, path) if path in recording.layers else path
    x = recording.array(stored, envs=env)
    return pynapple.TsdFrame(
        t=np.arange(len(x)) * seconds,
        d=x.reshape(len(x), -1).astype(np.float64),
        time_support=episode_epochs(recording, env=env, time_step=time_step),
    )


def episode_epochs(recording: Recording, *, env: int = 0, time_step: int | float | None = None) -> Any:
    """Return the episodes of one environment as a ``pynapple.IntervalSet``; see :func:`to_pynapple`."""
    analysis_packages("pynapple")
    import pynapple

    seconds = seconds_per_step(recording, time_step)
    found = episodes(recording, env)
    return pynapple.IntervalSet(
        start=[episode.first * seconds for episode in found],
        end=[(episode.last + 0.5) * seconds for episode in found],
        metadata={
            "episode": [episode.number for episode in found],
            "episode_reward": [episode.episode_reward for episode in found],
            "end_of_episode": [episode.end for episode in found],
        },
    )
