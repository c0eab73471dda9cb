"""Reward scaling: every reward is multiplied by a constant, one for all of them or one for each key."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from nnx_ppo.envs.wrapper import Wrapper, cover, uncover

REWARD_SCALING_KEY = "reward_scaling"
"""Entry of ``state.info`` that keeps the reward before scaling."""


class RewardScalingWrapper(Wrapper):
    """Multiplies rewards by ``reward_scale``.

    Args:
        env: the environment inside.
        reward_scale: one factor for all rewards, or a (nested) dict of factors with the keys of the reward.

    Raises:
        ValueError: at the first reset, if the keys of ``reward_scale`` are not those of the reward.
    """

    def __init__(self, env: Any, reward_scale: float | int | Mapping[str, Any]):
        super().__init__(env)
        self.reward_scale = reward_scale

    def __repr__(self) -> str:
        return f"RewardScalingWrapper({self.env!r}, reward_scale={self.reward_scale!r})"

    def reset(self, key: jax.Array, /) -> Any:
        """Return the initial state of training."""
        return self._scaled(super().reset(key))

    def reset_episode(self, key: jax.Array, /) -> Any:
        """Return a state at the first step of an episode."""
        return self._scaled(super().reset_episode(key))

    def step(self, state: Any, action: Any, /) -> Any:
        """Return the state after ``action``, its reward scaled."""
        return self._scaled(super().step(uncover(state, REWARD_SCALING_KEY), action))

    def _scaled(self, inner: Any) -> Any:
        scale = self.reward_scale
        if isinstance(scale, Mapping):
            wanted, given = jax.tree.structure(inner.reward), jax.tree.structure(scale)
            if wanted != given:
                raise ValueError(f"reward_scale: expected one factor per reward, {wanted}, got {given}")
            reward = jax.tree.map(_times, inner.reward, scale)
        else:
            reward = jax.tree.map(lambda leaf: _times(leaf, scale), inner.reward)
        return cover(inner, REWARD_SCALING_KEY, {}, info={}, reward=reward)


def _times(reward: Any, scale: Any) -> jax.Array:
    reward = jnp.asarray(reward)
    dtype = reward.dtype if jnp.issubdtype(reward.dtype, jnp.floating) else jnp.result_type(float)
    return reward.astype(dtype) * jnp.asarray(scale, dtype)
