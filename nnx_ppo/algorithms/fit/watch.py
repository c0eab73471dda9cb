"""Notes every call of every module in a copy of a network, so that a fault can be laid at the right module's door."""

import contextlib
import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from nnx_ppo._blame import defined_at
from nnx_ppo.networks.naming import named_modules
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput

METHODS = ("initialize_state", "reset_state", "__call__", "unroll", "update_statistics")
_PLACE = "_watched_place"


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a module that returned.

    Attributes:
        module: who it was, ready for a message: ``"Module 'memory' (Leaky, nets.py:8)"``.
        method: one of :data:`METHODS`.
        args: what it was given.
        result: what it returned.
    """

    module: str
    method: str
    args: tuple[Any, ...]
    result: Any

    @property
    def lead(self) -> tuple[int, ...]:
        """Leading axes of what a step (``[B]``) or a sequence (``[T, B]``) was given."""
        if self.method == "unroll":
            return jnp.shape(self.args[2])
        leaves = jax.tree.leaves(self.args[1])
        return jnp.shape(leaves[0])[:1] if leaves else ()


class Watch:
    """What was noted; hashable by identity, since modules hold it as static data.

    Attributes:
        calls: in the order in which they returned, so that a module comes before those that contain it.
        raised: the innermost module and method that raised, and the method's function; ``None`` so far.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.raised: tuple[str, str, Callable[..., Any]] | None = None

    def put_on(self, network: StatefulModule) -> None:
        """Watch a network and all modules in it, which must be a copy that nobody else holds."""
        for path, module in named_modules(network).items():
            # A class that allows no other attributes or subclasses goes unwatched.
            with contextlib.suppress(Exception):
                setattr(module, _PLACE, _Place(self, title(path, module)))
                object.__setattr__(module, "__class__", _watched(type(module)))

    def first(self, is_at_fault: Callable[[Call], bool], *methods: str) -> Call | None:
        """The first call that is at fault, among those of some methods that returned the kind of thing they should."""
        steps = ("__call__", "unroll")
        chosen = [call for call in self.calls if call.method in methods]
        proper = [c for c in chosen if c.method not in steps or isinstance(c.result, StatefulModuleOutput)]
        return next((call for call in proper if is_at_fault(call)), None)


def title(path: str, module: StatefulModule) -> str:
    """Who a module is: its path, its class, and where the user wrote it."""
    where = defined_at(type(module).__call__)
    name = type(module).__name__ + (f", {where}" if where else "")
    return f"Module {path!r} ({name})" if path else f"The network ({name})"


@dataclasses.dataclass(frozen=True, eq=False)
class _Place:
    watch: Watch
    title: str


@functools.cache
def _watched(kind: type[StatefulModule]) -> type[StatefulModule]:
    """The same class, with notes; a subclass, so that the module is still what anybody may ask it to be."""
    methods = {name: _noting(getattr(kind, name), name) for name in METHODS}
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # said already when the user defined the class
        metaclass: Any = type(kind)
        return metaclass(kind.__name__, (kind,), methods | names)


def _noting(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        place: _Place = getattr(self, _PLACE)
        try:
            result = function(self, *args, **kwargs)
        except Exception:
            place.watch.raised = place.watch.raised or (place.title, name, function)
            raise
        place.watch.calls.append(Call(place.title, name, _in_order(function, self, args, kwargs), result))
        return result

    return call


def _in_order(
    function: Callable[..., Any], module: Any, args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, ...]:
    """The arguments of a call in the order of the signature, without the module itself."""
    if not named:
        return args
    return tuple(inspect.signature(function).bind(module, *args, **named).arguments.values())[1:]
