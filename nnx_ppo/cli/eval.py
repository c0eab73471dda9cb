"""``nnx-ppo eval``: how good the policy of a run is."""

import dataclasses
from typing import Annotated, Any

from rich.table import Table

from nnx_ppo.algorithms.rollout import eval_rollout
from nnx_ppo.cli.checkpoint_choice import CheckpointChoice, Choice
from nnx_ppo.cli.compilation_cache import enable_compilation_cache
from nnx_ppo.cli.console import stderr, stdout
from nnx_ppo.cli.options import RunPath, option
from nnx_ppo.cli.parsing import require_counts
from nnx_ppo.envs.types import RLEnv
from nnx_ppo.networks._rng import as_key
from nnx_ppo.networks.types import StatefulModule
from nnx_ppo.recordings.progress import busy

PERCENTILES = (0, 25, 50, 75, 100)


@dataclasses.dataclass(frozen=True)
class Eval:
    """Evaluate the policy of a run, without exploration."""

    run_folder: RunPath
    """Folder that nnx-ppo train made."""
    checkpoint: Choice = dataclasses.field(default_factory=CheckpointChoice)
    episodes: int = 64
    """Episodes, run in parallel."""
    max_steps: Annotated[int | None, option("INT", default="as in the training's evaluations")] = None
    """Steps after which an episode is cut."""
    seed: int = 0
    """Seed of the start states."""
    cache: bool = True
    """Keep compiled programs on disk for the next run."""

    def run(self) -> None:
        """Evaluate, and print a table of reward and lifespan."""
        require_counts(episodes=self.episodes, max_steps=self.max_steps)
        if self.cache:
            enable_compilation_cache()
        folder, config, env, network, _ = self.checkpoint.restore(self.run_folder)
        length = self.max_steps or config.train.eval.max_episode_length
        metrics = evaluate(config.env, env, network, self.episodes, length, self.seed)
        stdout.print(f"{config.env}, {self.episodes:,} episodes, {folder.path}", soft_wrap=True)
        table = Table("metric", "value")
        table.columns[1].justify = "right"
        for name, value in metrics.items():
            table.add_row(name, f"{float(value):,.3f}")
        stdout.print(table)


def evaluate(
    env_name: str, env: RLEnv, network: StatefulModule, episodes: int, length: int, seed: int
) -> dict[str, Any]:
    """Evaluate with :data:`PERCENTILES`, and show that it goes on."""
    stderr.print(f"Compiling the evaluation of {env_name}.")
    with busy(f"evaluating {episodes:,} episodes"):
        return eval_rollout(env, network, episodes, length, as_key(seed), logging_percentiles=PERCENTILES)
