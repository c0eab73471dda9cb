"""``nnx-ppo eval``: how good the policy of a run is."""

import dataclasses
import pathlib

import tyro
from rich.table import Table

from nnx_ppo.algorithms.rollout import eval_rollout
from nnx_ppo.cli.compilation_cache import enable_compilation_cache
from nnx_ppo.cli.console import stdout
from nnx_ppo.cli.restore import restore_run
from nnx_ppo.networks._rng import as_key

PERCENTILES = (0, 25, 50, 75, 100)


@dataclasses.dataclass(frozen=True)
class Eval:
    """Evaluate the final policy of a run, without exploration."""

    run_folder: tyro.conf.Positional[pathlib.Path]
    """Folder that nnx-ppo train made."""
    episodes: int = 64
    """Episodes, run in parallel."""
    max_steps: int | None = None
    """Steps after which an episode is cut; by default as in the training's evaluations."""
    seed: int = 0
    """Seed of the start states."""
    cache: bool = True
    """Keep compiled programs on disk for the next run."""

    def run(self) -> None:
        """Evaluate, and print a table of reward and lifespan."""
        if self.episodes < 1 or (self.max_steps is not None and self.max_steps < 1):
            raise ValueError(
                f"--episodes and --max-steps must be at least 1, got {self.episodes} and {self.max_steps}."
            )
        if self.cache:
            enable_compilation_cache()
        folder, config, env, network = restore_run(self.run_folder)
        length = self.max_steps or config.train.eval.max_episode_length
        metrics = eval_rollout(env, network, self.episodes, length, as_key(self.seed), logging_percentiles=PERCENTILES)
        table = Table("metric", "value", title=f"{config.env}, {self.episodes} episodes, {folder.path}")
        table.columns[1].justify = "right"
        for name, value in metrics.items():
            table.add_row(name, f"{float(value):,.3f}")
        stdout.print(table)
