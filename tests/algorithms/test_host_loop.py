"""The host loop by itself: throughput against the clock, and ending early. No network is trained here."""

import time
from typing import Any

import jax.numpy as jnp
import pytest
from flax import nnx

from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig
from nnx_ppo.algorithms.metrics import MetricsRow
from nnx_ppo.algorithms.ppo import train_ppo
from nnx_ppo.algorithms.training import Hooks, LoopState, Periodic, train_loop
from nnx_ppo.algorithms.types import LoggingLevel
from tests.helpers import RandomEnds, mlp
from tests.helpers_compile import compilations


class Counter(nnx.Module):
    def __init__(self) -> None:
        self.count = nnx.Param(jnp.zeros(()))


class SlowRow(MetricsRow):
    """Ready when the device would be."""

    def to_dict(self) -> dict[str, float]:
        time.sleep(max(0.0, float(self.values[1]) - time.perf_counter()))
        return {"count": float(self.values[0])}


class Device:
    """Works through a queue, one iteration after the other, while the host goes on."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.free_at = 0.0
        self.elsewhere: list[float] = []

    def step(self, state: LoopState) -> tuple[LoopState, MetricsRow]:
        self.free_at = max(self.free_at, time.perf_counter()) + self.seconds
        count = state.rest + 1
        networks = {"count": nnx.Param(jnp.asarray(float(count)))}
        return LoopState(networks=nnx.State(networks), rest=count), SlowRow([count, self.free_at], ("count",))

    def rest(self, *_: Any) -> dict[str, Any]:
        """Spend time on something that is no training."""
        start = time.perf_counter()
        time.sleep(0.2)
        self.elsewhere.append(time.perf_counter() - start)
        return {}


def loop(device: Device, total_steps: int, throughput: bool = False, **hooks: Any) -> tuple[LoopState, Any, Counter]:
    network = Counter()
    state, progress = train_loop(
        device.step,
        LoopState(networks=nnx.state(network), rest=0),
        network,
        steps_per_iteration=100,
        steps=0,
        total_steps=total_steps,
        throughput=throughput,
        hooks=Hooks(**hooks),
    )
    return state, progress, network


def test_throughput_agrees_with_the_clock_without_compiling_and_evaluating():
    rows: list[dict[str, Any]] = []
    device = Device(0.03)
    loop(Device(0.0), 100)  # what is slow the first time in a process is no part of a run
    start = time.perf_counter()
    loop(
        device,
        2000,
        periodic=(Periodic(1000, device.rest, compile=device.rest, at_start=True),),
        log_fn=lambda m, s: rows.append(m),
        compile_fn=device.rest,
        throughput=True,
    )
    wall = time.perf_counter() - start
    training = [row for row in rows if "throughput/train_sps" in row]
    assert len(training) == 20
    assert [i for i, row in enumerate(training) if "throughput/compile_s" in row] == [0]
    assert len(device.elsewhere) == 5
    assert training[0]["throughput/compile_s"] == pytest.approx(sum(device.elsewhere[:2]), rel=0.05)
    seconds = sum(100 / row["throughput/train_sps"] for row in training)
    assert seconds == pytest.approx(wall - sum(device.elsewhere), rel=0.05)


def test_a_slow_log_is_part_of_the_time_that_training_takes():
    rows: list[dict[str, Any]] = []

    def slow(metrics: dict[str, Any], steps: int) -> None:
        time.sleep(0.05)
        rows.append(metrics)

    loop(Device(0.01), 1000, log_fn=slow, throughput=True)
    assert 100 / rows[-1]["throughput/train_sps"] >= 0.05


def test_without_the_level_there_are_no_throughput_keys():
    rows: list[dict[str, Any]] = []
    loop(Device(0.0), 200, log_fn=lambda m, s: rows.append(m))
    assert [set(row) for row in rows] == [{"count"}, {"count"}]


def test_the_user_is_told_what_is_going_on_in_order():
    phases: list[str] = []
    film = Periodic(200, lambda state, steps: {}, phase="filming")
    save = Periodic(200, lambda state, steps: {}, phase="saving", saves=True)
    evaluate = Periodic(100, lambda state, steps: {}, at_start=True)
    loop(Device(0.0), 200, periodic=(evaluate, film, save), on_phase=phases.append)
    assert phases == [
        "compiling", "evaluating", "training", "training", "evaluating", "training", "evaluating", "filming",
        "training", "saving", "training",
    ]  # fmt: skip


def test_a_failed_iteration_is_raised_and_never_visible():
    rows: list[Any] = []
    network = Counter()
    device = Device(0.0)
    hooks = Hooks(
        log_fn=lambda m, s: rows.append(s),
        check=lambda row, steps: ArithmeticError(f"after {steps}") if row.values[0] == 3 else None,
    )
    start = LoopState(networks=nnx.state(network), rest=0)
    with pytest.raises(ArithmeticError, match="after 200"):
        train_loop(device.step, start, network, steps_per_iteration=100, steps=0, total_steps=900, hooks=hooks)
    assert rows == [100, 200]
    assert float(network.count[...]) == 2.0


def test_stop_fn_ends_the_run_as_a_normal_end_does():
    rows: list[Any] = []
    seen: list[Any] = []
    saved: list[int] = []

    def stop(metrics: dict[str, Any], steps: int) -> bool:
        seen.append((dict(metrics), steps))
        return metrics["count"] >= 3

    def save(state: LoopState, steps: int) -> dict[str, Any]:
        saved.append(steps)
        return {}

    periodic = (
        Periodic(200, lambda state, steps: {"eval/x": float(state.rest)}),
        Periodic(10_000, save),
        Periodic(10_000, lambda state, steps: pytest.fail("not at the end"), at_end=False),
    )
    state, progress, network = loop(
        Device(0.0), 10_000, periodic=periodic, log_fn=lambda m, s: rows.append((m, s)), stop_fn=stop
    )
    assert seen == [({"count": 1.0}, 100), ({"count": 2.0, "eval/x": 2.0}, 200), ({"count": 3.0}, 300)]
    assert rows == [*seen[:2], ({"count": 3.0, "eval/x": 3.0}, 300)]
    assert saved == [300]
    assert (progress.steps, progress.iterations, state.rest, float(network.count[...])) == (300, 3, 3, 3.0)


def test_stop_fn_is_asked_at_the_normal_end_too_and_nothing_runs_twice():
    calls: list[int] = []
    task = Periodic(10_000, lambda state, steps: calls.append(steps) or {})
    _, progress, _ = loop(Device(0.0), 200, periodic=(task,), stop_fn=lambda m, steps: steps == 200)
    assert calls == [200]
    assert progress.steps == 200


def test_throughput_of_a_real_run_agrees_with_the_clock_and_the_iteration_compiles_once():
    ppo = PPOConfig(
        n_envs=128,
        rollout_length=20,
        total_steps=20 * 128 * 20,
        logging_level=LoggingLevel.LOSSES | LoggingLevel.THROUGHPUT,
    )
    config = TrainConfig(ppo=ppo, eval=EvalConfig(n_envs=4, max_episode_length=5, every_steps=10**9))
    rows: list[tuple[dict[str, float], float]] = []
    start = time.perf_counter()
    with compilations() as compiled:
        result = train_ppo(RandomEnds(), mlp(), config, log_fn=lambda m, s: rows.append((m, time.perf_counter())))
    wall = time.perf_counter() - start
    assert result.total_iterations == 20
    assert len([line for line in compiled if "jit(step)" in line]) <= 1
    training = [row for row, _ in rows if "throughput/train_sps" in row]
    assert 0 < training[0]["throughput/compile_s"] < wall
    # From the row of the first iteration to that of the last but one: beside these there is the last evaluation.
    seconds = sum(ppo.steps_per_iteration / row["throughput/train_sps"] for row in training[1:19])
    assert seconds == pytest.approx(rows[-2][1] - rows[1][1], rel=0.05)
    assert [index for index, (row, _) in enumerate(rows) if row.get("throughput/eval_sps", 0.0) > 0.0] == [0, 20]
