"""How words of the command line become the values that the configuration takes: log levels, rates, key=value pairs."""

import ast
from collections.abc import Sequence
from typing import Annotated, Any

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from nnx_ppo.algorithms.config import LearningRate
from nnx_ppo.algorithms.config_json import format_logging_level, parse_logging_level
from nnx_ppo.algorithms.types import LoggingLevel

REGISTRY = ConstructorRegistry()
"""Rules for the types that ``tyro`` cannot read by itself."""


def parse_pairs(words: Sequence[str]) -> dict[str, Any]:
    """Read ``["max_steps_in_episode=100", "hide=(2,)"]``: values are Python literals, anything else stays a string.

    Raises:
        ValueError: naming the word that is not ``key=value``.
    """
    pairs: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ValueError(f"expected KEY=VALUE, got {word!r}; for example --env-args max_steps_in_episode=100.")
        pairs[key] = parse_literal(value)
    return pairs


def parse_literal(text: str) -> Any:
    """Read a Python literal (number, tuple, ``True``, ``None``, ...); text that is none is returned as it is."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


Pairs = Annotated[
    dict[str, Any],
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="KEY=VALUE",
        instance_from_str=lambda words: parse_pairs(words),
        is_instance=lambda instance: isinstance(instance, dict),
        str_from_instance=lambda pairs: [f"{key}={value!r}" for key, value in pairs.items()],
    ),
]
"""A dict given as ``key=value`` words."""


@REGISTRY.primitive_rule
def _logging_level_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    if info.type is not LoggingLevel:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="LEVEL[|LEVEL...]",
        instance_from_str=lambda words: parse_logging_level(words[0]),
        is_instance=lambda instance: isinstance(instance, LoggingLevel),
        str_from_instance=lambda level: [format_logging_level(level)],
    )


@REGISTRY.primitive_rule
def _learning_rate_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    # An optax schedule cannot be written on a command line: of the union, the number is left.
    if info.type != LearningRate:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="FLOAT",
        instance_from_str=lambda words: float(words[0]),
        is_instance=lambda instance: isinstance(instance, float | int),
        str_from_instance=lambda rate: [str(rate)],
    )


def require_counts(**options: int | None) -> None:
    """Refuse options that are below 1; ``None`` is one that was left out.

    Raises:
        ValueError: naming the option as it is typed.
    """
    for name, number in options.items():
        if number is not None and number < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {number}.")
