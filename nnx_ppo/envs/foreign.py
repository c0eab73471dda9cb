"""Runs another library's environment as that library expects: default promotion rules, its own copies of all dicts."""

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import jax

from nnx_ppo.envs.tracing import traced
from nnx_ppo.envs.wrapper import Wrapper, copy_tree


@contextlib.contextmanager
def default_promotion() -> Iterator[None]:
    """Use JAX's default promotion of dtypes and ranks inside, however strict the caller is."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


class ForeignEnv(Wrapper):
    """An environment that follows the protocol, but was written for JAX's default promotion rules.

    Args:
        env: the other library's environment.
        ignore_deprecation: regular expression; deprecation warnings that begin with it, and that ``env`` raises about
            what it does itself, are ignored.
    """

    def __init__(self, env: Any, ignore_deprecation: str | None = None):
        super().__init__(env)
        self._ignore_deprecation = ignore_deprecation

    @functools.cached_property
    def observation_size(self) -> Any:
        """Length of the observation (the shape, if it has several axes), or a dict of them."""
        # Not the library's own property: that may run a whole reset, outside of any jit.
        key = jax.eval_shape(lambda: jax.random.key(0))
        return jax.tree.map(_size, jax.eval_shape(traced(self).reset, key).obs)

    def reset(self, key: jax.Array, /) -> Any:
        """Return the initial state of an episode."""
        with self._its_rules():
            return self.env.reset(key)

    def reset_episode(self, key: jax.Array, /) -> Any:
        """Return the initial state of an episode."""
        return self.reset(key)

    def step(self, state: Any, action: Any, /) -> Any:
        """Return the state after ``action``."""
        with self._its_rules():
            return self.env.step(copy_tree(state), action)

    @contextlib.contextmanager
    def _its_rules(self) -> Iterator[None]:
        with default_promotion(), warnings.catch_warnings():
            if self._ignore_deprecation:
                warnings.filterwarnings("ignore", self._ignore_deprecation, DeprecationWarning)
            yield


def _size(leaf: Any) -> Any:
    return leaf.shape[0] if len(leaf.shape) == 1 else leaf.shape
