"""Stage 3, advantages: generalised advantage estimation with exact episode boundaries, per reward key."""

from typing import Any

import jax
import jax.numpy as jnp

from nnx_ppo.algorithms.types import Transition


def gae(
    rewards: jax.Array,
    values_excl_last: jax.Array,
    last_value: jax.Array,
    done: jax.Array,
    truncation: jax.Array,
    lambda_: float | jax.Array,
    gamma: float | jax.Array,
    final_values: jax.Array | None = None,
) -> jax.Array:
    """Generalised advantage estimation (Schulman et al. 2016, https://arxiv.org/abs/1506.02438, eq. 16).

    ``δ_t = r_t + γ V'_t - V_t`` and ``A_t = δ_t + γ λ A_{t+1}``, where the sum stops at the end of an episode. ``V'_t``
    is the next state's value: 0 where the step terminated, the true final observation's where it was truncated.

    Args:
        rewards: ``[T, B]``.
        values_excl_last: ``V_t`` of the visited states, ``[T, B]``.
        last_value: value of the state after the last step, ``[B]``.
        done: ``[T, B]``: the episode ended at this step, for whatever reason.
        truncation: ``[T, B]``: it ended by a time limit. A step that terminated is not truncated.
        lambda_: λ in [0, 1].
        gamma: γ in [0, 1].
        final_values: ``[T, B]``, value of the true final observation where a step was truncated (read only there).
            Without it the next value of a truncated step is unknown, and its advantage is 0.

    Returns:
        Advantages ``[T, B]``. The value target is ``advantage + value``.
    """
    if not rewards.shape == values_excl_last.shape == done.shape == truncation.shape:
        raise ValueError(
            "rewards, values_excl_last, done and truncation must all be [T, B]; got "
            f"{rewards.shape}, {values_excl_last.shape}, {done.shape} and {truncation.shape}."
        )
    if last_value.shape != rewards.shape[1:]:
        raise ValueError(f"last_value must be [B] = {rewards.shape[1:]}, got {last_value.shape}.")
    truncated = truncation.astype(bool)
    ended = done.astype(bool) | truncated
    next_values = jnp.concatenate([values_excl_last[1:], last_value[None]])
    next_values = jnp.where(ended, 0.0, next_values)
    if final_values is not None:
        next_values = jnp.where(truncated, final_values, next_values)
    deltas = rewards + gamma * next_values - values_excl_last
    if final_values is None:
        deltas = jnp.where(truncated, 0.0, deltas)

    def backward(next_advantage: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta, end = step
        # A select, not a product: 0 * NaN of another episode would be NaN.
        advantage = delta + jnp.where(end, 0.0, gamma * lambda_ * next_advantage)
        return advantage, advantage

    return jax.lax.scan(backward, jnp.zeros_like(deltas[0]), (deltas, ended), reverse=True)[1]


def advantages_and_targets(
    rollout: Transition, values: Any, last_value: Any, lambda_: float, gamma: float
) -> tuple[Any, Any]:
    """Advantages and value targets ``[T, N]`` for every reward key.

    Args:
        rollout: leaves ``[T, N, ...]``.
        values: ``[T, N]`` per critic head, same tree as the rewards.
        last_value: ``[N]`` per critic head.
        lambda_: λ of GAE.
        gamma: discount factor.
    """

    def one(reward: jax.Array, value: jax.Array, last: jax.Array, final: jax.Array) -> jax.Array:
        return gae(reward, value, last, rollout.done, rollout.truncated, lambda_, gamma, final)

    advantages = jax.tree.map(one, rollout.rewards, values, last_value, rollout.final_values)
    return advantages, jax.tree.map(jnp.add, advantages, values)


def normalize(advantages: jax.Array) -> jax.Array:
    """Shift and scale to mean 0 and population standard deviation 1; equal advantages (or one alone) become 0."""
    centred = advantages - advantages.mean()
    std = jnp.sqrt(jnp.mean(centred**2))
    # Equal values leave a std of rounding errors; dividing by it would make noise of size 1 out of nothing.
    negligible = 8 * jnp.finfo(advantages.dtype).eps * jnp.max(jnp.abs(advantages))
    informative = std > negligible
    return jnp.where(informative, centred / jnp.where(informative, std, 1.0), 0.0)
