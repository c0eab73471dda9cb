"""How words of the command line become values: numbers, and key=value pairs in Python's notation."""

import ast
from collections.abc import Sequence
from typing import Annotated, Any

from tyro.constructors import PrimitiveConstructorSpec


def parse_number(text: str) -> int | float:
    """Read a number; one without point and exponent stays an ``int``.

    Raises:
        ValueError: it is none.
    """
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise ValueError(f"expected a number such as 3, 0.5 or 1e-3, got {text!r}.")


def parse_float(text: str) -> float:
    """Read a number.

    Raises:
        ValueError: it is none.
    """
    return float(parse_number(text))


def parse_whole_number(text: str) -> int:
    """Read a whole number; ``2e6`` is one.

    Raises:
        ValueError: it is none.
    """
    try:
        number = parse_number(text)
    except ValueError:
        number = 0.5
    if isinstance(number, int) or number.is_integer():
        return int(number)
    raise ValueError(f"expected a whole number such as 800000 or 8e5, got {text!r}.")


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
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text


Pairs = Annotated[
    dict[str, Any],
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="KEY=VALUE ...",
        instance_from_str=lambda words: parse_pairs(words),
        is_instance=lambda instance: isinstance(instance, dict),
        str_from_instance=lambda pairs: [f"{key}={value!r}" for key, value in pairs.items()],
    ),
]
"""A dict given as ``key=value`` words."""


def require_counts(**options: int | None) -> None:
    """Refuse options that are below 1; ``None`` is one that was left out.

    Raises:
        ValueError: naming the option as it is typed.
    """
    for name, number in options.items():
        if number is not None and number < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {number}.")
