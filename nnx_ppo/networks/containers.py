"""Containers: how children are fed, and how their outputs are joined."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax.numpy as jnp

from nnx_ppo.networks._checks import describe_input
from nnx_ppo.networks._children import Container, Key, named_or_dict
from nnx_ppo.networks._dtypes import zero_loss
from nnx_ppo.networks.types import Carry, StatefulModule, StatefulModuleOutput


class Sequential(Container):
    """Children one after the other, each fed with the output of the one before.

    Args:
        layers: a list of modules (their keys are 0, 1, ...), or a dict or list of ``(name, module)`` pairs.

    ``s[0]`` reads by position whatever the keys are, ``s["encoder"]`` by name.
    """

    def __init__(
        self, layers: Iterable[StatefulModule] | Iterable[tuple[str, StatefulModule]] | Mapping[str, StatefulModule]
    ):
        if isinstance(layers, StatefulModule):
            raise TypeError(f"Sequential takes a list of layers, got one {type(layers).__name__}; put it in a list.")
        pairs: list[Any] = list(layers.items()) if isinstance(layers, Mapping) else list(layers)
        if not pairs:
            raise ValueError("Sequential needs at least one layer.")
        named = [isinstance(pair, tuple) for pair in pairs]
        if any(named) and not all(named):
            raise TypeError("Sequential takes either plain layers or (name, layer) pairs, not a mix of both.")
        super().__init__(pairs if all(named) else enumerate(pairs))

    def __getitem__(self, key: Key) -> StatefulModule:
        if isinstance(key, int):
            if not -len(self) <= key < len(self):
                raise IndexError(
                    f"Sequential has {len(self)} layers, so no layer {key}; its keys are {list(self.keys)}."
                )
            key = self.keys[key]
        return super().__getitem__(key)

    def join(self, run: Callable[[Key, Any], Any], x: Any, n_lead: int) -> Any:
        for key in self.keys:
            x = run(key, x)
        return x


class Parallel(Container):
    """Children side by side on the same input; the output is a dict with one entry per child."""

    def __init__(self, children: Mapping[str, StatefulModule] | None = None, /, **named: StatefulModule):
        super().__init__(named_or_dict(type(self).__name__, children, named))

    def join(self, run: Callable[[Key, Any], Any], x: Any, n_lead: int) -> Any:
        return {key: run(key, x) for key in self.keys}


class Concat(Container):
    """One child per entry of a dict input; outputs are concatenated along the last axis, in the children's order."""

    def __init__(self, children: Mapping[str, StatefulModule] | None = None, /, **named: StatefulModule):
        super().__init__(named_or_dict("Concat", children, named))

    def join(self, run: Callable[[Key, Any], Any], x: Any, n_lead: int) -> Any:
        return jnp.concatenate([run(key, take(x, key, "Concat")) for key in self.keys], axis=-1)


class Map(Container):
    """One child per entry of a dict input; the output is a dict with one entry per child."""

    def __init__(self, children: Mapping[str, StatefulModule] | None = None, /, **named: StatefulModule):
        super().__init__(named_or_dict("Map", children, named))

    def join(self, run: Callable[[Key, Any], Any], x: Any, n_lead: int) -> Any:
        return {key: run(key, take(x, key, "Map")) for key in self.keys}


class Merge(Container):
    """Children side by side on the same input, each with a dict output; the dicts are merged into one."""

    def __init__(self, children: Mapping[str, StatefulModule] | None = None, /, **named: StatefulModule):
        super().__init__(named_or_dict("Merge", children, named))

    def join(self, run: Callable[[Key, Any], Any], x: Any, n_lead: int) -> Any:
        merged: dict[Any, Any] = {}
        origin: dict[Any, Key] = {}
        for key in self.keys:
            part = run(key, x)
            if not isinstance(part, dict):
                raise TypeError(f"Merge: child {key!r} must return a dict, got {type(part).__name__}.")
            for name, value in part.items():
                if name in merged:
                    raise ValueError(f"Merge: children {origin[name]!r} and {key!r} both return {name!r}.")
                merged[name], origin[name] = value, key
        return merged


class Splitter(StatefulModule):
    """Cut a ``[B, F]`` array into a dict of slices along the last axis, in the order given.

    Args:
        sizes: width of each slice by name, as keywords or one positional dict; they must add up to ``F``.

    Raises:
        ValueError: a size below 1; when called, an input whose last axis is not the sum of the sizes.
    """

    def __init__(self, sizes: Mapping[str, int] | None = None, /, **named: int):
        pairs = tuple(named_or_dict("Splitter", sizes, named).items())
        for name, size in pairs:
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"Splitter: the size of {name!r} must be an integer of at least 1, got {size!r}.")
        self.sizes = pairs

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        total = sum(size for _, size in self.sizes)
        if not hasattr(x, "shape") or x.ndim < 2 or x.shape[-1] != total:
            raise ValueError(
                f"Splitter: expected an array [B, {total}] for {dict(self.sizes)}, got {describe_input(x)}."
            )
        ends = list(itertools.accumulate(size for _, size in self.sizes))
        output = {name: x[..., end - size : end] for (name, size), end in zip(self.sizes, ends, strict=True)}
        return StatefulModuleOutput(state, output, zero_loss(x), {})


def take(x: Any, key: Key, owner: str) -> Any:
    """Read one entry of a dict input, with an error that says what is there."""
    if not isinstance(x, dict) or key not in x:
        there = f"a dict with {sorted(map(str, x))}" if isinstance(x, dict) else f"a {type(x).__name__}"
        raise ValueError(f"{owner}: expected a dict input with an entry {key!r}, got {there}.")
    return x[key]
