"""Tiny environments with known answers, to find out whether (and where) learning is broken."""

import dataclasses
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from nnx_ppo.envs.types import EnvState

Ends = Literal["terminate", "truncate"]
"""How the last step of an episode ends it: by a terminal state or by a time limit."""


class _Probe:
    """What most probes share: observation and action are vectors of length 1."""

    @property
    def observation_size(self) -> Any:
        return 1

    @property
    def action_size(self) -> Any:
        return 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Timed(_Probe):
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
        return _state(step, obs, reward, over, truncated, **data)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Delayed(_Probe):
    """Terminates with a step that waits for ``delay`` others."""

    delay: int = 1

    def __post_init__(self) -> None:
        if self.delay < 0:
            raise ValueError(f"delay: expected a number of steps of at least 0, got {self.delay}")

    def _state(self, step: jax.Array, n_steps: int, obs: Any, reward: Any, **data: Any) -> EnvState:
        over = step >= jnp.int32(n_steps)
        return _state(step, obs, reward, over, jnp.zeros_like(over), **data)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConstantReward(_Timed):
    """Pays ``reward`` at every step, whatever is done; the observation is 0.

    Optimum: ``length * reward`` per episode, for every policy. Value at an observation with ``length=1``: ``reward``.
    Fails if the critic cannot learn a constant.
    """

    reward: float = 1.0

    def reset(self, key: jax.Array, /) -> EnvState:
        """Return the first state."""
        del key
        return self._state(jnp.int32(0), _float([0.0]), _float(0.0))

    def step(self, state: EnvState, action: Any, /) -> EnvState:
        """Pay the constant."""
        del action
        return self._state(state.data["step"] + jnp.int32(1), _float([0.0]), _float(self.reward))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservationReward(_Timed):
    """Shows -1 or 1, drawn afresh at every step, and pays just that for the step.

    Optimum: 0 in expectation, for every policy. The value of an observation is the observation itself, whatever the
    discount. Fails if the critic does not see the observation that belongs to the reward.
    """

    def reset(self, key: jax.Array, /) -> EnvState:
        """Return the first state."""
        return self._draw(jnp.int32(0), key, _float(0.0))

    def step(self, state: EnvState, action: Any, /) -> EnvState:
        """Pay what the observation before this step showed."""
        del action
        return self._draw(state.data["step"] + jnp.int32(1), state.data["key"], state.obs[0])

    def _draw(self, step: jax.Array, key: jax.Array, reward: jax.Array) -> EnvState:
        key, sign_key = jax.random.split(key)
        return self._state(step, _random_sign(sign_key)[None], reward, key=key)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DelayedReward(_Delayed):
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
        obs = jax.nn.one_hot(step, n_steps, dtype=_float_dtype())
        return self._state(step, n_steps, obs, _float(step == jnp.int32(n_steps)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionReward(_Timed):
    """Pays ``-(action - target) ** 2``; the observation is 0.

    Optimum: 0, by the action ``target``. Fails if the policy gradient is wrong.
    """

    target: float = 0.5

    def reset(self, key: jax.Array, /) -> EnvState:
        """Return the first state."""
        del key
        return self._state(jnp.int32(0), _float([0.0]), _float(0.0))

    def step(self, state: EnvState, action: Any, /) -> EnvState:
        """Pay for the action, ``[1]``."""
        reward = -jnp.square(_float(action[0]) - _float(self.target))
        return self._state(state.data["step"] + jnp.int32(1), _float([0.0]), reward)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiscreteActionReward(_Timed):
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
        return self._state(jnp.int32(0), _float([0.0]), _float(0.0))

    def step(self, state: EnvState, action: Any, /) -> EnvState:
        """Pay for the action, an integer scalar."""
        reward = _float(action == jnp.asarray(self.target, action.dtype))
        return self._state(state.data["step"] + jnp.int32(1), _float([0.0]), reward)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryCue(_Delayed):
    """Shows a cue at the first step only, and asks for it ``delay`` blank steps later.

    Observation ``[cue, go]``: first ``[-1, 0]`` or ``[1, 0]``, then ``delay`` times ``[0, 0]``, then ``[0, 1]``. The
    action at ``go`` pays 1 if its sign is that of the cue (0 counts as positive), else 0; then the episode terminates.
    With ``discrete=True`` actions are 0 for the cue -1 and 1 for the cue 1.

    Optimum: 1 per episode. Exactly 0.5 in expectation for *every* policy without memory, as both cues are equally
    likely and look the same at ``go``. Fails if the carry is lost, or replayed wrongly.
    """

    delay: int = 2
    discrete: bool = False

    @property
    def observation_size(self) -> int:
        return 2

    @property
    def action_size(self) -> int:
        return 2 if self.discrete else 1

    @property
    def discrete_actions(self) -> bool:
        return self.discrete

    @property
    def action_spec(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((), jnp.int32) if self.discrete else jax.ShapeDtypeStruct((1,), _float_dtype())

    @property
    def _n_steps(self) -> int:
        return self.delay + 2

    def reset(self, key: jax.Array, /) -> EnvState:
        """Return the state that shows the cue."""
        cue = _random_sign(key)
        return self._state(jnp.int32(0), self._n_steps, jnp.stack([cue, _float(0.0)]), _float(0.0), cue=cue)

    def step(self, state: EnvState, action: Any, /) -> EnvState:
        """Pay for the action if it answers ``go``."""
        cue, step = state.data["cue"], state.data["step"] + jnp.int32(1)
        positive = action > 0 if self.discrete else action[0] >= 0
        right = (positive == (cue > 0)) & (step == jnp.int32(self._n_steps))
        go = _float(step == jnp.int32(self.delay + 1))
        return self._state(step, self._n_steps, jnp.stack([_float(0.0), go]), _float(right), cue=cue)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountingEnv(_Timed):
    """Observes the number of steps since the reset, pays 1 per step and ends after ``length`` of them.

    Optimum: return and lifespan are exactly ``length``, for every policy; the metric ``"one"`` averages to exactly 1.
    """

    length: int = 4

    def reset(self, key: jax.Array, /) -> EnvState:
        """Return the state at count 0."""
        del key
        return self._state(jnp.int32(0), _float([0.0]), _float(0.0))

    def step(self, state: EnvState, action: Any, /) -> EnvState:
        """Count."""
        del action
        step = state.data["step"] + jnp.int32(1)
        return self._state(step, _float(step)[None], _float(1.0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreeEnv(_Timed):
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
        return self._draw(jnp.int32(0), key, {"move": _float(0.0), "look": _float(0.0)})

    def step(self, state: EnvState, action: Any, /) -> EnvState:
        """Pay each head for its own action."""
        reward = {
            "move": -jnp.sum(jnp.square(_float(action["move"]) - _float(0.5))),
            "look": -jnp.square(_float(action["look"][0]) + _float(0.25)),
        }
        return self._draw(state.data["step"] + jnp.int32(1), state.data["key"], reward)

    def _draw(self, step: jax.Array, key: jax.Array, reward: dict[str, jax.Array]) -> EnvState:
        key, draw_key = jax.random.split(key)
        draw = jax.random.uniform(draw_key, (5,), _float_dtype(), -1.0, 1.0)
        return self._state(step, {"eyes": draw[:3], "body": {"speed": draw[3:]}}, reward, key=key)


PROBES: dict[str, type[Any]] = {
    "constant_reward": ConstantReward,
    "observation_reward": ObservationReward,
    "delayed_reward": DelayedReward,
    "action_reward": ActionReward,
    "discrete_action_reward": DiscreteActionReward,
    "memory_cue": MemoryCue,
    "counting": CountingEnv,
    "tree": TreeEnv,
}
"""Probe environments by the name that ``make_env("probe:name")`` takes."""


def _state(step: jax.Array, obs: Any, reward: Any, done: jax.Array, truncated: jax.Array, **data: Any) -> EnvState:
    return EnvState(
        obs=obs,
        reward=reward,
        done=done,
        info={"truncated": truncated},
        metrics={"one": _float(1.0)},
        data={"step": step, **data},
    )


def _float_dtype() -> Any:
    return jnp.result_type(float)


def _float(value: Any) -> jax.Array:
    return jnp.asarray(value).astype(_float_dtype())


def _random_sign(key: jax.Array) -> jax.Array:
    return jax.random.rademacher(key, (), _float_dtype())
