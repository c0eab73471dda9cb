"""Stage 6, report: what one iteration tells the host, its metrics and where it was not finite."""

from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

from nnx_ppo._pytree import PyTreeNode
from nnx_ppo.algorithms.config import PPOConfig
from nnx_ppo.algorithms.diagnostics import count_diagnostics
from nnx_ppo.algorithms.metrics import MetricsRow, training_row
from nnx_ppo.algorithms.nonfinite import NonFiniteError, joined, nonfinite_error, rollout_census, update_census
from nnx_ppo.algorithms.types import LoggingLevel, Transition
from nnx_ppo.algorithms.update import GradientPhase


class IterationReport(PyTreeNode):
    """One iteration's metrics, and its census of values that are not finite (``None``: nobody looks)."""

    row: MetricsRow
    census: Any = None

    def to_dict(self) -> dict[str, float]:
        """The metrics as Python floats; waits for the device."""
        return self.row.to_dict()

    def error(self, steps: int) -> NonFiniteError | None:
        """The error to raise, if something was not finite; waits for the device.

        Args:
            steps: environment steps before the iteration.
        """
        return None if self.census is None else nonfinite_error(self.census, steps)


def iteration_report(
    rollout: Transition,
    values: Any,
    targets: Any,
    phase: GradientPhase,
    networks: nnx.Module,
    config: PPOConfig,
    diagnostics: Mapping[str, jax.Array],
) -> IterationReport:
    """Collect what ``config`` asks for; nothing else is computed.

    Args:
        rollout: leaves ``[T, N, ...]``.
        values: of the visited states, per critic head.
        targets: value targets, per critic head.
        phase: what the gradient phase reports.
        networks: after the update, statistics folded in.
        config: hyper-parameters, among them the level.
        diagnostics: what was found before statistics were folded in.
    """
    diagnosing, raising = LoggingLevel.DIAGNOSTICS in config.logging_level, config.on_nonfinite == "raise"
    census = None
    if diagnosing or raising:
        census = joined(rollout_census(rollout, values), update_census(phase.loss, networks, config.n_envs))
        if diagnosing:
            diagnostics = {**diagnostics, **count_diagnostics(census, phase)}
    row = training_row(rollout, values, targets, phase.parts, networks, config, diagnostics)
    return IterationReport(row, census if raising else None)
