"""``nnx-ppo train``: train a policy and leave a run folder."""

import dataclasses
import pathlib
from typing import Any

import tyro

from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig
from nnx_ppo.algorithms.ppo import train_ppo
from nnx_ppo.cli.compilation_cache import enable_compilation_cache
from nnx_ppo.cli.console import stderr, stdout
from nnx_ppo.cli.networks import NetworkConfig, build_network
from nnx_ppo.cli.parsing import Pairs
from nnx_ppo.cli.progress import REWARD, TrainingProgress
from nnx_ppo.cli.run_config import RunConfig
from nnx_ppo.cli.run_folder import RunFolder
from nnx_ppo.envs import make_env
from nnx_ppo.networks.types import StatefulModule
from nnx_ppo.wrappers import RewardScalingWrapper


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
    seed: int = TrainConfig.seed
    """Seed of parameters, environments, exploration and minibatches."""
    network: NetworkConfig = dataclasses.field(default_factory=NetworkConfig)
    ppo: PPOConfig = dataclasses.field(default_factory=PPOConfig)
    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
    cache: bool = True
    """Keep compiled programs on disk for the next run."""

    def run(self) -> None:
        """Train, and say where the run is and what to type next."""
        if self.cache:
            enable_compilation_cache()
        train_config = TrainConfig(ppo=self.ppo, eval=self.eval, seed=self.seed)
        config = RunConfig(self.env, self.env_args, self.reward_scale, self.network, train_config)
        folder, _ = train_run(config, self.out)
        stdout.print(f"Run: {folder.path}", soft_wrap=True)
        stdout.print(f"Next: nnx-ppo eval {folder.path}", soft_wrap=True)
        stdout.print(f"      nnx-ppo record {folder.path}", soft_wrap=True)


def train_run(config: RunConfig, out: pathlib.Path) -> tuple[RunFolder, StatefulModule]:
    """Train what ``config`` describes, and write the run folder ``out``.

    However training ends, the policy of the last finished iteration is saved.

    Args:
        config: the run.
        out: folder to make.

    Returns:
        The run folder and the trained network.

    Raises:
        ValueError: the folder is in use, or environment, network and configuration do not fit.
        KeyboardInterrupt: after Ctrl-C, once the policy is saved.
    """
    env = make_env(config.env, **config.env_args)
    network = build_network(config.network, env, config.train.seed)
    folder = RunFolder.create(out, config)
    steps_done = 0

    def log(metrics: dict[str, Any], steps: int) -> None:
        nonlocal steps_done
        steps_done = steps
        folder.append_metrics(metrics, steps)
        progress.log(metrics, steps)

    try:
        with TrainingProgress(config.train.ppo.total_steps) as progress:
            result = train_ppo(
                RewardScalingWrapper(env, config.reward_scale),
                network,
                config.train,
                log_fn=log,
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
