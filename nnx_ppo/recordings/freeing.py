"""Giving freed memory back to the system at once, so that a long recording stays as small as a short one."""

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator

_M_MMAP_THRESHOLD = -3
_LARGE = 128 * 2**10
_LARGEST = 32 * 2**20


@contextlib.contextmanager
def returning_memory() -> Iterator[None]:
    """Let glibc return every large block as it is freed; other C libraries do so by themselves, or have their own ways.

    It begins with that, and then takes larger and larger blocks for small ones, of which it keeps a heap per thread.
    Chunks pass through many threads. Afterwards blocks count as large from the size that glibc itself goes up to.
    """
    adjust = _mallopt()
    adjust(_M_MMAP_THRESHOLD, _LARGE)
    try:
        yield
    finally:
        adjust(_M_MMAP_THRESHOLD, _LARGEST)


@functools.cache
def _mallopt() -> Callable[[int, int], object]:
    try:
        return ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return lambda parameter, value: None
