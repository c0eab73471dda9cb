"""Options as ``--help`` shows them: what to type for a value, and what an option left out stands for, in words."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from nnx_ppo.algorithms.config import LearningRate
from nnx_ppo.algorithms.config_json import format_logging_level, parse_logging_level
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.cli.field_docs import field_docs
from nnx_ppo.cli.parsing import parse_float, parse_number, parse_whole_number

NONE = "None"
PLAIN: tuple[tuple[Any, str, Callable[[str], Any]], ...] = (
    (int, "INT", parse_whole_number),
    (float, "FLOAT", parse_float),
    (int | float, "FLOAT", parse_number),
    (str, "TEXT", str),
    (Path, "PATH", Path),
)
"""Kinds of values: their type, their name in ``--help``, and how a word is read."""
REGISTRY = ConstructorRegistry()
"""Rules by which ``tyro`` reads and shows the types of options."""


def option(value: str | None = None, *, default: str | None = None) -> Any:
    """Annotation of an option whose type does not say enough.

    Args:
        value: what to type for its value, e.g. ``"RUN"``; by default the name of the type.
        default: what it is when it is left out, in words; by default its default value.
    """
    return tyro.conf.arg(metavar=value, help_behavior_hint=None if default is None else f"(default: {default})")


RunPath = tyro.conf.Positional[Annotated[Path, option("RUN")]]
"""The run folder that a command is about."""
RecordingPath = tyro.conf.Positional[Annotated[Path, option("RECORDING")]]
"""The recording that a command is about."""


@REGISTRY.primitive_rule
def _plain_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    for kind, name, read in PLAIN:
        if info.type == kind:
            return _one_word(name, read)
        if info.type == kind | None:
            return _one_word(f"{name}|{NONE}", _or_none(read))
    return None


def _or_none(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda word: None if word == NONE else read(word)


@REGISTRY.primitive_rule
def _percentiles_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    if info.type != tuple[int | float, ...] | None:
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=f"PERCENT ...|{NONE}",
        instance_from_str=lambda words: None if words == [NONE] else tuple(map(parse_number, words)),
        is_instance=lambda instance: instance is None or isinstance(instance, tuple),
        str_from_instance=lambda numbers: [NONE] if numbers is None else [str(number) for number in numbers],
    )


@REGISTRY.primitive_rule
def _logging_level_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    if info.type is not LoggingLevel:
        return None
    return _one_word("LEVEL[|LEVEL...]", parse_logging_level, format_logging_level)


@REGISTRY.primitive_rule
def _learning_rate_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    # An optax schedule cannot be written on a command line: of the union, the number is left.
    return _one_word("FLOAT", parse_float) if info.type == LearningRate else None


def _one_word(name: str, read: Callable[[str], Any], write: Callable[[Any], str] = str) -> Any:
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=name,
        instance_from_str=lambda words: read(words[0]),
        is_instance=lambda instance: True,
        str_from_instance=lambda instance: [write(instance)],
    )


@REGISTRY.struct_rule
def _config_rule(info: StructTypeInfo) -> StructConstructorSpec | None:
    """The fields of our own dataclasses, documented without markup."""
    if not dataclasses.is_dataclass(info.type) or not info.type.__module__.startswith("nnx_ppo."):
        return None
    docs, types = field_docs(info.type), get_type_hints(info.type, include_extras=True)
    fields = (
        StructFieldSpec(name=f.name, type=types[f.name], default=_default(f, info.default), helptext=docs.get(f.name))
        for f in dataclasses.fields(info.type)
    )
    return StructConstructorSpec(instantiate=info.type, fields=tuple(fields))


def _default(field: "dataclasses.Field[Any]", instance: Any) -> Any:
    if dataclasses.is_dataclass(instance):
        return getattr(instance, field.name)
    if field.default is not dataclasses.MISSING:
        return field.default
    return tyro.MISSING if field.default_factory is dataclasses.MISSING else field.default_factory()
