"""What memory is worth: ``python -m benchmarks.memory --task cue --delay 50 --networks lru``.

Trains networks that differ in their memory on a task that needs one, several seeds each, and prints a table of the
returns of the trained policies (greedy, new episodes) beside what is possible. ``full`` is a feed-forward network that
is shown the entries of the observation that the task hides.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, Literal

import optax
import tyro
from flax import nnx
from rich.console import Console
from rich.table import Table

from benchmarks.memory_networks import control_network, memory_network
from nnx_ppo import EvalConfig, PPOConfig, TrainConfig, make_env, train_ppo
from nnx_ppo.cli.compilation_cache import enable_compilation_cache
from nnx_ppo.cli.progress import REWARD, TrainingProgress
from nnx_ppo.networks import StatefulModule
from nnx_ppo.wrappers import EpisodeWrapper, RewardScalingWrapper

TaskName = Literal["cue", "repeat", "cartpole", "pendulum"]
NetworkName = Literal["mlp", "gru", "lstm", "lru", "graph", "delay", "full"]


@dataclasses.dataclass(frozen=True)
class Task:
    """A task, and the settings it is learned with."""

    env: Any
    eval_env: Any
    """The same without the changes that help learning."""
    episode_length: int
    ppo: PPOConfig
    make_network: Callable[[str, nnx.Rngs], StatefulModule]
    best: str
    """Return of the best policy, for the table."""
    memoryless: str
    """Return of the best policy without memory."""


@functools.cache
def cue(delay: int, n_iterations: int = 100) -> Task:
    """Answer a cue ``delay`` blank steps after it was shown (:class:`nnx_ppo.envs.MemoryCue`)."""
    env, n_steps = make_env("probe:memory_cue", delay=delay, discrete=True), delay + 2
    # Gradients through time end where the rollout begins: cue and question have to lie in the same one.
    ppo = _probe_config(n_steps, n_iterations)
    return Task(env, env, n_steps, ppo, functools.partial(memory_network, env, delay + 1), "1", "0.5")


@functools.cache
def repeat(delay: int, n_iterations: int = 100) -> Task:
    """Name the symbol of ``delay`` steps ago, at every step (:class:`nnx_ppo.envs.RepeatPrevious`)."""
    n_steps = delay + 16
    env = make_env("probe:repeat_previous", k=delay, n_symbols=2, length=n_steps)
    # An action pays at once, and has no effect later: what comes later is noise to its advantage.
    ppo = dataclasses.replace(_probe_config(n_steps, n_iterations), discounting_factor=0.5, gae_lambda=0.5)
    return Task(env, env, n_steps, ppo, functools.partial(memory_network, env, delay), "16", "8")


def _probe_config(n_steps: int, n_iterations: int) -> PPOConfig:
    return PPOConfig(
        n_envs=64,
        rollout_length=n_steps,
        total_steps=64 * n_steps * n_iterations,
        learning_rate=3e-3,
        gradient_clipping=1.0,
    )


@functools.cache
def cartpole(network: str) -> Task:
    """Balance a pole without being shown velocities; ``network="full"`` is shown them."""
    # Once nothing falls any more, advantages are noise that normalisation blows up: large batches, and a lambda that
    # trusts the critic, keep what was learned.
    ppo = PPOConfig(
        n_envs=32,
        rollout_length=64,
        total_steps=600_000,
        learning_rate=2e-3,
        gradient_clipping=0.5,
        gae_lambda=0.9,
    )
    env = make_env("gymnax:CartPole-v1", hide=() if network == "full" else (1, 3))
    make = functools.partial(control_network, env, entropy_weight=1e-2)
    return Task(EpisodeWrapper(env, 500), env, 500, ppo, make, "500", "unknown")


@functools.cache
def pendulum(network: str) -> Task:
    """Swing up a pendulum without being shown its velocity; ``network="full"`` is shown it."""
    ppo = PPOConfig(
        n_envs=64,
        rollout_length=50,
        total_steps=800_000,
        learning_rate=2e-3,
        gradient_clipping=1.0,
        discounting_factor=0.95,
        gae_lambda=0.9,
    )
    if network == "lstm":
        ppo = dataclasses.replace(ppo, n_envs=128, total_steps=1_600_000, n_epochs=8)
    env = make_env("gymnax:Pendulum-v1", hide=() if network == "full" else (2,))
    scaled = EpisodeWrapper(RewardScalingWrapper(env, 0.1), 200)
    return Task(
        scaled, env, 200, ppo, functools.partial(control_network, env, entropy_weight=1e-3), "unknown", "unknown"
    )


def returns_while_learning(
    task: Task, network: str, seed: int, *, n_episodes: int = 256, n_evaluations: int = 1, **callbacks: Any
) -> list[float]:
    """Train one network; return the mean return of ``n_episodes`` greedy episodes, several times up to the end."""
    ppo = task.ppo
    n_gradient_steps = -(-ppo.total_steps // ppo.steps_per_iteration) * ppo.n_epochs * ppo.n_minibatches
    ppo = dataclasses.replace(ppo, learning_rate=_schedule(ppo.learning_rate, n_gradient_steps))
    evaluation = EvalConfig(
        every_steps=-(-ppo.total_steps // n_evaluations),
        n_envs=n_episodes,
        max_episode_length=task.episode_length,
        initial=False,
    )
    result = train_ppo(
        task.env,
        task.make_network(network, nnx.Rngs(seed)),
        TrainConfig(ppo=ppo, eval=evaluation, seed=seed),
        eval_env=task.eval_env,
        **callbacks,
    )
    return [float(evaluation[REWARD]) for evaluation in result.eval_history]


@functools.cache
def _schedule(learning_rate: float, n_steps: int) -> optax.Schedule:
    """Down to zero in a line; one object per setting, so that all seeds share one compiled step."""
    return optax.linear_schedule(learning_rate, 0.0, n_steps)


@dataclasses.dataclass(frozen=True)
class Options:
    """Train networks with and without memory on one task."""

    task: TaskName = "cue"
    """``cue`` and ``repeat`` are probes with known answers; ``cartpole`` and ``pendulum`` hide their velocities."""
    delay: int = 10
    """Steps to remember, for the probes."""
    networks: tuple[NetworkName, ...] = ()
    """Which networks; none: all that fit the task."""
    seeds: int = 3
    """Seeds per network."""

    def chosen(self) -> tuple[str, ...]:
        """The networks to train."""
        control = self.task in ("cartpole", "pendulum")
        return self.networks or (
            ("full", "mlp", "lstm") if control else ("gru", "lstm", "lru", "graph", "delay", "mlp")
        )

    def make_task(self, network: str) -> Task:
        """The task as ``network`` is given it."""
        if self.task in ("cartpole", "pendulum"):
            return (cartpole if self.task == "cartpole" else pendulum)(network)
        return (cue if self.task == "cue" else repeat)(self.delay)


def main(options: Options) -> dict[str, list[list[float]]]:
    """Train, print the table, and return by network, for each seed, the returns while it learned."""
    enable_compilation_cache()
    console = Console(stderr=True)
    returns: dict[str, list[list[float]]] = {}
    seconds: dict[str, float] = {}
    for network in options.chosen():
        start = time.perf_counter()
        for seed in range(options.seeds):
            console.print(f"{network}, seed {seed}")
            task = options.make_task(network)
            with TrainingProgress(task.ppo.total_steps, console) as progress:
                callbacks = {"log_fn": progress.log, "on_phase": progress.on_phase}
                curve = returns_while_learning(task, network, seed, n_evaluations=5, **callbacks)
            returns.setdefault(network, []).append(curve)
        seconds[network] = (time.perf_counter() - start) / options.seeds
    Console().print(table(options, returns, seconds))
    return returns


def table(options: Options, returns: dict[str, list[list[float]]], seconds: dict[str, float]) -> Table:
    """The results for a terminal."""
    task = options.make_task(next(iter(returns)))
    remember = f", {options.delay} steps" if options.task in ("cue", "repeat") else ""
    result = Table(title=f"{options.task}{remember}: best possible {task.best}, without memory {task.memoryless}")
    result.add_column("network")
    for name in ("last evaluation, by seed", "best evaluation, by seed", "environment steps", "seconds per seed"):
        result.add_column(name, justify="right")
    for network, curves in returns.items():
        last, best = ("  ".join(f"{pick(curve):.2f}" for curve in curves) for pick in (lambda c: c[-1], max))
        steps = f"{options.make_task(network).ppo.total_steps:,}"
        result.add_row(network, last, best, steps, f"{seconds[network]:.0f}")
    return result


if __name__ == "__main__":
    main(tyro.cli(Options))
