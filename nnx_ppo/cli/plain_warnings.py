"""Warnings of this package as one line for the reader of a terminal, without the file and line of our own code."""

import contextlib
import pathlib
import warnings
from collections.abc import Iterator
from typing import Any

import nnx_ppo
from nnx_ppo.cli.console import stderr

_PACKAGE = pathlib.Path(nnx_ppo.__file__).parent


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings that this package issues on standard error, each once, and those of others as Python does."""
    before, said = warnings.showwarning, set()

    def show(message: Any, category: Any, filename: str, *rest: Any, **named: Any) -> None:
        if not pathlib.Path(filename).is_relative_to(_PACKAGE):
            before(message, category, filename, *rest, **named)
        elif str(message) not in said:
            said.add(str(message))
            stderr.print(f"Warning: {message}", style="yellow", soft_wrap=True, highlight=False)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before
