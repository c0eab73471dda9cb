"""The program ``nnx-ppo``: imports the package, which takes a second or two, so that Ctrl-C ends that in one line too.

It lies beside the package, since whatever lies in it is imported after the package itself.
"""

import os
import signal
import sys
from types import FrameType

EXIT_INTERRUPTED = 130


def main() -> None:
    """Import the command line, and run it."""
    before = signal.signal(signal.SIGINT, _give_up)
    from nnx_ppo.cli import main as run

    signal.signal(signal.SIGINT, before)
    run()


def _give_up(signum: int, frame: FrameType | None) -> None:
    # Not by an exception: what is being imported may catch it, and there is nothing to clean up yet.
    sys.stderr.write("Interrupted.\n")
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
