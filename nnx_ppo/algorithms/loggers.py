"""Where the training log goes: loggers are plain callables of ``(metrics, steps)`` that close what they opened.

Pass one as ``log_fn``, several through :func:`log_to`. All are context managers::

    with log_to(JsonLinesLogger("run/metrics.jsonl"), TensorBoardLogger("run/tb")) as log_fn:
        train_ppo(env, networks, log_fn=log_fn)
"""

import abc
import contextlib
import errno
import fnmatch
import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

LogFn = Callable[[dict[str, Any], int], Any]
"""``log_fn(metrics, steps)``: flat dict of scalars, and environment steps so far as a Python int."""


class Logger(abc.ABC):
    """A ``log_fn`` that holds something open. A subclass defines :meth:`__call__` and :meth:`close`.

    Metrics may appear late and in any order, and ``steps`` may start again: consecutive runs can share a logger.
    """

    @abc.abstractmethod
    def __call__(self, metrics: Mapping[str, Any], steps: int) -> None:
        """Take in one row."""

    @abc.abstractmethod
    def close(self, failed: bool = False) -> None:
        """Write what is left and let go of files and connections; a second call does nothing.

        Args:
            failed: an exception ended the run.
        """

    def position(self) -> dict[str, Any]:
        """Where the log stands, as values that JSON can hold, so that a run can go on there from a checkpoint."""
        return {}

    def __enter__(self) -> "Logger":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=kind is not None)


class JsonLinesLogger(Logger):
    """Appends one JSON object per row, ``{"steps": ..., "losses/total": ..., ...}``; read it by :func:`read_metrics`.

    Each line is handed to the operating system at once and whole, so that after a crash of the process at most the last
    line is torn. JSON has no numbers that are not finite: they are the strings ``"NaN"``, ``"Infinity"`` and
    ``"-Infinity"``, as in the JSON form of protocol buffers.

    Args:
        path: file to append to; made, with its folder, where there is none.
        keep_bytes: cut the file back to this length first: ``position()["jsonl_bytes"]`` as a checkpoint kept it. The
            rows after it belong to iterations that a resumed run does again.
    """

    def __init__(self, path: str | os.PathLike[str], keep_bytes: int | None = None):
        self.path = pathlib.Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if keep_bytes is not None and self.path.exists() and self.path.stat().st_size > keep_bytes:
            os.truncate(self.path, keep_bytes)
        # Unbuffered: one row is one write.
        self._file = self.path.open("ab", buffering=0)
        if not _ends_with_newline(self.path):
            self._file.write(b"\n")

    def __call__(self, metrics: Mapping[str, Any], steps: int) -> None:
        if self._file.closed:
            raise ValueError(f"the logger of {self.path} is closed: make a new one to append to the file.")
        row = {"steps": int(steps), **{name: _to_json(number) for name, number in as_floats(metrics).items()}}
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        if self._file.write(line) != len(line):
            raise OSError(errno.ENOSPC, f"only a part of a row fits into {self.path}: no space left on the device")

    def position(self) -> dict[str, Any]:
        return {"jsonl_bytes": self.path.stat().st_size}

    def close(self, failed: bool = False) -> None:
        self._file.close()


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read what :class:`JsonLinesLogger` wrote: one dict per row, floats by name and the integer ``"steps"``.

    Lines that a crash has torn are left out.

    Args:
        path: the file; may still be growing.
    """
    rows = []
    for line in pathlib.Path(path).read_bytes().splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict) and "steps" in row:
                rows.append({name: _from_json(value) for name, value in row.items()})
    return rows


class TensorBoardLogger(Logger):
    """Writes an event file for TensorBoard, one scalar per metric.

    Args:
        folder: where to put it; made where there is none.
        purge_step: TensorBoard is to forget what earlier files in the folder have from this step on; a resumed run
            writes it again.

    Raises:
        ImportError: ``tensorboardX`` is missing.
    """

    def __init__(self, folder: str | os.PathLike[str], purge_step: int | None = None):
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ImportError("TensorBoardLogger needs tensorboardX: pip install 'nnx-ppo[tensorboard]'") from error
        self._writer = SummaryWriter(str(folder), purge_step=purge_step)
        self._closed = False

    def __call__(self, metrics: Mapping[str, Any], steps: int) -> None:
        for name, number in as_floats(metrics).items():
            self._writer.add_scalar(name, number, int(steps))

    def close(self, failed: bool = False) -> None:
        if not self._closed:
            self._closed = True
            self._writer.close()


class WandbLogger(Logger):
    """Sends rows to Weights & Biases; every metric is drawn over ``steps``.

    Args:
        resume_after: drop rows of up to so many steps, which an earlier process has sent to the same run; a resumed run
            repeats those that came after its checkpoint. Where W&B itself knows of fewer rows, the others are sent.
        **init_kwargs: of ``wandb.init``: ``project``, ``name``, ``config``, ``mode="offline"``, ...

    Attributes:
        run: the ``wandb`` run.

    Raises:
        ImportError: ``wandb`` is missing.
        ValueError: W&B starts no run, for example because nobody is logged in.
    """

    def __init__(self, *, resume_after: int | None = None, **init_kwargs: Any):
        wandb = import_wandb()
        try:
            self.run = wandb.init(**init_kwargs)
        except wandb.Error as error:
            raise ValueError(
                f"W&B did not start a run: {error} Log in with `wandb login`, or set WANDB_MODE=offline to keep the "
                "log in files and send it later with `wandb sync`."
            ) from error
        # W&B's own counter refuses to go back, as it has to when a second run starts or one is resumed.
        self.run.define_metric("steps")
        self.run.define_metric("*", step_metric="steps")
        COUNTS_BY_ITSELF.add(self.run.id)
        self._sent = _known_steps(self.run, resume_after)
        self._closed = False

    def __call__(self, metrics: Mapping[str, Any], steps: int) -> None:
        if self._sent is not None and steps <= self._sent:
            return
        self.run.log({**as_floats(metrics), "steps": int(steps)})

    def position(self) -> dict[str, Any]:
        return {"wandb_run_id": self.run.id}

    def close(self, failed: bool = False) -> None:
        if not self._closed:
            self._closed = True
            COUNTS_BY_ITSELF.discard(self.run.id)
            self.run.finish(exit_code=1 if failed else 0)


def _known_steps(run: Any, resume_after: int | None) -> int | None:
    """Steps up to which the run has its rows: as the caller knows, or fewer where W&B says so."""
    if resume_after is None or not run.resumed:
        return resume_after
    there = run.summary.get("steps")
    return None if there is None else min(resume_after, int(there))


COUNTS_BY_ITSELF: set[str] = set()
"""Open W&B runs whose own counter is not the number of environment steps."""


class TableLogger(Logger):
    """Shows the latest value of each metric in a table that stays in place on the terminal.

    A metric that is not in every row (an evaluation's, say) stays, with the steps at which it was seen.

    Args:
        include: glob patterns on the names, for example ``("losses/*", "eval/episode_reward/mean")``; all by default.
        console: a ``rich.console.Console``; standard output by default.
    """

    def __init__(self, include: Sequence[str] = ("*",), console: Any = None):
        from rich.live import Live

        self.include = (include,) if isinstance(include, str) else tuple(include)
        self._latest: dict[str, tuple[float, int]] = {}
        self._live = Live(console=console, get_renderable=self._table, refresh_per_second=4)

    def __call__(self, metrics: Mapping[str, Any], steps: int) -> None:
        for name, number in as_floats(metrics).items():
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.include):
                self._latest[name] = number, int(steps)
        self._live.start()

    def close(self, failed: bool = False) -> None:
        if self._live.is_started:
            self._live.stop()

    def _table(self) -> Any:
        from rich.table import Table

        table = Table("metric")
        for title in ("value", "at step"):
            table.add_column(title, justify="right")
        for name, (number, steps) in self._latest.items():
            table.add_row(name, f"{number:,.4g}", f"{steps:,}")
        return table


class _LogTo(Logger):
    def __init__(self, loggers: tuple[LogFn, ...]):
        self.loggers = loggers

    def __call__(self, metrics: Mapping[str, Any], steps: int) -> None:
        for logger in self.loggers:
            logger(dict(metrics), steps)

    def position(self) -> dict[str, Any]:
        parts = [logger.position() for logger in self.loggers if isinstance(logger, Logger)]
        return {name: value for part in parts for name, value in part.items()}

    def close(self, failed: bool = False) -> None:
        with contextlib.ExitStack() as stack:
            for logger in self.loggers:
                if isinstance(logger, Logger):
                    stack.callback(logger.close, failed)
                elif hasattr(logger, "close"):
                    stack.callback(logger.close)  # type: ignore[attr-defined]


def log_to(*loggers: LogFn) -> Logger:
    """One ``log_fn`` out of several: each gets every row, and each is closed, even where another one fails to.

    Args:
        *loggers: :class:`Logger` objects or any functions of ``(metrics, steps)``.
    """
    return _LogTo(loggers)


def as_floats(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Python floats by name, from Python, NumPy or JAX scalars of any type.

    Raises:
        TypeError: a metric that is no scalar, by name.
    """
    return {name: _as_float(name, value) for name, value in metrics.items()}


def _as_float(name: str, value: Any) -> float:
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError) as error:
        what = f"an array of shape {list(value.shape)}" if hasattr(value, "shape") else repr(value)
        raise TypeError(f"metric {name!r} must be a scalar, got {what}; log its mean, say, instead.") from error


def _to_json(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _from_json(value: Any) -> Any:
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def _ends_with_newline(path: pathlib.Path) -> bool:
    """Whether a file is empty or ends where a line ends."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return True
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def import_wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ImportError("Weights & Biases needs its package: pip install 'nnx-ppo[wandb]'") from error
    return wandb
