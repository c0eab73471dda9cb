"""Entry point: reads the command line, runs one command, and turns known errors into one readable panel."""

import os
import pathlib
import platform
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import tyro
from rich.panel import Panel
from rich.text import Text

import nnx_ppo
from nnx_ppo._versions import package_version
from nnx_ppo.cli.check import Check
from nnx_ppo.cli.console import EXIT_BROKEN_PIPE, prepare_streams, stderr, stdout, writing
from nnx_ppo.cli.demo import Demo
from nnx_ppo.cli.eval import Eval
from nnx_ppo.cli.inspect import Inspect
from nnx_ppo.cli.lesion import Lesion
from nnx_ppo.cli.options import REGISTRY
from nnx_ppo.cli.plot import Plot
from nnx_ppo.cli.record import Record
from nnx_ppo.cli.report import Report
from nnx_ppo.cli.signals import Interrupted, no_interrupt_is_lost
from nnx_ppo.cli.train import Train
from nnx_ppo.envs.errors import did_you_mean

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
TRACEBACK_VARIABLE = "NNX_PPO_TRACEBACK"

PACKAGE = pathlib.Path(nnx_ppo.__file__).parent
PROGRAM = "nnx-ppo"
ABOUT = "PPO for stateful networks. What a command takes: nnx-ppo COMMAND --help."
COMMANDS: dict[str, Any] = {
    "train": Train,
    "eval": Eval,
    "record": Record,
    "inspect": Inspect,
    "check": Check,
    "lesion": Lesion,
    "plot": Plot,
    "report": Report,
    "demo": Demo,
}


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line.

    Args:
        args: the words after ``nnx-ppo``; ``None`` for those of the process.

    Raises:
        SystemExit: with 2 after a mistake in what was asked for, with 130 after Ctrl-C, 143 after SIGTERM, 141 where
            nobody reads the output any more, and 0 after ``--help`` and ``--version``.
    """
    _look_for_modules_here()
    prepare_streams()
    try:
        with no_interrupt_is_lost():
            command = _read(list(sys.argv[1:] if args is None else args))
            if command is not None:
                command.run()
    except KeyboardInterrupt as error:
        stderr.print("\n".join(["Interrupted.", *_notes(error)]), soft_wrap=True)
        sys.exit(128 + error.signum if isinstance(error, Interrupted) else EXIT_INTERRUPTED)
    except BrokenPipeError:
        sys.exit(EXIT_BROKEN_PIPE)
    except (ValueError, TypeError, ImportError, OSError, FloatingPointError) as error:
        if not _is_message(error):
            raise
        if os.environ.get(TRACEBACK_VARIABLE):
            traceback.print_exc()
        stderr.print(_panel(error))
        sys.exit(EXIT_USER_ERROR)


def _look_for_modules_here() -> None:
    # A console script, unlike `python -m`, does not look for modules in the folder that it is called from.
    try:
        here = os.getcwd()
    except FileNotFoundError:  # a folder that somebody has removed
        return
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)


def _read(words: list[str]) -> Any:
    """The command that the first word names; each is parsed by itself, so that messages are about it alone."""
    name = words[0] if words else "--help"
    if name == "--version":
        versions = ", ".join(f"{package} {package_version(package)}" for package in ("jax", "flax"))
        version = package_version("nnx-ppo") or "(not installed)"
        return stdout.print(f"nnx-ppo {version}, {versions}, Python {platform.python_version()}")
    if name not in COMMANDS and not name.startswith("-"):
        raise ValueError(f"there is no command {name!r}. {did_you_mean(name, COMMANDS)}")
    with writing(sys.stdout):
        try:
            if name in COMMANDS:
                return tyro.cli(COMMANDS[name], prog=f"{PROGRAM} {name}", args=words[1:], registry=REGISTRY)
            return tyro.extras.subcommand_cli_from_dict(
                COMMANDS, prog=PROGRAM, description=ABOUT, args=words or [name], registry=REGISTRY
            )
        finally:
            sys.stdout.flush()


def _is_message(error: Exception) -> bool:
    """Whether an error tells the user something: this package raised it, or the operating system did.

    An error that was raised deeper is a bug, here or elsewhere, and keeps its traceback.
    """
    if isinstance(error, OSError):
        return True
    raised_in = pathlib.Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    return raised_in.is_relative_to(PACKAGE)


def _panel(error: Exception) -> Panel:
    hint = f"{TRACEBACK_VARIABLE}=1 shows where"
    message = "\n".join([_message(error), *_notes(error)])
    return Panel(Text(message), title=type(error).__name__, subtitle=hint, border_style="red", title_align="left")


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])
