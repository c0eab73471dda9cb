"""``nnx-ppo train``: train a policy and leave a run folder, or go on with one."""

import dataclasses
import math
import pathlib
import shlex
from typing import Annotated, Any

import tyro

from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig, VideoConfig
from nnx_ppo.algorithms.retention import Retention
from nnx_ppo.cli.compilation_cache import enable_compilation_cache
from nnx_ppo.cli.console import stdout
from nnx_ppo.cli.logs import Destination
from nnx_ppo.cli.networks import NetworkConfig, require_used
from nnx_ppo.cli.options import option
from nnx_ppo.cli.parsing import Pairs
from nnx_ppo.cli.run_config import RunConfig, with_total_steps
from nnx_ppo.cli.run_folder import RunFolder
from nnx_ppo.cli.training_run import resume_run, train_run

WITH_RESUME = ("resume", "total_steps", "cache")
"""Options that go with ``--resume``; all others are as they were when the run began."""


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a policy by PPO, and leave a run folder.

    For example: nnx-ppo train gymnax:CartPole-v1 --out runs/cartpole
    """

    env: tyro.conf.Positional[Annotated[str | None, option("ENV", default="none; a new run needs one")]] = None
    """Environment: gymnax:NAME, playground:NAME, brax:NAME, probe:NAME or package.module:function."""
    out: Annotated[pathlib.Path | None, option("RUN", default="none; a new run needs one")] = None
    """Run folder to make."""
    resume: Annotated[pathlib.Path | None, option("RUN", default="none")] = None
    """Run folder to go on with, from its newest checkpoint, exactly as if it had not stopped. Takes no other options
    but --total-steps and --no-cache: the rest is as it was."""
    total_steps: Annotated[int | None, option("INT", default="that of --ppo.total-steps")] = None
    """Environment steps of the whole run, short for --ppo.total-steps; with --resume, a higher total than before."""
    env_args: Annotated[Pairs, option("KEY=VALUE ...", default="none")] = dataclasses.field(default_factory=dict)
    """Options of the environment, values in Python's notation, e.g. max_steps_in_episode=100 'hide=(2,)'."""
    reward_scale: float = 1.0
    """Factor on the rewards that training sees; evaluations show them as they are."""
    train_episode_length: Annotated[int | None, option("INT", default="that of the environment")] = None
    """Time limit, in steps, of the episodes that training sees, for more starts; evaluations run as long as they
    are."""
    anneal_learning_rate: bool = False
    """Let the learning rate fall linearly to 0 at the end of the run."""
    seed: int = TrainConfig.seed
    """Seed of parameters, environments, exploration and minibatches."""
    network: NetworkConfig = dataclasses.field(default_factory=NetworkConfig)
    ppo: PPOConfig = dataclasses.field(default_factory=PPOConfig)
    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
    checkpoint_every_steps: Annotated[int | None, option("INT", default="one at every evaluation")] = None
    """Environment steps between two checkpoints."""
    keep_last: int | None = 3
    """Keep the newest so many checkpoints. With None here, and for the next two, all are kept."""
    keep_best: int | None = 1
    """Keep the so many checkpoints with the highest evaluation reward, of those saved at an evaluation."""
    keep_every: int | None = None
    """Keep the first checkpoint of every so many environment steps."""
    log: Annotated[tuple[Destination, ...], option("jsonl|tensorboard|wandb ...")] = ("jsonl",)
    """Where the training log goes, in the run folder; wandb also to the service, unless WANDB_MODE is offline."""
    video: int = 0
    """Videos of one episode, spread evenly over the run, in the folder videos; the environment must be able to draw."""
    cache: bool = True
    """Keep compiled programs on disk for the next run."""

    def run(self) -> None:
        """Train, and say where the run is and what to type next."""
        if self.resume is not None:
            self._require_nothing_else()
        elif self.env is None or self.out is None:
            raise ValueError(
                "train needs an environment and --out RUN, a folder to make (nnx-ppo train gymnax:CartPole-v1 --out "
                "runs/cartpole), or --resume RUN, to go on with a run."
            )
        if self.cache:
            enable_compilation_cache()
        if self.resume is not None:
            folder, _ = resume_run(self.resume, self.total_steps)
            _say_what_next(folder)
        elif self.out is not None:
            require_used(self.network)
            folder, _ = train_run(self._run_config(), self.out)
            _say_what_next(folder)

    def _require_nothing_else(self) -> None:
        given = [
            field.name
            for field in dataclasses.fields(self)
            if field.name not in WITH_RESUME and getattr(self, field.name) != _default(field)
        ]
        if given:
            names = ", ".join("ENV" if name == "env" else "--" + name.replace("_", "-") for name in given)
            raise ValueError(
                f"--resume goes on with a run as it was, and takes only --total-steps and --no-cache beside it, got "
                f"{names}: leave that out, or start a new run with --out."
            )

    def _run_config(self) -> RunConfig:
        every = self.checkpoint_every_steps
        if every is None:
            every = self.eval.every_steps if self.eval.enabled else TrainConfig.checkpoint_every_steps
        config = RunConfig(
            env=self.env or "",
            env_args=self.env_args,
            reward_scale=self.reward_scale,
            train_episode_length=self.train_episode_length,
            anneal_learning_rate=self.anneal_learning_rate,
            network=self.network,
            train=TrainConfig(ppo=self.ppo, eval=self.eval, seed=self.seed, checkpoint_every_steps=every),
            checkpoints=Retention(self.keep_last, self.keep_best, self.keep_every),
            log=self.log,
        )
        if self.total_steps is not None:
            config = with_total_steps(config, self.total_steps)
        video = self._video_config(config.train.ppo.total_steps)
        return dataclasses.replace(config, train=dataclasses.replace(config.train, video=video))

    def _video_config(self, total_steps: int) -> VideoConfig:
        if self.video < 0:
            raise ValueError(f"--video must be at least 0, got {self.video}.")
        if not self.video:
            return VideoConfig()
        every_steps = math.ceil(total_steps / self.video)
        return VideoConfig(enabled=True, every_steps=every_steps, episode_length=self.eval.max_episode_length)


def _default(field: "dataclasses.Field[Any]") -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _say_what_next(folder: RunFolder) -> None:
    commands = ["eval", "record", *(["plot"] if folder.metrics_file.exists() else [])]
    lines = [f"nnx-ppo {command} {shlex.quote(str(folder.path))}" for command in commands]
    stdout.print(f"Run: {folder.path}\nNext: " + "\n      ".join(lines), soft_wrap=True)
