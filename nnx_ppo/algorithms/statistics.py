"""Stage 5, statistics: normalisers learn what the rollout showed them, once per iteration."""

from nnx_ppo.algorithms.types import Transition
from nnx_ppo.networks.types import StatefulModule


def fold_statistics(networks: StatefulModule, rollout: Transition) -> None:
    """Update running statistics in place, after the gradient phase, so that replay saw those of the rollout."""
    networks.update_statistics(rollout.rollout_extras)
