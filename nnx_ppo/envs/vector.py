"""A batch of environments: the one place that maps over it and casts what environments return to fixed dtypes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from nnx_ppo._pytree import Identity, PyTreeNode
from nnx_ppo.envs.check import EnvSpec, action_struct, check_env
from nnx_ppo.envs.tracing import traced
from nnx_ppo.envs.types import truncation_flag


class Reading(PyTreeNode):
    """What the library reads of a batch of states, in the dtypes it works with.

    Attributes:
        obs: tree of ``[N, ...]``.
        reward: default float dtype ``[N]``, or a (nested) dict of them.
        done: bool ``[N]``: the episode is over, by termination or truncation.
        truncated: bool ``[N]``: it ended by a time limit. Never true where ``done`` is not.
        metrics: dict of ``[N, ...]``.
    """

    obs: Any
    reward: Any
    done: Any
    truncated: Any
    metrics: Any


class VectorEnv:
    """``N`` copies of one environment. Made by :func:`vectorize`.

    All methods are pure and may be called inside ``jax.jit``, ``scan`` and ``while_loop``: states have the
    environment's own class, leaves ``[N, ...]``, and dtypes that never change (see ``spec().state``).

    Attributes:
        env: the single environment.
    """

    def __init__(self, env: Any):
        self.env = env
        self._calls = traced(env)
        self._specs: dict[Any, EnvSpec] = {}

    def __repr__(self) -> str:
        return f"VectorEnv({self.env!r})"

    def spec(self, action: Any = None) -> EnvSpec:
        """Return shapes and dtypes of a single environment; checked once per structure of the action.

        Args:
            action: see :func:`~nnx_ppo.envs.check.check_env`.

        Raises:
            EnvSpecError: the environment does not fit the protocol.
        """
        action = action_struct(self.env, action)
        leaves, treedef = jax.tree.flatten(action)
        key = (_precision(), treedef, tuple((leaf.shape, leaf.dtype) for leaf in leaves))
        if key not in self._specs:
            self._specs[key] = check_env(self.env, action)
        return self._specs[key]

    def reset(self, keys: jax.Array) -> Any:
        """Return the initial states of training for ``keys`` ``[N]``."""
        return self.cast(jax.vmap(self._calls.reset)(keys))

    def reset_episode(self, keys: jax.Array) -> Any:
        """Return states at the first step of an episode for ``keys`` ``[N]``: every reset but the first of training.

        Differs from :meth:`reset` only for environments that define ``reset_episode`` (see ``EpisodeWrapper``).
        """
        return self.cast(jax.vmap(self._calls.reset_episode)(keys))

    def step(self, states: Any, actions: Any) -> Any:
        """Return the states after ``actions`` (tree of ``[N, ...]``).

        Raises:
            EnvSpecError: the environment cannot take these actions.
        """
        spec = self.spec(jax.tree.map(_single, actions))
        states = _cast(spec, states)
        return _cast(spec, jax.vmap(self._calls.step)(states, actions))

    def cast(self, states: Any) -> Any:
        """Bring batched states to the dtypes that :meth:`reset` and :meth:`step` return.

        For states that the environment made outside of this class, before they become the carry of a loop.
        """
        return _cast(self._any_spec(), states)

    def read(self, states: Any) -> Reading:
        """Return observation, reward, ``done``, ``truncated`` and metrics of batched states."""
        done = jnp.asarray(states.done).astype(bool)
        flag = truncation_flag(states.info)
        truncated = jnp.zeros_like(done) if flag is None else jnp.asarray(flag).astype(bool)
        reward = jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(jnp.result_type(float)), states.reward)
        return Reading(
            obs=states.obs, reward=reward, done=done | truncated, truncated=truncated, metrics=states.metrics
        )

    def _any_spec(self) -> EnvSpec:
        # States do not depend on how actions are written, so that a check with the policy's own actions will do.
        known = (spec for (precision, *_), spec in self._specs.items() if precision == _precision())
        return next(known, None) or self.spec()


def vectorize(env: Any) -> VectorEnv:
    """Return the :class:`VectorEnv` of a single environment, the same one each time for the same object."""
    return env if isinstance(env, VectorEnv) else _vectorize(Identity(env))


@functools.lru_cache(maxsize=64)
def _vectorize(handle: Identity) -> VectorEnv:
    return VectorEnv(handle.value)


def _precision() -> Any:
    return jnp.result_type(float)


def _single(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(leaf)[1:], jnp.asarray(leaf).dtype)


def _cast(spec: EnvSpec, states: Any) -> Any:
    return jax.tree.map(_cast_leaf, spec.state, states)


def _cast_leaf(struct: jax.ShapeDtypeStruct, leaf: Any) -> Any:
    if jnp.issubdtype(struct.dtype, jax.dtypes.prng_key):
        return leaf
    return jax.lax.convert_element_type(leaf, struct.dtype)
