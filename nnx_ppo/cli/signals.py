"""SIGINT and SIGTERM ask a run to end in good order: after the iteration that runs, with a checkpoint."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

from nnx_ppo.cli.console import stderr


class Interrupted(KeyboardInterrupt):
    """A signal ended the command.

    Attributes:
        signum: which one; the exit code is 128 more.
    """

    def __init__(self, signum: int):
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


SECONDS_TO_TRY_AGAIN = 0.05


@contextlib.contextmanager
def no_interrupt_is_lost() -> Iterator[None]:
    """Send a signal again that arrived where Python cannot raise an exception, as while JAX collects garbage."""
    before = sys.unraisablehook

    def hook(lost: Any) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            return before(lost)
        signum = getattr(lost.exc_value, "signum", signal.SIGINT)
        again = threading.Timer(SECONDS_TO_TRY_AGAIN, os.kill, (os.getpid(), signum))
        again.daemon = True
        again.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


class StopSignals:
    """Context manager that turns the first signal into a request, once there is something to save.

    A second signal, or one before :meth:`arm`, raises :class:`Interrupted` on the spot. Outside of the main thread,
    where Python lets nobody handle signals, nothing is changed.

    Attributes:
        signum: the signal that asked, ``None`` so far.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signum: int | None = None
        self._armed = False
        self._before: dict[int, Any] = {}

    def arm(self) -> None:
        """From now on there is something to save."""
        self._armed = True

    def requested(self) -> bool:
        """Whether the run is to end; an ``interrupt_fn`` of training."""
        return self.signum is not None

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            self._before = {signum: signal.signal(signum, self._handle) for signum in self.SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None or not self._armed:
            raise Interrupted(signum)
        self.signum = signum
        stderr.print(f"{signal.Signals(signum).name}: saving after this iteration. Once more ends the run at once.")
