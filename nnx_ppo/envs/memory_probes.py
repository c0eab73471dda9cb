"""Probe environments that no policy without memory can solve."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from nnx_ppo.envs.probe_base import DelayedProbe, TimedProbe, as_float, float_dtype, random_sign
from nnx_ppo.envs.types import EnvState


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryCue(DelayedProbe):
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
        return jax.ShapeDtypeStruct((), jnp.int32) if self.discrete else jax.ShapeDtypeStruct((1,), float_dtype())

    @property
    def _n_steps(self) -> int:
        return self.delay + 2

    def reset(self, key: jax.Array, /) -> EnvState:
        """Return the state that shows the cue."""
        cue = random_sign(key)
        return self._state(jnp.int32(0), self._n_steps, jnp.stack([cue, as_float(0.0)]), as_float(0.0), cue=cue)

    def step(self, state: EnvState, action: Any, /) -> EnvState:
        """Pay for the action if it answers ``go``."""
        cue, step = state.data["cue"], state.data["step"] + jnp.int32(1)
        positive = action > 0 if self.discrete else action[0] >= 0
        right = (positive == (cue > 0)) & (step == jnp.int32(self._n_steps))
        go = as_float(step == jnp.int32(self.delay + 1))
        return self._state(step, self._n_steps, jnp.stack([as_float(0.0), go]), as_float(right), cue=cue)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepeatPrevious(TimedProbe):
    """Shows one of ``n_symbols`` symbols at every step, and asks for the one shown ``k`` steps ago.

    The observation is one-hot, drawn afresh at every step with equal chances. The action, a symbol's number, pays 1 if
    it names the symbol of ``k`` steps before, else 0; the first ``k`` steps pay nothing.

    Optimum: ``length - k`` per episode. Exactly ``(length - k) / n_symbols`` in expectation for *every* policy without
    memory, as the symbol asked for is independent of the one shown. Fails if the carry is lost, or replayed wrongly,
    or mixed up between steps.
    """

    k: int = 2
    n_symbols: int = 2
    length: int = 16
    discrete_actions = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_symbols < 2:
            raise ValueError(f"n_symbols: expected at least 2, got {self.n_symbols}")
        if not 1 <= self.k < self.length:
            raise ValueError(
                f"k: expected a number of steps of at least 1 and below length={self.length}, got {self.k}"
            )

    @property
    def observation_size(self) -> int:
        return self.n_symbols

    @property
    def action_size(self) -> int:
        return self.n_symbols

    @property
    def action_spec(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((), jnp.int32)

    def reset(self, key: jax.Array, /) -> EnvState:
        """Return the state that shows the first symbol."""
        nothing = jnp.full(self.k, -1, jnp.int32)
        return self._show(jnp.int32(0), key, nothing, as_float(0.0))

    def step(self, state: EnvState, action: Any, /) -> EnvState:
        """Pay if the action names the symbol shown ``k`` steps before the one that it answers."""
        shown = state.data["shown"]
        right = as_float(action.astype(jnp.int32) == shown[0])
        return self._show(state.data["step"] + jnp.int32(1), state.data["key"], shown[1:], right)

    def _show(self, step: jax.Array, key: jax.Array, before: jax.Array, reward: jax.Array) -> EnvState:
        """Draw a symbol; ``before`` holds the last ``k`` ones, the oldest first."""
        key, symbol_key = jax.random.split(key)
        symbol = jax.random.randint(symbol_key, (), 0, self.n_symbols, jnp.int32)
        obs = jax.nn.one_hot(symbol, self.n_symbols, dtype=float_dtype())
        return self._state(step, obs, reward, key=key, shown=jnp.concatenate([before, symbol[None]]))
