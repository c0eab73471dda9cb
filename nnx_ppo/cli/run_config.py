"""Everything that defines a run, as one frozen dataclass, to JSON and back."""

import dataclasses
import json
import math
from typing import Any

import cattrs
import optax
from cattrs.v import format_exception

from nnx_ppo.algorithms.config import TrainConfig
from nnx_ppo.algorithms.config_json import converter
from nnx_ppo.algorithms.retention import Retention
from nnx_ppo.cli.networks import NetworkConfig


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """What ``eval`` and ``record`` need to rebuild the environment and the policy of a run.

    Attributes:
        env: name that :func:`nnx_ppo.envs.make_env` takes.
        env_args: its overrides, values that JSON can hold.
        reward_scale: factor on the rewards that training sees; evaluations show them as they are.
        train_episode_length: time limit of the episodes that training sees (cut, not terminated); evaluations run as
            long as they are. ``None`` for the environment's own.
        anneal_learning_rate: let the learning rate fall linearly to 0 at the end of the run.
        network: which network, and its sizes.
        train: the training configuration.
        checkpoints: which checkpoints to keep.
        log: where the training log goes.
    """

    env: str
    env_args: dict[str, Any] = dataclasses.field(default_factory=dict)
    reward_scale: float = 1.0
    train_episode_length: int | None = None
    anneal_learning_rate: bool = False
    network: NetworkConfig = dataclasses.field(default_factory=NetworkConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    checkpoints: Retention = dataclasses.field(default_factory=lambda: Retention(keep_last=3, keep_best=1))
    log: tuple[str, ...] = ("jsonl",)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.reward_scale) and self.reward_scale > 0):
            raise ValueError(f"reward_scale must be a finite number above 0, got {self.reward_scale!r}.")
        if self.train_episode_length is not None and self.train_episode_length < 1:
            raise ValueError(f"train_episode_length must be at least 1, or None, got {self.train_episode_length!r}.")


def with_total_steps(config: RunConfig, total_steps: int) -> RunConfig:
    """The same run with another number of environment steps."""
    ppo = dataclasses.replace(config.train.ppo, total_steps=total_steps)
    return dataclasses.replace(config, train=dataclasses.replace(config.train, ppo=ppo))


def annealed(config: TrainConfig) -> TrainConfig:
    """The same configuration with a learning rate that falls linearly to 0 at its last gradient step."""
    ppo = config.ppo
    if callable(ppo.learning_rate):
        raise TypeError("anneal_learning_rate needs a constant learning rate to start from, got a schedule.")
    iterations = -(-ppo.total_steps // ppo.steps_per_iteration)
    rate = optax.linear_schedule(ppo.learning_rate, 0.0, iterations * ppo.n_epochs * ppo.n_minibatches)
    return dataclasses.replace(config, ppo=dataclasses.replace(ppo, learning_rate=rate))


def to_json(config: RunConfig) -> str:
    """Write a configuration as indented JSON.

    Raises:
        TypeError: a value has no JSON form, for example a learning rate schedule.
    """
    if callable(config.train.ppo.learning_rate):
        raise TypeError("config.json holds a constant learning rate only; train with a schedule from Python.")
    return json.dumps(converter().unstructure(config), indent=2)


def from_json(text: str) -> RunConfig:
    """Read what :func:`to_json` wrote.

    Raises:
        ValueError: listing each field that is unknown, missing or refused, with its path.
    """
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError(f"a configuration is a JSON object, got {type(data).__name__}.")
        return converter(forbid_extra_keys=True).structure(data, RunConfig)
    except RecursionError as error:
        raise ValueError("the file is nested too deeply to be a configuration.") from error
    except cattrs.BaseValidationError as error:
        raise ValueError("; ".join(cattrs.transform_error(error, path="config", format_exception=_format))) from error


def _format(error: BaseException, kind: type | None) -> str:
    return str(error) if isinstance(error, ValueError) else format_exception(error, kind)
