"""Stage 5, statistics: normalisers learn what the rollout showed them, once per iteration."""

import jax
import jax.numpy as jnp
from flax import nnx

from nnx_ppo.algorithms.nonfinite import all_finite
from nnx_ppo.algorithms.types import Transition
from nnx_ppo.networks.types import StatefulModule


def fold_statistics(networks: StatefulModule, rollout: Transition, *, only_finite: bool = False) -> None:
    """Update running statistics in place, after the gradient phase, so that replay saw those of the rollout.

    Args:
        networks: the network.
        rollout: leaves ``[T, N, ...]``.
        only_finite: leave the statistics as they were where the rollout would make any of them NaN or infinite.
    """
    statistics = nnx.Not(nnx.Any(nnx.Param, nnx.RngState))
    before = jax.tree.map(jnp.asarray, nnx.state(networks, statistics))
    networks.update_statistics(rollout.rollout_extras)
    if only_finite:
        after = nnx.state(networks, statistics)
        finite = all_finite(after)
        nnx.update(networks, jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, before))
