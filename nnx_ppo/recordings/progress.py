"""Progress of what reads or writes a recording: a bar on a terminal, a line now and then in the log of a batch job."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

SECONDS_BETWEEN_LINES = 30.0


class Lines:
    """Context manager that prints a line of progress to standard error now and then, from a thread of its own.

    Args:
        text: what to print, without how long it has been.
        seconds: between two lines; by default :data:`SECONDS_BETWEEN_LINES`.
        sleep: waits so many seconds and returns whether to stop; by default until the block is left.
        clock: seconds since any moment.
    """

    def __init__(
        self,
        text: Callable[[], str],
        *,
        seconds: int | float | None = None,
        sleep: Callable[[Any], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._text, self._clock = text, clock
        self._seconds = SECONDS_BETWEEN_LINES if seconds is None else seconds
        self._left = threading.Event()
        self._sleep = sleep or self._left.wait
        self._thread = threading.Thread(target=self.run, name="progress", daemon=True)

    def run(self) -> None:
        """Print until told to stop; what the thread does."""
        start = self._clock()
        while not self._sleep(self._seconds):
            minutes, seconds = divmod(round(self._clock() - start), 60)
            # The command does not end because nobody reads how far it is.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stderr.write(f"{self._text()}, {minutes}:{seconds:02} so far\n")
                sys.stderr.flush()

    def __enter__(self) -> "Lines":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._thread.join()


class ProgressBar(Progress):
    """A bar on standard error that vanishes when it is done; where that is no terminal, :class:`Lines`.

    Args:
        show: whether to draw or print at all.
        unit: what is counted; none for something that is not counted.
    """

    def __init__(self, *, show: bool = True, unit: str = ""):
        console = Console(stderr=True)
        counted = (
            BarColumn(bar_width=20),
            MofNCompleteColumn(separator=" of "),
            TextColumn(unit),
            TimeRemainingColumn(),
            TextColumn("left"),
        )
        super().__init__(
            *((TextColumn("{task.description}"), *counted) if unit else _uncounted()),
            console=console,
            transient=True,
            disable=not (show and console.is_interactive),
        )
        self._unit = unit
        self._lines = Lines(self._line) if show and not console.is_interactive else contextlib.nullcontext()

    def start(self) -> None:
        """Begin to draw, or to print."""
        super().start()
        self._lines.__enter__()

    def stop(self) -> None:
        """Draw or print no more."""
        self._lines.__exit__(None, None, None)
        super().stop()

    def _line(self) -> str:
        (task,) = self.tasks
        if task.total is None:
            return task.description
        return f"{task.description}: {task.completed:,.0f} of {task.total:,.0f} {self._unit}"


def _uncounted() -> tuple[Any, ...]:
    return SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()


@contextlib.contextmanager
def counting(description: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of something that calls ``on_progress(done, total)``, and yield that function.

    Args:
        description: what is being done.
        unit: what is counted.
    """
    with ProgressBar(unit=unit) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def busy(description: str) -> Iterator[None]:
    """Show that something goes on which cannot be counted, and for how long.

    Args:
        description: what is being done.
    """
    with ProgressBar() as bar:
        bar.add_task(description, total=None)
        yield


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
        self._bar = ProgressBar(show=show, unit="environment steps" if n_episodes is None else "episodes")
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
