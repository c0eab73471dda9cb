"""A signal that arrives where Python cannot raise it is sent again; other errors there are reported as ever."""

import gc
import signal
import sys
import time

import pytest

from nnx_ppo.cli.signals import Interrupted, no_interrupt_is_lost


@pytest.fixture(autouse=True)
def interruptible():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Collected:
    """Raises while it is collected, once."""

    def __init__(self, error):
        self.error = error
        self.itself = self

    def __del__(self):
        raise self.error


def collect_and_go_on(error, seconds):
    Collected(error)
    gc.collect()
    time.sleep(seconds)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interrupted(signal.SIGINT)])
def test_ctrl_c_during_garbage_collection_still_ends_the_command(error):
    with no_interrupt_is_lost(), pytest.raises(KeyboardInterrupt):
        collect_and_go_on(error, seconds=30)


def test_the_same_signal_is_sent():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda signum, frame: seen.append(signum))
    try:
        with no_interrupt_is_lost():
            collect_and_go_on(Interrupted(signal.SIGTERM), seconds=0.5)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]


def test_other_errors_are_reported_as_ever(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: reported.append(lost.exc_type))
    with no_interrupt_is_lost():
        Collected(ValueError())
        gc.collect()
    assert reported == [ValueError]
    Collected(OSError())
    gc.collect()
    assert reported == [ValueError, OSError]
