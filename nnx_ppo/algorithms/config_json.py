"""Configurations as JSON and back."""

import json
from typing import Any

import cattrs
from cattrs.preconf.json import make_converter

from nnx_ppo.algorithms.config import LearningRate, TrainConfig
from nnx_ppo.algorithms.types import LoggingLevel


def parse_logging_level(text: str) -> LoggingLevel:
    """Read ``"LOSSES|GRAD_NORM"``.

    Raises:
        ValueError: naming the unknown level and all known ones.
    """
    level = LoggingLevel.NONE
    for name in text.split("|"):
        if name.strip() not in LoggingLevel.__members__:
            known = ", ".join(LoggingLevel.__members__)
            raise ValueError(f"{name.strip()!r} is no logging level; combine these with |: {known}.")
        level |= LoggingLevel[name.strip()]
    return level


def format_logging_level(level: LoggingLevel) -> str:
    """Write a level as :func:`parse_logging_level` reads it."""
    exact = [name for name, member in LoggingLevel.__members__.items() if member == level]
    return exact[0] if exact else "|".join(str(member.name) for member in level)


class UnsavedSchedule:
    """Stands where a learning rate schedule stood that a file cannot hold.

    Attributes:
        description: what it was, as text.
    """

    def __init__(self, description: str):
        self.description = description

    def __call__(self, count: Any) -> Any:
        """Refuse.

        Raises:
            ValueError: always; a schedule has to be given again.
        """
        raise ValueError(
            f"the learning rate was a schedule ({self.description}), which no file can hold: give it again, "
            "dataclasses.replace(config.ppo, learning_rate=...)."
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnsavedSchedule) and other.description == self.description

    def __hash__(self) -> int:
        return hash(self.description)


def converter(*, forbid_extra_keys: bool = False) -> cattrs.Converter:
    """A ``cattrs`` converter that knows logging levels and learning rates."""
    result = make_converter(forbid_extra_keys=forbid_extra_keys)
    result.register_unstructure_hook(LoggingLevel, format_logging_level)
    result.register_structure_hook(LoggingLevel, lambda text, _: parse_logging_level(text))
    result.register_unstructure_hook_func(lambda kind: kind == LearningRate, _rate_to_json)
    result.register_structure_hook_func(lambda kind: kind == LearningRate, lambda rate, _: _rate_from_json(rate))
    return result


def config_to_json(config: Any) -> Any:
    """What JSON can hold of a configuration: a :class:`TrainConfig`, or what JSON can hold anyway.

    Raises:
        TypeError: it is neither.
    """
    data = {"TrainConfig": converter().unstructure(config)} if isinstance(config, TrainConfig) else config
    try:
        # As it will be read: tuples are lists, and keys strings.
        return json.loads(json.dumps(data, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TypeError(f"config must be a TrainConfig or what JSON can hold, got {config!r} ({error}).") from error


def config_from_json(data: Any) -> Any:
    """Undo :func:`config_to_json`; fields that this version does not know are left out.

    Raises:
        ValueError: a value is refused.
    """
    if not (isinstance(data, dict) and set(data) == {"TrainConfig"}):
        return data
    try:
        return converter().structure(data["TrainConfig"], TrainConfig)
    except cattrs.BaseValidationError as error:
        raise ValueError("; ".join(cattrs.transform_error(error, path="config"))) from error


def _rate_to_json(rate: Any) -> Any:
    return {"schedule": getattr(rate, "__qualname__", type(rate).__qualname__)} if callable(rate) else float(rate)


def _rate_from_json(rate: Any) -> Any:
    return UnsavedSchedule(rate["schedule"]) if isinstance(rate, dict) else float(rate)
