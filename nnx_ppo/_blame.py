"""Where in the user's own code something went wrong: file, line and source, out of the many frames of a traceback."""

import contextlib
import linecache
import pathlib
import sys
from types import CodeType
from typing import Any

_LIBRARIES = frozenset({"nnx_ppo", "jax", "jaxlib", "flax", "optax", "orbax", "numpy", "beartype", "jaxtyping"})


def raised_at(error: BaseException) -> str:
    """Say where an exception came from: ``"at walk.py:12 in step: x = x + b"``.

    The deepest frame counts that belongs neither to this package nor to JAX and the like nor to Python itself; where
    the exception itself has none, that of its cause.

    Returns:
        An empty string where no frame is left.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if where := _deepest_frame(link):
            return where
        link = link.__cause__ or link.__context__
    return ""


def defined_at(function: Any) -> str:
    """File and line of a function of the user's, ``"walk.py:8"``; empty for those of libraries, and where unknown."""
    function = getattr(function, "__func__", function)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or _is_library(getattr(function, "__module__", None) or "", code):
        return ""
    return f"{_short(code.co_filename)}:{code.co_firstlineno}"


def _deepest_frame(error: BaseException) -> str:
    where, trace = "", error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if not _is_library(frame.f_globals.get("__name__", ""), frame.f_code):
            source = linecache.getline(frame.f_code.co_filename, trace.tb_lineno, frame.f_globals).strip()
            place = f"at {_short(frame.f_code.co_filename)}:{trace.tb_lineno} in {frame.f_code.co_name}"
            where = f"{place}: {source}" if source else place
        trace = trace.tb_next
    return where


def _is_library(module: str, code: CodeType) -> bool:
    package = module.partition(".")[0]
    # Beartype and dataclasses make functions whose files do not exist.
    made_up = code.co_filename.startswith("<") and not code.co_filename.startswith(("<stdin", "<ipython"))
    return made_up or package in _LIBRARIES or package in sys.stdlib_module_names


def _short(file: str) -> str:
    """A path as the user would type it."""
    with contextlib.suppress(OSError, ValueError):
        return str(pathlib.Path(file).relative_to(pathlib.Path.cwd()))
    return file
