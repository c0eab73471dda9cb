"""Tiny environments with known answers, to find out whether (and where) learning is broken."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from nnx_ppo.envs.memory_probes import MemoryCue as MemoryCue
from nnx_ppo.envs.memory_probes import RepeatPrevious as RepeatPrevious
from nnx_ppo.envs.probe_base import DelayedProbe, TimedProbe, as_float, float_dtype, random_sign
from nnx_ppo.envs.types import EnvState


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConstantReward(TimedProbe):
    """Pays ``reward`` at every step, whatever is done; the observation is 0.

    Optimum: ``length * reward`` per episode, for every policy. Value at an observation with ``length=1``: ``reward``.
    Fails if the critic cannot learn a constant.
    """

    reward: float = 1.0

    def reset(self, key: jax.Array, /) -> EnvState:
        """Return the first state."""
        del key
        return self._state(jnp.int32(0), as_float([0.0]), as_float(0.0))

    def step(self, state: EnvState, action: Any, /) -> EnvState:
        """Pay the constant."""
        del action
        return self._state(state.data["step"] + jnp.int32(1), as_float([0.0]), as_float(self.reward))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservationReward(TimedProbe):
    """Shows -1 or 1, drawn afresh at every step, and pays just that for the step.

    Optimum: 0 in expectation, for every policy. The value of an observation is the observation itself, whatever the
    discount. Fails if the critic does not see the observation that belongs to the reward.
    """

    def reset(self, key: jax.Array, /) -> EnvState:
        """Return the first state."""
        return self._draw(jnp.int32(0), key, as_float(0.0))

    def step(self, state: EnvState, action: Any, /) -> EnvState:
        """Pay what the observation before this step showed."""
        del action
        return self._draw(state.data["step"] + jnp.int32(1), state.data["key"], state.obs[0])

    def _draw(self, step: jax.Array, key: jax.Array, reward: jax.Array) -> EnvState:
        key, sign_key = jax.random.split(key)
        return self._state(step, random_sign(sign_key)[None], reward, key=key)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DelayedReward(DelayedProbe):
    """Pays 1 with the last step, ``delay`` steps after the first; the observation is one-hot over the steps.

    Optimum: 1 per episode, for every policy. The value before step ``t`` is ``gamma ** (delay - t)``. Fails if
    discounting or bootstrapping is wrong.
    """

    @property
    def observation_size(self) -> int:
        return self.delay + 1

    def reset(self, key: jax.Array, /) -> EnvState:
        """Return the first state."""
        del key
        return self._at(jnp.int32(0))

    def step(self, state: EnvState, action: Any, /) -> EnvState:
        """Pay if this was the last step."""
        del action
        return self._at(state.data["step"] + jnp.int32(1))

    def _at(self, step: jax.Array) -> EnvState:
        n_steps = self.delay + 1
        obs = jax.nn.one_hot(step, n_steps, dtype=float_dtype())
        return self._state(step, n_steps, obs, as_float(step == jnp.int32(n_steps)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionReward(TimedProbe):
    """Pays ``-(action - target) ** 2``; the observation is 0.

    Optimum: 0, by the action ``target``. Fails if the policy gradient is wrong.
    """

    target: float = 0.5

    def reset(self, key: jax.Array, /) -> EnvState:
        """Return the first state."""
        del key
        return self._state(jnp.int32(0), as_float([0.0]), as_float(0.0))

    def step(self, state: EnvState, action: Any, /) -> EnvState:
        """Pay for the action, ``[1]``."""
        reward = -jnp.square(as_float(action[0]) - as_float(self.target))
        return self._state(state.data["step"] + jnp.int32(1), as_float([0.0]), reward)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiscreteActionReward(TimedProbe):
    """Pays 1 for the action ``target`` of ``n_actions``, else 0; the observation is 0.

    Optimum: 1 per step; ``1 / n_actions`` by chance. Fails if the policy gradient is wrong.
    """

    target: int = 1
    n_actions: int = 3
    discrete_actions = True

    @property
    def action_size(self) -> int:
        return self.n_actions

    @property
    def action_spec(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((), jnp.int32)

    def reset(self, key: jax.Array, /) -> EnvState:
        """Return the first state."""
        del key
        return self._state(jnp.int32(0), as_float([0.0]), as_float(0.0))

    def step(self, state: EnvState, action: Any, /) -> EnvState:
        """Pay for the action, an integer scalar."""
        reward = as_float(action == jnp.asarray(self.target, action.dtype))
        return self._state(state.data["step"] + jnp.int32(1), as_float([0.0]), reward)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountingEnv(TimedProbe):
    """Observes the number of steps since the reset, pays 1 per step and ends after ``length`` of them.

    Optimum: return and lifespan are exactly ``length``, for every policy; the metric ``"one"`` averages to exactly 1.
    """

    length: int = 4

    def reset(self, key: jax.Array, /) -> EnvState:
        """Return the state at count 0."""
        del key
        return self._state(jnp.int32(0), as_float([0.0]), as_float(0.0))

    def step(self, state: EnvState, action: Any, /) -> EnvState:
        """Count."""
        del action
        step = state.data["step"] + jnp.int32(1)
        return self._state(step, as_float(step)[None], as_float(1.0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreeEnv(TimedProbe):
    """Dicts everywhere: two observations (one nested), two action heads, one reward for each head.

    Observations ``{"eyes": [3], "body": {"speed": [2]}}``, uniform in [-1, 1] and of no importance. The head
    ``"move"`` ``[2]`` earns ``-sum((move - 0.5) ** 2)`` under the reward key ``"move"``, the head ``"look"`` ``[1]``
    earns ``-(look + 0.25) ** 2`` under ``"look"``; neither depends on the other head.

    Optimum: 0 for both, by the actions 0.5, 0.5 and -0.25.
    """

    length: int = 4

    @property
    def observation_size(self) -> dict[str, Any]:
        return {"eyes": 3, "body": {"speed": 2}}

    @property
    def action_size(self) -> dict[str, int]:
        return {"move": 2, "look": 1}

    def reset(self, key: jax.Array, /) -> EnvState:
        """Return the first state."""
        return self._draw(jnp.int32(0), key, {"move": as_float(0.0), "look": as_float(0.0)})

    def step(self, state: EnvState, action: Any, /) -> EnvState:
        """Pay each head for its own action."""
        reward = {
            "move": -jnp.sum(jnp.square(as_float(action["move"]) - as_float(0.5))),
            "look": -jnp.square(as_float(action["look"][0]) + as_float(0.25)),
        }
        return self._draw(state.data["step"] + jnp.int32(1), state.data["key"], reward)

    def _draw(self, step: jax.Array, key: jax.Array, reward: dict[str, jax.Array]) -> EnvState:
        key, draw_key = jax.random.split(key)
        draw = jax.random.uniform(draw_key, (5,), float_dtype(), -1.0, 1.0)
        return self._state(step, {"eyes": draw[:3], "body": {"speed": draw[3:]}}, reward, key=key)


PROBES: dict[str, type[Any]] = {
    "constant_reward": ConstantReward,
    "observation_reward": ObservationReward,
    "delayed_reward": DelayedReward,
    "action_reward": ActionReward,
    "discrete_action_reward": DiscreteActionReward,
    "memory_cue": MemoryCue,
    "repeat_previous": RepeatPrevious,
    "counting": CountingEnv,
    "tree": TreeEnv,
}
"""Probe environments by the name that ``make_env("probe:name")`` takes."""
