"""The host loop: iterate, evaluate, film, checkpoint, report. It knows no algorithm.

The device is one iteration ahead of the host: iteration i + 1 is dispatched before the metrics of iteration i are
fetched, so that reporting never lets the device wait.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from nnx_ppo._pytree import PyTreeNode
from nnx_ppo.algorithms.metrics import MetricsRow


class LoopState(PyTreeNode):
    """Arrays of a training run between two iterations.

    Attributes:
        networks: all variables of the network. Never donated: callbacks, recordings and an interrupted run read them.
        rest: everything else; donated to the next iteration.
    """

    networks: Any
    rest: Any


Step = Callable[[LoopState], tuple[LoopState, MetricsRow]]


@dataclasses.dataclass(frozen=True)
class Periodic:
    """Something to do every so many environment steps.

    Attributes:
        every_steps: environment steps between two calls.
        call: ``call(state, steps) -> metrics to merge``; it may keep no array of ``state.rest``.
        at_start: also before the first iteration.
        at_end: also after the last iteration.
    """

    every_steps: int
    call: Callable[[LoopState, int], dict[str, Any]]
    at_start: bool = False
    at_end: bool = True

    def is_due(self, before: int, after: int, is_last: bool) -> bool:
        """Whether the iteration that went from ``before`` to ``after`` steps passed a multiple of ``every_steps``."""
        return before // self.every_steps < after // self.every_steps or (is_last and self.at_end)


class Stopwatch:
    """Wall-clock time between two laps."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap (or since it was made), never 0."""
        start, self._start = self._start, time.perf_counter()
        return max(self._start - start, 1e-9)


@dataclasses.dataclass
class Progress:
    """Where a run stands: readable at any time, also after an exception.

    Attributes:
        steps: environment steps of the finished iterations.
        iterations: finished iterations.
        metrics: what ``log_fn`` received last.
    """

    steps: int
    iterations: int = 0
    metrics: dict[str, Any] = dataclasses.field(default_factory=dict)


def train_loop(
    step: Step,
    state: LoopState,
    networks: nnx.Module,
    *,
    steps_per_iteration: int,
    steps: int,
    total_steps: int,
    periodic: tuple[Periodic, ...] = (),
    log_fn: Callable[[dict[str, Any], int], None] | None = None,
    on_phase: Callable[[str], None] | None = None,
    stop_fn: Callable[[dict[str, Any], int], bool] | None = None,
    compile_fn: Callable[[LoopState], Any] | None = None,
    throughput: bool = False,
) -> tuple[LoopState, Progress]:
    """Iterate until ``total_steps``; ``networks`` hold the last finished iteration whenever a callback runs.

    Args:
        step: one iteration, asynchronous. It may donate ``state.rest``, and leaves ``state.networks`` alone.
        state: start.
        networks: the module whose variables are ``state.networks``; filled in place, after any exception too.
        steps_per_iteration: environment steps that one ``step`` takes.
        steps: environment steps taken before.
        total_steps: the run ends after the iteration that reaches this total.
        periodic: evaluation, video, checkpoints; in this order.
        log_fn: ``log_fn(metrics, steps)``, once per iteration.
        on_phase: told what the user is waiting for: ``"compiling"``, ``"training"``, ``"evaluating"``, ...
        stop_fn: ``stop_fn(metrics, steps)`` after each iteration; where it is true the run ends as at ``total_steps``.
            With it the device waits for the host once per iteration.
        compile_fn: compiles ``step`` for a state, so that the time of the first iteration does not hold that.
        throughput: report ``throughput/train_sps``, and ``throughput/compile_s`` once.

    Returns:
        The final state and where the run stands.
    """
    tell = on_phase or (lambda phase: None)
    progress = Progress(steps)
    watch = Stopwatch()
    finished = dispatched = state
    waiting: tuple[LoopState, MetricsRow] | None = None

    def fetch(row: MetricsRow) -> dict[str, Any]:
        """Wait for the iteration in flight."""
        metrics = row.to_dict()
        seconds = watch.lap()
        if throughput:
            metrics["throughput/train_sps"] = steps_per_iteration / seconds
        if throughput and progress.iterations == 0:
            metrics["throughput/compile_s"] = compile_s
        return metrics

    def report(done: LoopState, metrics: dict[str, Any]) -> None:
        """Make an iteration visible, and report it."""
        nonlocal waiting, finished
        waiting, finished = None, done
        progress.steps += steps_per_iteration
        progress.iterations += 1
        nnx.update(networks, done.networks)
        progress.metrics = metrics
        if log_fn is not None:
            log_fn(progress.metrics, progress.steps)

    def finish() -> None:
        """Report the iteration in flight, if there is one."""
        if waiting is not None:
            done, row = waiting
            report(done, fetch(row))

    def run(tasks: list[Periodic]) -> dict[str, Any]:
        """Call what is due; the iteration in flight has finished."""
        if not tasks:
            return {}
        tell("evaluating")
        metrics = merged(task.call(dispatched, steps) for task in tasks)
        tell("training")
        return metrics

    try:
        start = [task for task in periodic if task.at_start]
        if start and steps < total_steps:
            tell("evaluating")
            metrics = merged(task.call(state, steps) for task in start)
            if metrics and log_fn is not None:
                log_fn(metrics, steps)
        tell("compiling")
        watch.lap()
        if compile_fn is not None and steps < total_steps:
            compile_fn(state)
        compile_s = watch.lap()
        stopped = False
        while not stopped and steps < total_steps:
            dispatched, row = step(dispatched)
            if progress.iterations == 0 and waiting is None:
                tell("training")
            finish()
            waiting = (dispatched, row)
            before, steps = steps, steps + steps_per_iteration
            due = [task for task in periodic if task.is_due(before, steps, steps >= total_steps)]
            if due or stop_fn is not None:
                metrics = fetch(row)
                nnx.update(networks, dispatched.networks)
                metrics |= run(due)
                if stop_fn is not None and stop_fn(metrics, steps):
                    stopped = True
                    metrics |= run([task for task in periodic if task.at_end and task not in due])
                watch.lap()
                report(dispatched, metrics)
        finish()
    except BaseException:
        nnx.update(networks, _last_finished(waiting, finished).networks)
        raise
    return dispatched, progress


def merged(parts: Any) -> dict[str, Any]:
    """One dict of several with different keys."""
    result: dict[str, Any] = {}
    for part in parts:
        result |= part
    return result


def _last_finished(waiting: tuple[LoopState, MetricsRow] | None, finished: LoopState) -> LoopState:
    """The iteration in flight, if the device completes it; else the one before."""
    if waiting is None:
        return finished
    try:
        jax.block_until_ready(waiting[0].networks)
    except Exception:
        return finished
    return waiting[0]
