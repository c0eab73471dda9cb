"""The PPO loss: clipped surrogate, critic error, what the modules add."""

from typing import Any

import jax
import jax.numpy as jnp

from nnx_ppo._pytree import PyTreeNode, total
from nnx_ppo.algorithms.advantages import normalize
from nnx_ppo.algorithms.config import PPOConfig
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.networks.naming import named_modules, parse_path
from nnx_ppo.networks.sampling_layers import ActionSampler
from nnx_ppo.networks.types import Carry, StatefulModule, StatefulModuleOutput


class Batch(PyTreeNode):
    """What the gradient phase needs of a rollout; leaves ``[T, n, ...]``, ``start_state`` ``[n, ...]``.

    Attributes:
        start_state: carry before the first step.
        obs: observations.
        done: bool, where the carry was reset after the step.
        rollout_extras: snapshots for exact replay.
        log_likelihoods: of the rollout's actions at the rollout's parameters, per action head.
        advantages: per action head.
        targets: value targets, per critic head.
    """

    start_state: Carry
    obs: Any
    done: Any
    rollout_extras: Any
    log_likelihoods: Any
    advantages: Any
    targets: Any


def clipped_surrogate(ratio: jax.Array, advantage: jax.Array, clip_range: float) -> jax.Array:
    """Negative clipped objective of PPO, per sample (Schulman et al. 2017, eq. 7).

    Args:
        ratio: importance ratio π/π_old, any shape.
        advantage: same shape.
        clip_range: ε.
    """
    clipped = jnp.clip(ratio, 1.0 - clip_range, 1.0 + clip_range)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def approx_kl(log_ratio: jax.Array) -> jax.Array:
    """Estimate of KL(π_old ‖ π) per sample, never negative: (r - 1) - log r (http://joschu.net/blog/kl-approx.html)."""
    return jnp.expm1(log_ratio) - log_ratio


def actor_advantages(advantages: Any, heads: Any, combine: bool) -> Any:
    """Give every action head its advantage: the only one, the sum of all, or that of its own key.

    Args:
        advantages: array, or tree of them with the reward's keys.
        heads: tree with one leaf per action head.
        combine: sum the advantages of all reward keys for every head.
    """
    if combine or jax.tree.structure(advantages).num_leaves == 1:
        combined = total(advantages)
        return jax.tree.map(lambda _: combined, heads)
    return advantages


def ppo_loss(networks: StatefulModule, batch: Batch, config: PPOConfig) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Total loss of one minibatch, replayed from the old carry, and its parts (scalars) by metric name."""
    out = networks.unroll(batch.start_state, batch.obs, batch.done, batch.rollout_extras)
    log_likelihoods = out.output.loglikelihoods
    log_ratios = jax.tree.map(jnp.subtract, log_likelihoods, batch.log_likelihoods)
    advantages = batch.advantages
    if config.normalize_advantages:
        advantages = jax.tree.map(normalize, advantages)
    surrogate = jax.tree.map(
        lambda log_ratio, advantage: clipped_surrogate(jnp.exp(log_ratio), advantage, config.clip_range).mean(),
        log_ratios,
        advantages,
    )
    errors = jax.tree.map(
        lambda value, target: 0.5 * jnp.mean((value - target) ** 2), out.output.value_estimates, batch.targets
    )
    actor_loss, critic_loss = total(surrogate), total(errors)
    regularization = jnp.mean(out.regularization_loss)
    loss = actor_loss + config.critic_loss_weight * critic_loss + regularization
    parts: dict[str, jax.Array] = {}
    if LoggingLevel.LOSSES in config.logging_level:
        parts |= {
            "losses/actor_loss": actor_loss,
            "losses/critic_loss": critic_loss,
            "losses/entropy": policy_entropy(networks, out),
            "losses/regularization": regularization,
            "losses/total": loss,
        }
    if LoggingLevel.ACTOR_EXTRA in config.logging_level:
        outside = [jnp.abs(jnp.expm1(log_ratio)) > config.clip_range for log_ratio in jax.tree.leaves(log_ratios)]
        parts["losses/clipping_fraction"] = jnp.mean(jnp.stack(outside).astype(loss.dtype))
        parts["losses/approx_kl"] = total(jax.tree.map(lambda log_ratio: approx_kl(log_ratio).mean(), log_ratios))
    return loss, parts


def policy_entropy(networks: StatefulModule, out: StatefulModuleOutput) -> jax.Array:
    """Mean entropy of the policy in nats, summed over action heads: as its samplers report it.

    A network without an :class:`ActionSampler` that can be found (one of your own making) gives the Monte Carlo
    estimate from its actions' log-likelihoods instead.
    """
    found = []
    for path, module in named_modules(networks).items():
        if isinstance(module, ActionSampler):
            metrics = out.metrics
            for key in (*parse_path(path), "entropy"):
                metrics = metrics.get(key) if isinstance(metrics, dict) else None
            found.append(metrics)
    if found and all(entropy is not None for entropy in found):
        return total([entropy.mean() for entropy in found])
    return -total([log_likelihood.mean() for log_likelihood in jax.tree.leaves(out.output.loglikelihoods)])
