"""Time limit: after a number of steps an episode is truncated, which is not the same as terminated."""

from typing import Any

import jax
import jax.numpy as jnp

from nnx_ppo.envs.tracing import traced
from nnx_ppo.envs.types import truncation_flag
from nnx_ppo.envs.wrapper import Wrapper, cover, uncover

TIME_LIMIT_KEY = "time_limit"
"""Entry of ``state.info`` that holds the age of the episode."""


class EpisodeWrapper(Wrapper):
    """Ends episodes after ``max_len`` steps, with ``done`` and ``info["truncated"]``.

    A step that both terminates and reaches the limit is terminated. What the environment inside truncates by itself
    stays truncated. The age of the episode is ``state.info["time_limit"]["age"]``, in steps. States have the class
    of the environment inside; their ``done`` and ``info["truncated"]`` are bool.

    Args:
        env: the environment to limit.
        max_len: longest episode, in steps.

    Raises:
        ValueError: ``max_len`` is not an integer of at least 1.
    """

    def __init__(self, env: Any, max_len: int):
        if isinstance(max_len, bool) or not hasattr(max_len, "__index__") or max_len < 1:
            raise ValueError(f"max_len: expected an integer number of steps of at least 1, got {max_len!r}")
        super().__init__(env)
        self.max_len = int(max_len)

    def __repr__(self) -> str:
        return f"EpisodeWrapper({self.env!r}, max_len={self.max_len})"

    def reset(self, key: jax.Array, /) -> Any:
        """Return a state whose age is drawn from ``0`` to ``max_len - 1``.

        Environments that start together so end at different times, and a batch holds all phases of an episode. Made
        for the first episode of a training run, which this cuts short; see :meth:`reset_episode`.
        """
        key, age_key = jax.random.split(key)
        age = jax.random.randint(age_key, (), 0, self.max_len, dtype=jnp.int32)
        return _limited(traced(self.env).reset(key), age, self.max_len)

    def reset_episode(self, key: jax.Array, /) -> Any:
        """Return a state of age 0, at the start of a full episode.

        The library uses it for every reset but the first of a training run, for evaluation and for recording, so that
        only the very first episode of each environment is cut short.
        """
        return _limited(traced(self.env).reset_episode(key), jnp.zeros((), jnp.int32), self.max_len)

    def step(self, state: Any, action: Any, /) -> Any:
        """Return the state after ``action``, one step older."""
        inner = uncover(state, TIME_LIMIT_KEY, ("truncated",))
        age = state.info[TIME_LIMIT_KEY]["age"] + jnp.ones((), jnp.int32)
        return _limited(traced(self.env).step(inner, action), age, self.max_len)


def _limited(inner: Any, age: jax.Array, max_len: int) -> Any:
    flag = truncation_flag(inner.info)
    cut_inside = jnp.zeros((), bool) if flag is None else jnp.asarray(flag).astype(bool)
    terminated = jnp.asarray(inner.done).astype(bool) & ~cut_inside
    truncated = (cut_inside | (age >= jnp.int32(max_len))) & ~terminated
    return cover(inner, TIME_LIMIT_KEY, {"age": age}, info={"truncated": truncated}, done=terminated | truncated)
