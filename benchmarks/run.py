"""Speed of training on this machine: ``python -m benchmarks.run [--env ENV] [--out FILE]``.

For each case (a network, a set of metrics): the time until the first iteration is done (tracing and compiling included,
compilation cache off), and environment steps per second of the iterations after it. The cases take turns, so that a
slow moment of the machine hits all alike; the table shows medians, and the quartiles say how far to trust them. What
the metrics cost is the median over rounds of the ratio to the same network that reports nothing.
"""

import dataclasses
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import tyro
from flax import nnx
from rich.console import Console
from rich.table import Table

from nnx_ppo import PPOConfig, make_env, make_lstm_actor_critic, make_mlp_actor_critic
from nnx_ppo.algorithms import LoggingLevel, new_training_state, ppo_step
from nnx_ppo.cli.options import REGISTRY
from nnx_ppo.cli.parsing import Pairs
from nnx_ppo.cli.versions import collect_versions

MLP = "mlp 64-64"
NETWORKS: dict[str, Callable[[Any], nnx.Module]] = {
    MLP: lambda env: make_mlp_actor_critic(
        env.observation_size, env.action_size, [64, 64], [64, 64], nnx.Rngs(0), activation="swish"
    ),
    "lstm 64": lambda env: make_lstm_actor_critic(env.observation_size, env.action_size, 64, [64], [64], nnx.Rngs(0)),
}
PERCENTILES = (0, 25, 50, 75, 100)
LEVELS = {"LOSSES": LoggingLevel.LOSSES, "ALL": LoggingLevel.ALL, "DIAGNOSTICS": LoggingLevel.DIAGNOSTICS}


@dataclasses.dataclass(frozen=True)
class Options:
    """Measure training speed."""

    env: str = "gymnax:Pendulum-v1"
    """Environment."""
    env_args: Pairs = dataclasses.field(default_factory=dict)
    """Overrides of the environment, e.g. impl=jax."""
    n_envs: int = 256
    """Environments in parallel."""
    rollout_length: int = 20
    """Steps per environment and iteration."""
    rounds: int = 5
    """Rounds; in each, every network runs once."""
    iterations: int = 5
    """Iterations per network and round."""
    out: pathlib.Path = pathlib.Path(".cache/benchmarks.json")
    """File for the results."""


def main(options: Options) -> dict[str, Any]:
    """Run the benchmark, write the file, print the table."""
    jax.config.update("jax_enable_compilation_cache", False)
    config = PPOConfig(n_envs=options.n_envs, rollout_length=options.rollout_length, logging_level=LoggingLevel.NONE)
    env = make_env(options.env, **options.env_args)
    runs = {name: Run(env, make(env), config) for name, make in NETWORKS.items()}
    for name, level in LEVELS.items():
        reporting = dataclasses.replace(config, logging_level=level, logging_percentiles=PERCENTILES)
        runs[f"{MLP}, {name}"] = Run(env, NETWORKS[MLP](env), reporting)
    for _ in range(options.rounds):
        for run in runs.values():
            run.measure(options.iterations)
    results = {name: run.result() for name, run in runs.items()}
    for name in LEVELS:
        rounds = zip(runs[f"{MLP}, {name}"].steps_per_second, runs[MLP].steps_per_second, strict=True)
        results[f"{MLP}, {name}"]["time_over_no_metrics"] = float(np.median([none / some for some, none in rounds]))
    report = {
        "env": options.env,
        "n_envs": options.n_envs,
        "rollout_length": options.rollout_length,
        "versions": collect_versions(),
        "cases": results,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2))
    Console().print(table(report), f"Results: {options.out}")
    return report


class Run:
    """One case in training; measures iterations on request."""

    def __init__(self, env: Any, network: Any, config: PPOConfig):
        self.env, self.config = env, config
        self.state = new_training_state(env, network, config.n_envs, seed=0)
        start = time.perf_counter()
        self._iterate()
        self.first_iteration = time.perf_counter() - start
        self.steps_per_second: list[float] = []

    def measure(self, iterations: int) -> None:
        """Time ``iterations`` iterations together."""
        start = time.perf_counter()
        for _ in range(iterations):
            self._iterate()
        seconds = time.perf_counter() - start
        self.steps_per_second.append(iterations * self.config.steps_per_iteration / seconds)

    def result(self) -> dict[str, float]:
        """Seconds to the first iteration, quartiles of the steps per second."""
        low, median, high = np.percentile(self.steps_per_second, (25, 50, 75)).tolist()
        return {
            "first_iteration_seconds": self.first_iteration,
            "steps_per_second": median,
            "steps_per_second_p25": low,
            "steps_per_second_p75": high,
        }

    def _iterate(self) -> None:
        self.state, _ = ppo_step(self.env, self.state, self.config)
        jax.block_until_ready(nnx.state(self.state.networks))


def table(report: dict[str, Any]) -> Table:
    """The report for a terminal."""
    result = Table(title=f"{report['env']}, {report['n_envs']} environments x {report['rollout_length']} steps")
    result.add_column("case")
    for name in ("first iteration (s)", "steps/s (median)", "quartiles", "time over no metrics"):
        result.add_column(name, justify="right")
    for name, row in report["cases"].items():
        quartiles = f"{row['steps_per_second_p25']:,.0f} to {row['steps_per_second_p75']:,.0f}"
        seconds, speed = f"{row['first_iteration_seconds']:.1f}", f"{row['steps_per_second']:,.0f}"
        ratio = f"{row['time_over_no_metrics']:.3f}" if "time_over_no_metrics" in row else ""
        result.add_row(name, seconds, speed, quartiles, ratio)
    return result


if __name__ == "__main__":
    main(tyro.cli(Options, registry=REGISTRY))
