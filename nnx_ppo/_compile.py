"""Compilation of programs that run rarely."""

import functools
from collections.abc import Callable
from typing import Any

import jax


def quick_jit(function: Callable[..., Any]) -> Any:
    """``jax.jit`` for a program that runs now and then: start states, evaluations, recordings, films.

    On CPU, compiling a simulator takes longer than such a program ever runs, so the compiler is told to spend less.
    What the program computes is the same; the training iteration, which runs all the time, is compiled in full.
    """
    full, quick = jax.jit(function), jax.jit(function, compiler_options=_quick_options())

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        try:
            return quick(*args)
        except ValueError as error:
            # Inside another traced function, JAX takes no options: there the outer program decides.
            if "compiler_options" not in str(error):
                raise
            return full(*args)

    call.lower = quick.lower  # type: ignore[attr-defined]
    return call


@functools.cache
def _quick_options() -> dict[str, Any] | None:
    if jax.default_backend() != "cpu":
        return None
    optimize_less: dict[str, Any] = {"xla_backend_optimization_level": 1}
    for options in ({"xla_cpu_use_fusion_emitters": False} | optimize_less, optimize_less):
        try:
            jax.jit(lambda x: x, compiler_options=options).lower(0.0).compile()
        except (jax.errors.JaxRuntimeError, ValueError):  # XLA versions differ in the options that they know
            continue
        return options
    return None
