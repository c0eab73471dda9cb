"""Whether an environment draws numbers outside of JAX: it would do so once, when it is compiled, and never again."""

import contextlib
import functools
import re
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nnx_ppo._pytree import Identity
from nnx_ppo.envs.foreign import ForeignEnv
from nnx_ppo.envs.tracing import traced
from nnx_ppo.envs.wrapper import Wrapper

CHEAP_S = 0.2
"""Seconds of processor time that tracing may have taken for an environment to be traced further."""
MOST_TRACES = 8
"""Of a function; fewer where they take more than :data:`CHEAP_S`."""
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_ADVICE = (
    "It does so once, when JAX compiles, and the number is then the same in all environments and episodes: draw it by "
    "jax.random from the key, or keep it in the state."
)


class Budget:
    """Whether tracing an environment was cheap; made before it is traced for the first time."""

    def __init__(self) -> None:
        # Of this thread, so that it does not depend on what else the machine does.
        self._start = time.thread_time()

    def is_left(self) -> bool:
        """Whether no more than :data:`CHEAP_S` has passed."""
        return time.thread_time() - self._start <= CHEAP_S


def warn_of_host_randomness(env: Any, action: Any, budget: Budget) -> None:
    """Warn where ``reset`` or ``step`` of the user's draws from NumPy, or is another program each time it is traced.

    Looked at once per environment, and only where tracing is cheap. The clock shows only if what is made of it changes
    within milliseconds.

    Args:
        env: a single environment that keeps the protocol, wrapped or not.
        action: tree of ``jax.ShapeDtypeStruct``.
        budget: made before the environment was traced.
    """
    if _looks_at(Identity(env)) or not budget.is_left():
        return
    key = jax.eval_shape(lambda: jax.random.key(0))
    for level in _of_the_user(env):
        calls: list[tuple[str, Any, tuple[Any, ...]]] = [("reset", level.reset, (key,))]
        with contextlib.suppress(Exception):  # a wrapper may have changed what its inner environment takes
            calls.append(("step", level.step, (jax.eval_shape(traced(level).reset, key), action)))
        for name, function, arguments in calls:
            if fault := _fault(function, arguments):
                warnings.warn(f"{type(level).__name__}.{name} {fault} {_ADVICE}", stacklevel=1)


def _looks_at(env: Identity) -> bool:
    """Note that an environment is looked at; returns whether it was before."""
    looks = _looks(env)
    looks.append(None)
    return len(looks) > 1


@functools.lru_cache(maxsize=64)
def _looks(env: Identity) -> list[None]:
    return []


def _of_the_user(env: Any) -> Iterator[Any]:
    """The environment and those inside it that are not the library's own."""
    while True:
        if type(env).__module__.partition(".")[0] != "nnx_ppo":
            yield env
        if not isinstance(env, Wrapper) or isinstance(env, ForeignEnv):
            return
        env = env.env


def _fault(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str | None:
    before, budget = _where_numpy_stands(), Budget()
    with contextlib.suppress(Exception):
        first = _program(function, arguments)
        if _where_numpy_stands() != before:
            return "draws numbers of numpy.random."
        # A number out of two is often the one before.
        for _ in range(MOST_TRACES - 1):
            if _program(function, arguments) != first:
                return (
                    "is another program each time that it is traced: it reads a random number of the host, the clock, "
                    "or an attribute that it changes."
                )
            if not budget.is_left():
                break
    return None


def _where_numpy_stands() -> tuple[Any, ...]:
    kind, numbers, *rest = np.random.get_state(legacy=True)
    return kind, np.asarray(numbers).tobytes(), *rest


def _program(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, list[bytes]]:
    # A new function each time, since JAX remembers the traces of those that it knows.
    jaxpr = jax.make_jaxpr(lambda *args: function(*args))(*arguments)
    return _ADDRESS.sub("", str(jaxpr.jaxpr)), [_bytes(const) for const in jaxpr.consts]


def _bytes(const: Any) -> bytes:
    if hasattr(const, "dtype") and jnp.issubdtype(const.dtype, jax.dtypes.prng_key):
        const = jax.random.key_data(const)
    return np.asarray(const).tobytes()
