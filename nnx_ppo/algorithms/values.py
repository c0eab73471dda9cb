"""Stage 2, values: the critic's estimate of every visited state, in one pass over the whole rollout."""

from typing import Any

import jax

from nnx_ppo.algorithms.types import Transition
from nnx_ppo.networks.types import Carry, StatefulModule


def visited_values(
    networks: StatefulModule, start_state: Carry, rollout: Transition, next_state: Carry, next_obs: Any
) -> tuple[Any, Any]:
    """Value of each visited state, and of the state after the last step, at the rollout's parameters.

    The rollout itself does not compute values (its unused outputs are removed by the compiler), so that the critic
    runs as one large batch here instead of a small one per step. The values of true final states come with the rollout
    (``rollout.final_values``): only there is the carry they had.

    Args:
        networks: the network, as it was in the rollout.
        start_state: its carry before the first step, ``[N, ...]``.
        rollout: leaves ``[T, N, ...]``.
        next_state: carry after the last step, ``[N, ...]``. It is not advanced.
        next_obs: observation after the last step (a new episode's first where one ended), ``[N, ...]``.

    Returns:
        ``(values [T, N], last_value [N])``, per critic head.
    """
    out = networks.unroll(start_state, rollout.obs, rollout.done, rollout.rollout_extras)
    last = networks(next_state, next_obs)
    return jax.lax.stop_gradient((out.output.value_estimates, last.output.value_estimates))
