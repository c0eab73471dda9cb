"""The host loop: iterate, evaluate, film, checkpoint, report. It knows no algorithm.

The device is one iteration ahead of the host: iteration i + 1 is dispatched before the metrics of iteration i are
fetched, so that reporting never lets the device wait.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
from flax import nnx

from nnx_ppo._pytree import PyTreeNode


class LoopState(PyTreeNode):
    """Arrays of a training run between two iterations.

    Attributes:
        networks: all variables of the network. Never donated: callbacks, recordings and an interrupted run read them.
        rest: everything else; donated to the next iteration.
    """

    networks: Any
    rest: Any


@runtime_checkable
class Report(Protocol):
    """What one iteration tells the host; on the device until it is asked."""

    def to_dict(self) -> dict[str, float]:
        """The metrics as Python floats; waits for the device."""
        ...


Step = Callable[[LoopState], tuple[LoopState, Any]]
"""One iteration: the next state and a :class:`Report`."""

Check = Callable[[Any, int], Exception | None]
"""``check(report, steps_before)``: the error to raise instead of making an iteration visible."""


@dataclasses.dataclass(frozen=True)
class Periodic:
    """Something to do every so many environment steps.

    Attributes:
        every_steps: environment steps between two calls.
        call: ``call(state, steps) -> metrics to merge``; it may keep no array of ``state.rest``.
        phase: what the user is told meanwhile.
        compile: all that its first call would compile; called before training.
        at_start: also before the first iteration.
        at_end: also after the last iteration.
        saves: keeps the state: called after ``log_fn`` has had the iteration's row, also when the run is interrupted.
    """

    every_steps: int
    call: Callable[[LoopState, int], dict[str, Any]]
    phase: str = "evaluating"
    compile: Callable[[], Any] = lambda: None
    at_start: bool = False
    at_end: bool = True
    saves: bool = False

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


@dataclasses.dataclass(frozen=True)
class Hooks:
    """What a run calls on its way.

    Attributes:
        periodic: evaluation, video, checkpoints; called in this order.
        log_fn: ``log_fn(metrics, steps)``, once per iteration.
        on_phase: told what the user is waiting for: ``"compiling"``, ``"training"``, ``"evaluating"``, ...
        stop_fn: ``stop_fn(metrics, steps)`` after each iteration; where it is true the run ends as at its last step.
            With it the device waits for the host once per iteration.
        interrupt_fn: asked while each iteration runs; where it is true that iteration is reported and saved, and the
            run ends without what else is due at its end.
        compile_fn: compiles the step for a state, so that the time of the first iteration does not hold that.
        check: what it returns for an iteration's report is raised; the iteration then counts as unfinished.
    """

    periodic: tuple[Periodic, ...] = ()
    log_fn: Callable[[dict[str, Any], int], None] | None = None
    on_phase: Callable[[str], None] | None = None
    stop_fn: Callable[[dict[str, Any], int], bool] | None = None
    interrupt_fn: Callable[[], bool] | None = None
    compile_fn: Callable[[LoopState], Any] | None = None
    check: Check | None = None


def train_loop(
    step: Step,
    state: LoopState,
    networks: nnx.Module,
    *,
    steps_per_iteration: int,
    steps: int,
    total_steps: int,
    throughput: bool = False,
    hooks: Hooks,
) -> tuple[LoopState, Progress]:
    """Iterate until ``total_steps``; ``networks`` hold the last finished iteration whenever a callback runs.

    Args:
        step: one iteration, asynchronous. It may donate ``state.rest``, and leaves ``state.networks`` alone.
        state: start.
        networks: the module whose variables are ``state.networks``; filled in place, after any exception too.
        steps_per_iteration: environment steps that one ``step`` takes.
        steps: environment steps taken before.
        total_steps: the run ends after the iteration that reaches this total.
        throughput: report ``throughput/train_sps``, and ``throughput/compile_s`` once.
        hooks: what to call.

    Returns:
        The final state and where the run stands.
    """
    loop = _Loop(step, state, networks, steps_per_iteration, steps, throughput, hooks)
    try:
        loop.start(total_steps)
        while loop.iterate(total_steps):
            pass
        loop.report_waiting()
    except BaseException:
        nnx.update(networks, loop.last_finished().networks)
        raise
    return loop.dispatched, loop.progress


class _Loop:
    """A run between two iterations: one is dispatched, and the one before may wait to be reported."""

    def __init__(
        self,
        step: Step,
        state: LoopState,
        networks: nnx.Module,
        steps_per_iteration: int,
        steps: int,
        throughput: bool,
        hooks: Hooks,
    ):
        self.progress = Progress(steps)
        self.dispatched = self._finished = state
        self._waiting: tuple[LoopState, Report] | None = None
        self._step, self._networks, self._hooks = step, networks, hooks
        self._steps_per_iteration, self._steps = steps_per_iteration, steps
        self._throughput, self._compile_s = throughput, 0.0
        self._watch = Stopwatch()

    def start(self, total_steps: int) -> None:
        """Compile everything, then do what comes before the first iteration."""
        self._tell("compiling")
        if self._steps >= total_steps:
            return
        self._watch.lap()
        for task in self._hooks.periodic:
            task.compile()
        if self._hooks.compile_fn is not None:
            self._hooks.compile_fn(self.dispatched)
        self._compile_s = self._watch.lap()
        metrics = self._call([task for task in self._hooks.periodic if task.at_start])
        if metrics and self._hooks.log_fn is not None:
            self._hooks.log_fn(metrics, self._steps)
        self._tell("training")
        self._watch.lap()

    def iterate(self, total_steps: int) -> bool:
        """Dispatch an iteration, and report the one before meanwhile; returns whether to go on."""
        if self._steps >= total_steps:
            return False
        self.dispatched, row = self._step(self.dispatched)
        self.report_waiting()
        self._waiting = (self.dispatched, row)
        before, self._steps = self._steps, self._steps + self._steps_per_iteration
        due = [task for task in self._hooks.periodic if task.is_due(before, self._steps, self._steps >= total_steps)]
        interrupted = self._hooks.interrupt_fn is not None and self._hooks.interrupt_fn()
        if due or interrupted or self._hooks.stop_fn is not None:
            return self._attend(row, due, interrupted)
        return True

    def _attend(self, row: Report, due: list[Periodic], interrupted: bool) -> bool:
        """Wait for the iteration just dispatched, do what is due, report; returns whether to go on."""
        metrics = self._fetch(row)
        nnx.update(self._networks, self.dispatched.networks)
        metrics |= self._call([task for task in due if not task.saves])
        stopped = self._hooks.stop_fn is not None and self._hooks.stop_fn(metrics, self._steps)
        if stopped:
            late = [task for task in self._hooks.periodic if task.at_end and task not in due]
            metrics |= self._call([task for task in late if not task.saves])
            due = due + late
        elif interrupted:
            due = due + [task for task in self._hooks.periodic if task.saves and task not in due]
        self._report(self.dispatched, metrics)
        self._call([task for task in due if task.saves])
        self._watch.lap()
        return not (stopped or interrupted)

    def report_waiting(self) -> None:
        """Report the iteration in flight, if there is one."""
        if self._waiting is not None:
            done, row = self._waiting
            self._report(done, self._fetch(row))

    def last_finished(self) -> LoopState:
        """The iteration in flight, if the device completes it and it may be seen; else the one before."""
        if self._waiting is None:
            return self._finished
        done, row = self._waiting
        try:
            jax.block_until_ready(done.networks)
            return self._finished if self._failure(row) else done
        except Exception:
            return self._finished

    def _fetch(self, row: Report) -> dict[str, Any]:
        """Wait for the iteration in flight."""
        metrics = row.to_dict()
        if error := self._failure(row):
            raise error
        seconds = self._watch.lap()
        if self._throughput:
            metrics["throughput/train_sps"] = self._steps_per_iteration / seconds
        if self._throughput and self.progress.iterations == 0:
            metrics["throughput/compile_s"] = self._compile_s
        return metrics

    def _failure(self, row: Report) -> Exception | None:
        """Why the iteration in flight must not become visible."""
        return None if self._hooks.check is None else self._hooks.check(row, self.progress.steps)

    def _report(self, done: LoopState, metrics: dict[str, Any]) -> None:
        """Make an iteration visible, and report it."""
        self._waiting, self._finished = None, done
        self.progress.steps += self._steps_per_iteration
        self.progress.iterations += 1
        self.progress.metrics = metrics
        nnx.update(self._networks, done.networks)
        if self._hooks.log_fn is not None:
            self._hooks.log_fn(metrics, self.progress.steps)

    def _call(self, tasks: list[Periodic]) -> dict[str, Any]:
        """Do what is due; the iteration in flight has finished. Returns the metrics of all."""
        metrics: dict[str, Any] = {}
        for task in tasks:
            self._tell(task.phase)
            metrics |= task.call(self.dispatched, self._steps)
        if tasks:
            self._tell("training")
        return metrics

    def _tell(self, phase: str) -> None:
        if self._hooks.on_phase is not None:
            self._hooks.on_phase(phase)
