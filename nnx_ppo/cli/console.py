"""The two consoles of the command line: results on standard output, progress and errors on standard error.

A reader of results that has gone away (``nnx-ppo inspect R | head -1``) ends the command, without a word; a reader of
progress may go, and the command goes on.
"""

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console

EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE
TABLE_WIDTH = 80
"""Characters that tables with many columns need."""


class _OutputConsole(Console):
    def print(self, *objects: Any, **options: Any) -> None:
        with writing(self.file):
            super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        _silence(self.file)
        if not self.stderr:
            raise SystemExit(EXIT_BROKEN_PIPE)


# What is printed holds paths and names of the user's, in which brackets and colons are no markup.
PLAIN: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
stdout = _OutputConsole(**PLAIN)
stderr = _OutputConsole(**PLAIN, stderr=True)


def print_table(table: Any) -> None:
    """Print to standard output; on a screen that is narrower than tables need, lines break, but nothing is left out."""
    (stdout if stdout.width >= TABLE_WIDTH else _OutputConsole(**PLAIN, width=TABLE_WIDTH)).print(table)


def prepare_streams() -> None:
    """Make printing safe: into nothing where the process was started without a stream, and in any encoding."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (it stays open as long as the process)
        elif isinstance(stream, io.TextIOWrapper) and "utf" not in stream.encoding.lower():
            stream.reconfigure(errors="replace")


@contextlib.contextmanager
def writing(stream: Any) -> Iterator[None]:
    """Say of an error of a stream which one it is, and drop what it holds, which Python would write again at exit."""
    try:
        yield
    except OSError as error:
        error.add_note(f"Standard {'output' if stream is sys.stdout else 'error'} cannot be written.")
        _silence(stream)
        raise


def _silence(stream: Any) -> None:
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
