"""Everything that defines a run, as one frozen dataclass, to JSON and back."""

import dataclasses
import json
import math
from typing import Any

import cattrs
from cattrs.preconf.json import make_converter
from cattrs.v import format_exception

from nnx_ppo.algorithms.config import LearningRate, TrainConfig
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.cli.networks import NetworkConfig
from nnx_ppo.cli.parsing import format_logging_level, parse_logging_level


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
    """

    env: str
    env_args: dict[str, Any] = dataclasses.field(default_factory=dict)
    reward_scale: float = 1.0
    train_episode_length: int | None = None
    anneal_learning_rate: bool = False
    network: NetworkConfig = dataclasses.field(default_factory=NetworkConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.reward_scale) and self.reward_scale > 0):
            raise ValueError(f"reward_scale must be a finite number above 0, got {self.reward_scale!r}.")
        if self.train_episode_length is not None and self.train_episode_length < 1:
            raise ValueError(f"train_episode_length must be at least 1, or None, got {self.train_episode_length!r}.")


def to_json(config: RunConfig) -> str:
    """Write a configuration as indented JSON.

    Raises:
        TypeError: a value has no JSON form, for example a learning rate schedule.
    """
    return json.dumps(_converter().unstructure(config), indent=2)


def from_json(text: str) -> RunConfig:
    """Read what :func:`to_json` wrote.

    Raises:
        ValueError: listing each field that is unknown, missing or refused, with its path.
    """
    try:
        return _converter().structure(json.loads(text), RunConfig)
    except cattrs.BaseValidationError as error:
        raise ValueError("; ".join(cattrs.transform_error(error, path="config", format_exception=_format))) from error


def _converter() -> cattrs.Converter:
    converter = make_converter(forbid_extra_keys=True)
    converter.register_unstructure_hook(LoggingLevel, format_logging_level)
    converter.register_structure_hook(LoggingLevel, lambda text, _: parse_logging_level(text))
    converter.register_unstructure_hook_func(lambda kind: kind == LearningRate, _rate_to_json)
    converter.register_structure_hook_func(lambda kind: kind == LearningRate, lambda rate, _: float(rate))
    return converter


def _format(error: BaseException, kind: type | None) -> str:
    return str(error) if isinstance(error, ValueError) else format_exception(error, kind)


def _rate_to_json(rate: Any) -> float:
    if callable(rate):
        raise TypeError("config.json holds a constant learning rate only; train with a schedule from Python.")
    return float(rate)
