"""Which checkpoint of a run a command is about: the newest, the best, or the one after so many steps."""

import dataclasses
import pathlib
from typing import Annotated

import tyro

from nnx_ppo.algorithms.checkpoint_files import (
    CheckpointError,
    DamagedCheckpointError,
    all_checkpoints,
    read_about,
    steps_of,
)
from nnx_ppo.cli.console import stderr
from nnx_ppo.cli.options import option
from nnx_ppo.cli.restore import Restored, restore_checkpoint


@dataclasses.dataclass(frozen=True)
class CheckpointChoice:
    """Whose policy acts; by default that of the newest checkpoint."""

    step: Annotated[int | None, option("INT", default="the newest")] = None
    """Take the checkpoint after so many environment steps."""
    best: bool = False
    """Take the checkpoint with the highest evaluation reward, of those saved at an evaluation."""

    def restore(self, run_folder: pathlib.Path) -> Restored:
        """Rebuild environment and policy of a run, and say which checkpoint was taken.

        Raises:
            RunFolderError: there is no run, or no checkpoint in it.
            CheckpointError: there is no such checkpoint, or it does not fit.
        """
        if self.best and self.step is not None:
            raise ValueError(f"--step {self.step} and --best are two checkpoints: give one or the other.")
        restored = restore_checkpoint(run_folder, self._chosen(run_folder / "checkpoints"))
        steps = steps_of(restored.checkpoint)
        score = read_about(restored.checkpoint).get("score")
        reward = "" if score is None else f", evaluation reward {score:,.2f}"
        stderr.print(f"Checkpoint: {restored.checkpoint} ({steps:,} steps{reward})", soft_wrap=True)
        return restored

    def _chosen(self, directory: pathlib.Path) -> pathlib.Path | None:
        if self.step is not None:
            return _after(directory, self.step)
        return _best(directory) if self.best else None


Choice = Annotated[CheckpointChoice, tyro.conf.arg(name="")]
"""The options of a command, without a prefix."""


def _after(directory: pathlib.Path, step: int) -> pathlib.Path | None:
    found = {steps_of(path): path for path in all_checkpoints(directory)}
    if found and step not in found:
        there = ", ".join(str(steps) for steps in sorted(steps for steps in found if steps is not None))
        raise CheckpointError(f"{directory} has no checkpoint after {step} steps: --step can be one of {there}.")
    return found.get(step)


def _best(directory: pathlib.Path) -> pathlib.Path | None:
    scores: dict[pathlib.Path, float] = {}
    for path in all_checkpoints(directory):
        try:
            score = read_about(path).get("score")
        except DamagedCheckpointError as error:
            stderr.print(f"Passed over: {error}", style="yellow", soft_wrap=True)
            continue
        if score is not None:
            scores[path] = score
    if all_checkpoints(directory) and not scores:
        raise CheckpointError(
            f"no checkpoint in {directory} was saved at an evaluation, so that none is known to be the best: take the "
            "newest, or choose one with --step."
        )
    # Of equal ones the newest, which comes first.
    return max(scores, key=scores.__getitem__, default=None)
