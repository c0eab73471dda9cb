"""Whether a user's function takes the arguments that it will be called with, found out before it is needed."""

import inspect
from typing import Any


def require_call(name: str, function: Any, *arguments: str, **named: Any) -> None:
    """Refuse a function that cannot be called as it will be. One that does not tell its signature is let through.

    Args:
        name: what the user knows the function as, ``"log_fn"``.
        function: not called here.
        *arguments: names of the positional arguments, to say what they are.
        **named: keyword arguments.

    Raises:
        TypeError: it is no function, or takes other arguments; says how it will be called and how it is defined.
    """
    call = f"{name}({', '.join([*arguments, *(f'{key}={value!r}' for key, value in named.items())])})"
    if not callable(function):
        raise TypeError(f"{name} must be a function, which is called as {call}, got {function!r}.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments, **named)
    except TypeError as error:
        raise TypeError(
            f"{name} is called as {call}, but it is {_title(function)}{signature} ({error}): give it what it takes, or "
            "let it take these arguments."
        ) from None


def _title(function: Any) -> str:
    return getattr(function, "__name__", None) or type(function).__name__
