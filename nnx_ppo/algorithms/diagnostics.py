"""The level ``DIAGNOSTICS``: what was not finite, which units sleep, how far the policy moved."""

import jax
import jax.numpy as jnp
from flax import nnx

from nnx_ppo._pytree import total
from nnx_ppo.algorithms.losses import Batch, approx_kl
from nnx_ppo.algorithms.nonfinite import Census
from nnx_ppo.algorithms.update import GradientPhase
from nnx_ppo.networks.naming import flatten_activations, named_modules
from nnx_ppo.networks.recording import extract_activations, is_recordable, with_recording
from nnx_ppo.networks.recurrent import GRU, LSTM
from nnx_ppo.networks.types import StatefulModule

DORMANT = 0.025
"""Largest score of a dormant unit (Sokar et al. 2023, https://arxiv.org/abs/2302.12902)."""


def count_diagnostics(census: Census, phase: GradientPhase) -> dict[str, jax.Array]:
    """How much was not finite, by metric name.

    Args:
        census: of the iteration.
        phase: what the gradient phase reports.
    """
    return {
        "diagnostics/nonfinite/observations": census.total("observation"),
        "diagnostics/nonfinite/rewards": census.total("reward"),
        "diagnostics/nonfinite/losses": census.total("loss"),
        "diagnostics/nonfinite/gradients": phase.nonfinite_gradients.sum(),
        "diagnostics/nonfinite/parameters": census.total("parameter"),
        "diagnostics/skipped_updates": phase.skipped.sum(),
    }


def replay_diagnostics(networks: StatefulModule, batch: Batch) -> dict[str, jax.Array]:
    """How far the policy moved and which units sleep, by metric name; replays the rollout once.

    Args:
        networks: after the update, before statistics are folded in.
        batch: the rollout, leaves ``[T, N, ...]``.
    """
    recordable = networks if is_recordable(networks) else with_recording(networks)
    out = recordable.unroll(batch.start_state, batch.obs, batch.done, batch.rollout_extras)
    log_ratios = jax.tree.map(jnp.subtract, out.output.loglikelihoods, batch.log_likelihoods)
    moved = jax.tree.map(lambda log_ratio: approx_kl(log_ratio).mean(), log_ratios)
    metrics = {"diagnostics/kl": total(moved)}
    dormant = {
        path: dormant_units(activation)
        for path, activation in flatten_activations(extract_activations(out.metrics)).items()
        if _has_units(named_modules(networks).get(path))
    }
    if dormant:
        metrics["diagnostics/dormant_units"] = jnp.concatenate(list(dormant.values())).astype(float).mean()
    return metrics | {f"diagnostics/dormant_units/{path}": x.astype(float).mean() for path, x in dormant.items()}


def dormant_units(activation: jax.Array) -> jax.Array:
    """Which units of a layer do next to nothing: their mean magnitude is at most :data:`DORMANT` of the layer's.

    Args:
        activation: ``[T, N, units]``.

    Returns:
        bool ``[units]``; units that were not finite are not dormant.
    """
    magnitude = jnp.abs(activation).reshape(-1, activation.shape[-1]).mean(axis=0)
    return magnitude <= DORMANT * magnitude.mean(where=jnp.isfinite(magnitude))


def _has_units(module: nnx.Module | None) -> bool:
    """Whether a layer's outputs are units: they went through an activation function."""
    return isinstance(module, LSTM | GRU) or getattr(module, "activation", None) is not None
