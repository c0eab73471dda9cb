"""The episodes of one environment in a recording: where each begins and ends, and how it went."""

import dataclasses
from typing import Any

import numpy as np

from nnx_ppo.recordings.reading import Recording


@dataclasses.dataclass(frozen=True)
class Episode:
    """One episode of one environment; its steps are those of the recording.

    Attributes:
        number: of the episode, 0 for the first of the environment.
        first: its first step.
        last: its last step.
        episode_reward: sum of its rewards, over reward keys too.
        end: ``"terminated"``, ``"truncated"``, or ``"running"`` where the recording ends before the episode.
    """

    number: int
    first: int
    last: int
    episode_reward: float
    end: str

    @property
    def n_steps(self) -> int:
        """Number of steps."""
        return self.last - self.first + 1


def episodes(recording: Recording, env: int = 0) -> list[Episode]:
    """Return the episodes of one environment, in order; steps that do not count belong to none.

    Args:
        recording: from ``record`` or ``open_recording``.
        env: number of the environment.

    Raises:
        ValueError: there is no such environment.

    Example:
        >>> import tempfile
        >>> from flax import nnx
        >>> from nnx_ppo.envs import make_env
        >>> from nnx_ppo.networks import make_mlp_actor_critic
        >>> from nnx_ppo.recordings import record
        >>> network = make_mlp_actor_critic(1, 1, [4], [4], nnx.Rngs(0))
        >>> folder = tempfile.TemporaryDirectory()
        >>> recording = record(make_env("probe:counting"), network, folder.name + "/r", n_envs=1, n_episodes=2, key=0)
        >>> [(episode.first, episode.last, episode.end) for episode in episodes(recording)]
        [(0, 3, 'terminated'), (4, 7, 'terminated')]
    """
    require_env(recording, env)
    valid, number = recording.valid()[:, env], recording.array("episode", envs=env)
    done, truncated = recording.array("done", envs=env), recording.array("truncated", envs=env)
    reward = _reward(recording, env)
    found = []
    for episode in np.unique(number[valid]):
        steps = np.flatnonzero(valid & (number == episode))
        last = steps[-1]
        end = "running" if not done[last] else "truncated" if truncated[last] else "terminated"
        found.append(Episode(int(episode), int(steps[0]), int(last), float(reward[steps].sum()), end))
    return found


def require_env(recording: Recording, env: int) -> None:
    """Refuse an environment that there is not.

    Raises:
        ValueError: naming those that there are.
    """
    if not 0 <= env < recording.n_envs:
        raise ValueError(
            f"env must be one of the {recording.n_envs} environments, 0 to {recording.n_envs - 1}, got {env}."
        )


def seconds_per_step(recording: Recording, time_step: int | float | None) -> float:
    """Return the length of a step, as given, or as the environment knew it.

    Args:
        recording: the recording.
        time_step: seconds, or ``None``.

    Raises:
        ValueError: neither says it, or it is not positive.
    """
    found: Any = recording.attributes.get("time_step") if time_step is None else time_step
    if found is None:
        raise ValueError(
            f"{recording.path} does not say how long a step is, as its environment has no attribute dt: "
            "give time_step=, in seconds."
        )
    if not found > 0:
        raise ValueError(f"time_step must be above 0 seconds, got {found}.")
    return float(found)


def _reward(recording: Recording, env: int) -> np.ndarray:
    """Reward of each step, summed over reward keys, ``[T]``."""
    names = [path for path in recording.array_paths() if path == "reward" or path.startswith("reward/")]
    return np.sum([recording.array(path, envs=env).astype(np.float64) for path in names], axis=0)
