"""What probe environments share: how an episode ends, and the making of a state."""

import dataclasses
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from nnx_ppo.envs.types import EnvState

Ends = Literal["terminate", "truncate"]
"""How the last step of an episode ends it: by a terminal state or by a time limit."""


class Probe:
    """What most probes share: observation and action are vectors of length 1."""

    @property
    def observation_size(self) -> Any:
        return 1

    @property
    def action_size(self) -> Any:
        return 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimedProbe(Probe):
    """Ends after ``length`` steps, the way that ``ends`` says."""

    length: int = 1
    ends: Ends = "terminate"

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length: expected a number of steps of at least 1, got {self.length}")
        if self.ends not in get_args(Ends):
            raise ValueError(f"ends: expected one of {get_args(Ends)}, got {self.ends!r}")

    def _state(self, step: jax.Array, obs: Any, reward: Any, **data: Any) -> EnvState:
        over = step >= jnp.int32(self.length)
        truncated = over if self.ends == "truncate" else jnp.zeros_like(over)
        return probe_state(step, obs, reward, over, truncated, **data)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DelayedProbe(Probe):
    """Terminates with a step that waits for ``delay`` others."""

    delay: int = 1

    def __post_init__(self) -> None:
        if self.delay < 0:
            raise ValueError(f"delay: expected a number of steps of at least 0, got {self.delay}")

    def _state(self, step: jax.Array, n_steps: int, obs: Any, reward: Any, **data: Any) -> EnvState:
        over = step >= jnp.int32(n_steps)
        return probe_state(step, obs, reward, over, jnp.zeros_like(over), **data)


def probe_state(step: jax.Array, obs: Any, reward: Any, done: jax.Array, truncated: jax.Array, **data: Any) -> EnvState:
    """Return a state with the metric ``"one"``, which is 1, and ``step`` and ``data`` kept for the next step."""
    return EnvState(
        obs=obs,
        reward=reward,
        done=done,
        info={"truncated": truncated},
        metrics={"one": as_float(1.0)},
        data={"step": step, **data},
    )


def float_dtype() -> Any:
    """Return the dtype of a float: float64 under ``jax_enable_x64``, else float32."""
    return jnp.result_type(float)


def as_float(value: Any) -> jax.Array:
    """Return an array of :func:`float_dtype`."""
    return jnp.asarray(value).astype(float_dtype())


def random_sign(key: jax.Array) -> jax.Array:
    """Draw -1.0 or 1.0, equally likely."""
    return jax.random.rademacher(key, (), float_dtype())
