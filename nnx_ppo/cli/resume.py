"""The newest checkpoint that can be read, of a run that is to go on or whose policy is wanted."""

import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

from nnx_ppo.algorithms.checkpoint_files import DamagedCheckpointError, all_checkpoints
from nnx_ppo.algorithms.checkpoint_loading import load_checkpoint
from nnx_ppo.algorithms.config import TrainConfig
from nnx_ppo.algorithms.update import new_optimizer
from nnx_ppo.cli.console import stderr
from nnx_ppo.cli.run_config import RunConfig, annealed
from nnx_ppo.cli.run_description import naming_changes
from nnx_ppo.networks.types import StatefulModule

T = TypeVar("T")


def newest(directory: pathlib.Path, load: Callable[[pathlib.Path], T]) -> T | None:
    """What ``load`` makes of the newest checkpoint that is not damaged; damaged ones are named and passed over.

    Returns:
        ``None`` where there is no checkpoint at all.

    Raises:
        DamagedCheckpointError: there are checkpoints, and all are damaged.
    """
    found = all_checkpoints(directory)
    for path in found:
        try:
            return load(path)
        except DamagedCheckpointError as error:
            stderr.print(f"Passed over: {error}", style="yellow", soft_wrap=True)
    if found:
        names = ", ".join(path.name for path in found)
        raise DamagedCheckpointError(f"none of the checkpoints in {directory} can be read: {names}.")
    return None


def load_newest(directory: pathlib.Path, config: RunConfig, network: StatefulModule) -> dict[str, Any] | None:
    """Load the newest checkpoint of a run to go on from; see :func:`newest`."""
    ppo = trained_with(config).ppo
    optimizer = new_optimizer(network, ppo.learning_rate, ppo.gradient_clipping, ppo.weight_decay)

    def load(path: pathlib.Path) -> dict[str, Any]:
        with naming_changes(path, config):
            return load_checkpoint(path, network, optimizer)

    return newest(directory, load)


def trained_with(config: RunConfig) -> TrainConfig:
    """The training configuration with the learning rate that is in effect."""
    return annealed(config.train) if config.anneal_learning_rate else config.train


def rates_at(steps: int, *configs: RunConfig) -> list[float]:
    """Learning rate after ``steps`` environment steps under each configuration."""
    rates = []
    for config in configs:
        ppo = trained_with(config).ppo
        count = steps // ppo.steps_per_iteration * ppo.n_epochs * ppo.n_minibatches
        rate = ppo.learning_rate
        rates.append(float(rate(count)) if callable(rate) else float(rate))
    return rates
