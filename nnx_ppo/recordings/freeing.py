"""Giving freed memory back to the system, so that a long recording stays as small as a short one."""

import ctypes
import functools
from collections.abc import Callable


def return_free_memory() -> None:
    """Let glibc return what was freed; other C libraries do so by themselves, and there this does nothing.

    Its allocator keeps a heap per thread. Chunks pass through many threads, and each would keep one.
    """
    _trim()(0)


@functools.cache
def _trim() -> Callable[[int], object]:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return lambda pad: None
