"""Entry point: reads the command line, runs one command, and turns known errors into one readable panel."""

import os
import pathlib
import sys
import traceback
from collections.abc import Sequence

import tyro
from rich.panel import Panel
from rich.text import Text

import nnx_ppo
from nnx_ppo.cli.check import Check
from nnx_ppo.cli.console import stderr
from nnx_ppo.cli.demo import Demo
from nnx_ppo.cli.eval import Eval
from nnx_ppo.cli.inspect import Inspect
from nnx_ppo.cli.lesion import Lesion
from nnx_ppo.cli.parsing import REGISTRY
from nnx_ppo.cli.plot import Plot
from nnx_ppo.cli.record import Record
from nnx_ppo.cli.report import Report
from nnx_ppo.cli.signals import Interrupted
from nnx_ppo.cli.train import Train

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
TRACEBACK_VARIABLE = "NNX_PPO_TRACEBACK"

PACKAGE = pathlib.Path(nnx_ppo.__file__).parent
COMMANDS = {
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
        SystemExit: with 2 after a mistake in what was asked for, with 130 after Ctrl-C, 143 after SIGTERM, and 0 after
            ``--help``.
    """
    # A console script, unlike `python -m`, does not look for modules in the folder that it is called from.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            COMMANDS, prog="nnx-ppo", description="PPO for stateful networks.", args=args, registry=REGISTRY
        )
        command.run()
    except KeyboardInterrupt as error:
        stderr.print("\n".join(["Interrupted.", *_notes(error)]), soft_wrap=True)
        sys.exit(128 + error.signum if isinstance(error, Interrupted) else EXIT_INTERRUPTED)
    except (ValueError, TypeError, ImportError, OSError, FloatingPointError) as error:
        if not _is_message(error):
            raise
        if os.environ.get(TRACEBACK_VARIABLE):
            traceback.print_exc()
        stderr.print(_panel(error))
        sys.exit(EXIT_USER_ERROR)


def _is_message(error: Exception) -> bool:
    """Whether an error tells the user something: this package raised it, or the operating system did.

    An error that was raised deeper is a bug, here or elsewhere, and keeps its traceback.
    """
    if isinstance(error, OSError):
        return True
    raised_in = pathlib.Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    return raised_in.is_relative_to(PACKAGE)


def _panel(error: Exception) -> Panel:
    hint = f"Set {TRACEBACK_VARIABLE}=1 to see where this was raised."
    message = "\n".join([str(error) or type(error).__name__, *_notes(error)])
    return Panel(Text(message), title=type(error).__name__, subtitle=hint, border_style="red", title_align="left")


def _notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])
