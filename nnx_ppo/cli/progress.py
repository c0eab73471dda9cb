"""A progress bar for training: reward of the last evaluation, steps per second, time left, and what it is busy with."""

import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from nnx_ppo.cli.console import stderr
from nnx_ppo.recordings.progress import Lines

REWARD = "eval/episode_reward/mean"
WIDTH = 75
"""Characters that all columns need."""


class TrainingProgress:
    """Context manager; feed it with :meth:`on_phase` and :meth:`log`.

    Args:
        total_steps: environment steps of the whole run.
        console: where to draw; standard error by default. What is no terminal gets a line for each evaluation, and one
            now and then.
    """

    def __init__(self, total_steps: int, console: Console = stderr):
        self._console = console
        self._progress = Progress(
            *_columns(console.width),
            console=console,
            transient=True,
            disable=not console.is_interactive,
        )
        self._task = self._progress.add_task("starting", total=total_steps, start=False, reward="-")
        self._started = False
        self._warned = False
        self._lines = contextlib.nullcontext() if console.is_interactive else Lines(self._line)

    def __enter__(self) -> "TrainingProgress":
        self._progress.start()
        self._lines.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.__exit__(kind, error, trace)
        self._progress.stop()

    def _line(self) -> str:
        (task,) = self._progress.tasks
        if not task.completed:
            return task.description
        return f"{task.description}: {task.completed:,.0f} of {task.total:,.0f} steps"

    def on_phase(self, phase: str) -> None:
        """Show what the run is busy with: ``"compiling"``, ``"training"``, ``"evaluating"``."""
        self._progress.update(self._task, description=phase)
        if phase == "compiling" and not self._console.is_interactive:
            self._console.print("Compiling.")

    def log(self, metrics: Mapping[str, Any], steps: int) -> None:
        """Take in one iteration; ``log_fn`` of a training run."""
        if REWARD in metrics:
            self._progress.update(self._task, reward=f"{float(metrics[REWARD]):,.1f}")
            self._console.print(f"{steps:>12,} steps   evaluation reward {float(metrics[REWARD]):>10,.2f}")
        if metrics.get("nonfinite", 0) > 0 and not self._warned:
            self._warned = True
            self._console.print(
                f"Warning: {metrics['nonfinite']:,.0f} numbers of the training log are not finite at {steps:,} steps. "
                "Look at the rewards and observations of the environment, and at the learning rate.",
                style="yellow",
            )
        if steps > 0 and not self._started:
            # The clock starts after the first iteration, so that compiling does not count as slow training.
            self._progress.start_task(self._task)
            self._started = True
        self._progress.update(self._task, completed=steps)


def _columns(width: int) -> list[ProgressColumn]:
    """What fits into so many characters."""
    phase, percent = TextColumn("{task.description}"), TextColumn("{task.percentage:.0f}%")
    reward = TextColumn("reward {task.fields[reward]}")
    if width < WIDTH:
        return [SpinnerColumn(), phase, percent, reward]
    left = [TimeRemainingColumn(), TextColumn("left")]
    return [SpinnerColumn(), phase, BarColumn(bar_width=12), percent, _SpeedColumn(), reward, *left]


class _SpeedColumn(TextColumn):
    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Task) -> Text:
        return Text("- steps/s" if task.speed is None else f"{task.speed:,.0f} steps/s")
