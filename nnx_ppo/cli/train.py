"""``nnx-ppo train``: train a policy and leave a run folder."""

import dataclasses
import importlib.util
import json
import math
import pathlib
import time
from collections.abc import Sequence
from typing import Any, Literal

import optax
import tyro

from nnx_ppo.algorithms.callbacks import (
    JsonLinesLogger,
    Logger,
    TensorBoardLogger,
    WandbLogger,
    log_to,
    video_file_fn,
)
from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig, VideoConfig
from nnx_ppo.algorithms.ppo import train_ppo
from nnx_ppo.algorithms.video import require_render
from nnx_ppo.cli.compilation_cache import enable_compilation_cache
from nnx_ppo.cli.console import stderr, stdout
from nnx_ppo.cli.networks import NetworkConfig, build_network
from nnx_ppo.cli.parsing import Pairs
from nnx_ppo.cli.progress import REWARD, TrainingProgress
from nnx_ppo.cli.run_config import RunConfig, to_json
from nnx_ppo.cli.run_folder import RunFolder
from nnx_ppo.envs import make_env
from nnx_ppo.networks.types import StatefulModule
from nnx_ppo.wrappers import EpisodeWrapper, RewardScalingWrapper

SAVE_EVERY_S = 60.0
"""Least time between two saves of the policy at evaluations, so that saving does not slow down short iterations."""

Destination = Literal["jsonl", "tensorboard", "wandb"]


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a policy by PPO."""

    env: tyro.conf.Positional[str]
    """Environment: gymnax:NAME, playground:NAME, brax:NAME, probe:NAME or package.module:function."""
    out: pathlib.Path
    """Run folder to make."""
    env_args: Pairs = dataclasses.field(default_factory=dict)
    """Overrides of the environment, e.g. hide=(2,)."""
    reward_scale: float = 1.0
    """Factor on the rewards that training sees; evaluations show them as they are."""
    train_episode_length: int | None = None
    """Time limit of the episodes that training sees, for more starts; evaluations run as long as they are."""
    anneal_learning_rate: bool = False
    """Let the learning rate fall linearly to 0 at the end of the run."""
    seed: int = TrainConfig.seed
    """Seed of parameters, environments, exploration and minibatches."""
    network: NetworkConfig = dataclasses.field(default_factory=NetworkConfig)
    ppo: PPOConfig = dataclasses.field(default_factory=PPOConfig)
    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
    log: tuple[Destination, ...] = ("jsonl",)
    """Where the training log goes, in the run folder; wandb also to the service, unless WANDB_MODE is offline."""
    video: int = 0
    """Videos of one episode, spread evenly over the run, in the folder videos; the environment must be able to draw."""
    cache: bool = True
    """Keep compiled programs on disk for the next run."""

    def run(self) -> None:
        """Train, and say where the run is and what to type next."""
        if self.cache:
            enable_compilation_cache()
        train_config = TrainConfig(ppo=self.ppo, eval=self.eval, video=self._video_config(), seed=self.seed)
        config = RunConfig(
            env=self.env,
            env_args=self.env_args,
            reward_scale=self.reward_scale,
            train_episode_length=self.train_episode_length,
            anneal_learning_rate=self.anneal_learning_rate,
            network=self.network,
            train=train_config,
        )
        folder, _ = train_run(config, self.out, self.log)
        stdout.print(f"Run: {folder.path}", soft_wrap=True)
        stdout.print(f"Next: nnx-ppo eval {folder.path}", soft_wrap=True)
        stdout.print(f"      nnx-ppo record {folder.path}", soft_wrap=True)
        if "jsonl" in self.log:
            stdout.print(f"      nnx-ppo plot {folder.path}", soft_wrap=True)

    def _video_config(self) -> VideoConfig:
        if self.video < 0:
            raise ValueError(f"--video must be at least 0, got {self.video}.")
        if not self.video:
            return VideoConfig()
        every_steps = math.ceil(self.ppo.total_steps / self.video)
        return VideoConfig(enabled=True, every_steps=every_steps, episode_length=self.eval.max_episode_length)


def training_env(env: Any, config: RunConfig) -> Any:
    """The environment as training sees it: rewards scaled, episodes cut where the run says so."""
    if config.train_episode_length is not None:
        env = EpisodeWrapper(env, config.train_episode_length)
    return RewardScalingWrapper(env, config.reward_scale)


def annealed(config: TrainConfig) -> TrainConfig:
    """The same configuration with a learning rate that falls linearly to 0 at its last gradient step."""
    ppo = config.ppo
    if callable(ppo.learning_rate):
        raise TypeError("anneal_learning_rate needs a constant learning rate to start from, got a schedule.")
    iterations = -(-ppo.total_steps // ppo.steps_per_iteration)
    rate = optax.linear_schedule(ppo.learning_rate, 0.0, iterations * ppo.n_epochs * ppo.n_minibatches)
    return dataclasses.replace(config, ppo=dataclasses.replace(ppo, learning_rate=rate))


def train_run(
    config: RunConfig, out: pathlib.Path, destinations: Sequence[Destination] = ("jsonl",)
) -> tuple[RunFolder, StatefulModule]:
    """Train what ``config`` describes, and write the run folder ``out``.

    However training ends, the policy of the last finished iteration is saved.

    Args:
        config: the run.
        out: folder to make.
        destinations: where the training log goes.

    Returns:
        The run folder and the trained network.

    Raises:
        ValueError: the folder is in use, or environment, network and configuration do not fit.
        ImportError: the package of a destination is missing.
        KeyboardInterrupt: after Ctrl-C, once the policy is saved.
    """
    _require_packages(destinations)
    env = make_env(config.env, **config.env_args)
    video_fn = video_file_fn(out / "videos", fps=_fps(env)) if config.train.video.enabled else None
    if video_fn is not None:
        require_render(env)
    network = build_network(config.network, env, config.train.seed)
    folder = RunFolder.create(out, config)
    steps_done, saved_at = 0, time.monotonic()

    def log(metrics: dict[str, Any], steps: int) -> None:
        nonlocal steps_done, saved_at
        steps_done = steps
        write(metrics, steps)
        progress.log(metrics, steps)
        if REWARD in metrics and steps and time.monotonic() - saved_at > SAVE_EVERY_S:
            folder.save_policy(network, steps)
            saved_at = time.monotonic()

    try:
        with (
            _loggers(folder, config, destinations) as write,
            TrainingProgress(config.train.ppo.total_steps) as progress,
        ):
            result = train_ppo(
                training_env(env, config),
                network,
                annealed(config.train) if config.anneal_learning_rate else config.train,
                log_fn=log,
                video_fn=video_fn,
                on_phase=progress.on_phase,
                eval_env=env,
            )
        reward = result.eval_history[-1][REWARD] if result.eval_history else None
        last = "" if reward is None else f", last evaluation reward {reward:,.2f}"
        stderr.print(f"Trained {result.total_steps:,} steps{last}.")
    finally:
        if steps_done:
            path = folder.save_policy(network, steps_done)
            stderr.print(f"Saved the policy after {steps_done:,} steps in {path}", soft_wrap=True)
        else:
            stderr.print("No iteration had finished: there is no policy to save.")
    return folder, network


def _fps(env: Any) -> int:
    """Speed at which a film shows real time, where the environment knows how long its steps are."""
    seconds = getattr(env, "dt", None)
    return max(1, round(1 / seconds)) if isinstance(seconds, float) and seconds > 0 else 30


def _require_packages(destinations: Sequence[Destination]) -> None:
    """Find out before anything is written."""
    for destination, package in (("tensorboard", "tensorboardX"), ("wandb", "wandb")):
        if destination in destinations and importlib.util.find_spec(package) is None:
            raise ImportError(f"--log {destination} needs {package}: pip install 'nnx-ppo[{destination}]'")


def _loggers(folder: RunFolder, config: RunConfig, destinations: Sequence[Destination]) -> Logger:
    make: dict[Destination, Any] = {
        "jsonl": lambda: JsonLinesLogger(folder.metrics_file),
        "tensorboard": lambda: TensorBoardLogger(folder.path / "tensorboard"),
        "wandb": lambda: WandbLogger(
            project="nnx-ppo", name=folder.path.name, dir=str(folder.path), config=json.loads(to_json(config))
        ),
    }
    return log_to(*[make[destination]() for destination in dict.fromkeys(destinations)])
