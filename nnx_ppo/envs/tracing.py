"""Jitted reset and step of one environment, so that its Python is traced once per process and not once per use."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from nnx_ppo._pytree import Identity


class TracedEnv(NamedTuple):
    """Jitted functions of a single environment.

    Attributes:
        reset: ``key -> state``, for the initial states of training.
        reset_episode: ``key -> state`` at the first step of an episode; the same object as ``reset`` where the
            environment does not tell the two apart.
        step: ``(state, action) -> state``.
    """

    reset: Callable[[jax.Array], Any]
    reset_episode: Callable[[jax.Array], Any]
    step: Callable[[Any, Any], Any]


def traced(env: Any) -> TracedEnv:
    """Return the jitted functions of ``env``, the same ones each time for the same object.

    Evaluating their shapes, mapping them over a batch and calling them inside other jitted functions all share one
    trace. As in all of JAX, an attribute of ``env`` that changes later is not seen by what is traced already.
    """
    return _traced(Identity(env))


@functools.lru_cache(maxsize=64)
def _traced(handle: Identity) -> TracedEnv:
    env = handle.value

    @jax.jit
    def reset(key: Any) -> Any:
        return env.reset(key)

    @jax.jit
    def reset_episode(key: Any) -> Any:
        return env.reset_episode(key)

    @jax.jit
    def step(state: Any, action: Any) -> Any:
        return env.step(state, action)

    starts_anew = callable(getattr(env, "reset_episode", None))
    return TracedEnv(reset, reset_episode if starts_anew else reset, step)
