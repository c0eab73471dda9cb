"""How the library compiles: matrix products in the precision of their inputs, rare programs quickly."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax


def full_precision(function: Callable[..., Any]) -> Callable[..., Any]:
    """Trace ``function`` with float32 matrix products in float32, unless the user chose otherwise.

    GPUs round the inputs of a product to TF32 (10 bits) by default, and differently for one step than for a whole
    trajectory: the replay of a rollout would then agree with it to 1e-4 only. ``jax_default_matmul_precision`` is
    respected where it is set.
    """

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        # The attribute is unknown to type checkers.
        chosen = getattr(jax.config, "jax_default_matmul_precision") is not None  # noqa: B009
        with contextlib.nullcontext() if chosen else jax.default_matmul_precision("highest"):
            return function(*args)

    return call


def quick_jit(function: Callable[..., Any]) -> Any:
    """``jax.jit`` for a program that runs now and then: start states, evaluations, recordings, films.

    Matrix products are those of :func:`full_precision`. On CPU, compiling a simulator takes longer than such a program
    ever runs, so the compiler is told to spend less. What the program computes is the same; the training iteration,
    which runs all the time, is compiled in full.
    """
    function = full_precision(function)
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
