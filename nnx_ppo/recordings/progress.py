"""A progress bar for what reads or writes a recording."""

import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


def progress_bar(*, show: bool = True, unit: str = "") -> Progress:
    """Return a bar on standard error that vanishes when it is done, and is not there where that is no terminal.

    Args:
        show: whether to draw at all.
        unit: what is counted.
    """
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(separator=" of "),
        TextColumn(unit),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        transient=True,
        disable=not (show and console.is_terminal),
    )


@contextlib.contextmanager
def counting(description: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Draw a bar for something that calls ``on_progress(done, total)``, and yield that function.

    Args:
        description: what is being done.
        unit: what is counted.
    """
    with progress_bar(unit=unit) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class RecordingProgress:
    """Progress of a recording, in steps or in episodes of all environments together; a context manager.

    Args:
        n_envs: environments.
        n_steps: steps of each.
        n_episodes: episodes of each; these are counted, where given.
        show: whether to draw at all.
    """

    def __init__(self, n_envs: int, n_steps: int | None, n_episodes: int | None, *, show: bool):
        self._quota = n_episodes
        self._bar = progress_bar(show=show, unit="environment steps" if n_episodes is None else "episodes")
        self._task: TaskID = self._bar.add_task("compiling", total=n_envs * (n_episodes or n_steps or 1))

    def __enter__(self) -> "RecordingProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, rows: dict[str, Any]) -> None:
        """Take in a chunk that has been written."""
        episode, done = rows["episode"][""], rows["done"][""]
        if self._quota is None:
            self._bar.update(self._task, description="recording", advance=episode.size)
        else:
            ended = np.minimum(episode[-1] + done[-1], self._quota).sum()
            self._bar.update(self._task, description="recording", completed=int(ended))

    def verifying(self) -> None:
        """Say that everything is written and is being read back."""
        self._bar.update(self._task, description="verifying")
