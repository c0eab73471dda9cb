"""Gymnax environments with their true ends: terminated or truncated, and the final observation kept."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nnx_ppo.envs.errors import UnknownEnvError, did_you_mean, import_extra
from nnx_ppo.envs.foreign import default_promotion
from nnx_ppo.envs.types import EnvState


class GymnaxEnv:
    """One Gymnax environment, without its automatic reset.

    Observations are floats (one-hot where the environment gives the number of a cell). Continuous actions are a flat
    float vector ``[action_size]``, discrete ones an int32 scalar. ``info["truncated"]`` is true where the time limit
    ends an episode that did not terminate in that step.

    Args:
        name_or_env: registered name such as ``"Pendulum-v1"``, or an environment object.
        params: Gymnax parameters; default, the environment's own.
        hide: tuple of indices of observation entries to leave out (a velocity, for a task that needs memory).
        rescale_actions: map policy actions from [-1, 1] to the bounds of the action space, where they are finite.
        **param_overrides: single parameters, e.g. ``max_steps_in_episode=100``.

    Attributes:
        observation_size: int, or the shape of an observation with several axes.
        action_size: length of the action vector, or number of discrete actions.
        action_spec: ``jax.ShapeDtypeStruct`` of an action.
        discrete_actions: whether actions are discrete.

    Raises:
        MissingExtraError: gymnax is not installed.
        UnknownEnvError: no environment of this name.
        ValueError: unknown parameter, wrong value of an option, or a kind of action space that is not supported.
    """

    def __init__(
        self,
        name_or_env: Any,
        params: Any = None,
        *,
        hide: Any = (),
        rescale_actions: Any = True,
        **param_overrides: Any,
    ):
        self.env = _make(name_or_env) if isinstance(name_or_env, str) else name_or_env
        self.params = _override(self.env, params, param_overrides)
        if not isinstance(rescale_actions, bool):
            raise ValueError(f"rescale_actions: expected true or false, got {rescale_actions!r}")
        self.rescale_actions = rescale_actions
        with default_promotion():
            self._space = self.env.action_space(self.params)
        self.discrete_actions = hasattr(self._space, "n")
        self.action_size, self.action_spec = self._action_interface()
        self._visible = None
        self._visible = _visible(self.env.name, self._observation_shape(), hide)
        shape = self._observation_shape()
        self.observation_size = shape[0] if len(shape) == 1 else shape

    def __repr__(self) -> str:
        return f"GymnaxEnv({self.env.name!r})"

    def reset(self, key: jax.Array, /) -> EnvState:
        """Return the first state of an episode."""
        key, reset_key = jax.random.split(key)
        with default_promotion():
            obs, inner = self.env.reset_env(reset_key, self.params)
            no = jnp.zeros((), bool)
            return self._state(obs, inner, key, reward=0.0, terminated=no, truncated=no)

    def step(self, state: EnvState, action: Any, /) -> EnvState:
        """Return the state after ``action``; its observation is that of this episode also where it ends."""
        key, step_key = jax.random.split(state.data["key"])
        with default_promotion():
            obs, inner, reward, terminated, _ = self.env.step_env(
                step_key, state.data["state"], self._to_gymnax(action), self.params
            )
            truncated = self.env.is_truncated(inner, self.params)
            return self._state(obs, inner, key, reward, terminated, truncated)

    def _state(self, obs: Any, inner: Any, key: jax.Array, reward: Any, terminated: Any, truncated: Any) -> EnvState:
        terminated, truncated = jnp.asarray(terminated).astype(bool), jnp.asarray(truncated).astype(bool)
        return EnvState(
            obs=self._observation(obs),
            reward=_as_float(reward).reshape(()),
            done=terminated | truncated,
            info={"truncated": truncated & ~terminated},
            metrics={},
            data={"state": inner, "key": key},
        )

    def _observation(self, obs: Any) -> jax.Array:
        if jnp.ndim(obs) == 0:
            # The number of a cell (FrozenLake) says nothing by its size.
            return jax.nn.one_hot(obs, self.env.observation_space(self.params).n, dtype=jnp.result_type(float))
        obs = _as_float(obs)
        return obs if self._visible is None else obs[self._visible]

    def _observation_shape(self) -> tuple[int, ...]:
        return jax.eval_shape(self.reset, jax.eval_shape(lambda: jax.random.key(0))).obs.shape

    def _action_interface(self) -> tuple[int, jax.ShapeDtypeStruct]:
        space = self._space
        if self.discrete_actions:
            return int(space.n), jax.ShapeDtypeStruct((), jnp.int32)
        if not hasattr(space, "low"):
            raise ValueError(
                f"{self.env.name}: expected a Discrete or Box action space, got {space!r}; write an environment of "
                "your own around it (see nnx_ppo.envs.RLEnv)"
            )
        size = math.prod(space.shape)
        return size, jax.ShapeDtypeStruct((size,), jnp.result_type(float))

    def _to_gymnax(self, action: Any) -> Any:
        if self.discrete_actions:
            return action
        low, high = (
            np.broadcast_to(np.asarray(bound), self._space.shape) for bound in (self._space.low, self._space.high)
        )
        action = action.reshape(self._space.shape)
        if self.rescale_actions and np.isfinite(low).all() and np.isfinite(high).all():
            low, high = jnp.asarray(low, action.dtype), jnp.asarray(high, action.dtype)
            action = low + (action + 1) * (high - low) / 2
        return action


def gymnax_names() -> list[str]:
    """Return the registered names.

    Raises:
        MissingExtraError: gymnax is not installed.
    """
    return list(import_extra("gymnax", "gymnax").registered_envs)


def _make(name: str) -> Any:
    known = gymnax_names()
    if name not in known:
        raise UnknownEnvError(f"gymnax has no environment {name!r}. {did_you_mean(name, known)}")
    with default_promotion():
        return import_extra("gymnax", "gymnax").make(name)[0]


def _override(env: Any, params: Any, overrides: dict[str, Any]) -> Any:
    params = env.default_params if params is None else params
    known = [field.name for field in dataclasses.fields(params)]
    for name in overrides:
        if name not in known:
            raise ValueError(f"{env.name} has no parameter {name!r}. {did_you_mean(name, known)}")
    return params.replace(**overrides)


def _visible(name: str, shape: tuple[int, ...], hide: Any) -> np.ndarray | None:
    """Return the indices that stay, ``None`` for all."""
    if isinstance(hide, str) or not (hasattr(hide, "__iter__") and all(hasattr(i, "__index__") for i in hide)):
        raise ValueError(f"hide: expected a tuple of indices such as (2,), got {hide!r}")
    if not len(hide):
        return None
    if len(shape) != 1:
        raise ValueError(f"hide: expected an environment with a flat observation, but that of {name} is {shape}")
    size = shape[0]
    wrong = [index for index in hide if not -size <= index < size]
    if wrong:
        raise ValueError(f"hide: expected indices of the {size} observation entries of {name}, got {wrong}")
    visible = np.setdiff1d(np.arange(size), np.asarray(hide) % size)
    if not visible.size:
        raise ValueError(f"hide: {list(hide)} leaves nothing of the {size} observation entries of {name}")
    return visible


def _as_float(leaf: Any) -> jax.Array:
    return jnp.asarray(leaf).astype(jnp.result_type(float))
