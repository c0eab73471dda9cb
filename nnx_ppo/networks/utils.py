"""Small layers without parameters that reshape, choose from and scale their input."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from nnx_ppo.networks._dtypes import as_float, float_dtype, zero_loss
from nnx_ppo.networks.containers import Map as Map
from nnx_ppo.networks.containers import Merge as Merge
from nnx_ppo.networks.types import Carry, StatefulModule, StatefulModuleOutput

Selector = str | tuple[Any, ...] | Callable[[Any], Any]
"""One entry of a nested dict: its key, the path to it, or a function of the whole."""


class Flattener(StatefulModule):
    """Concatenate all leaves of a tree ``[B, ...]`` into one array ``[B, F]``.

    Args:
        preserve_levels: number of outer dict levels to keep; everything below each of their entries is flattened.

    Leaves are taken in JAX's order of trees, that is by sorted key, whatever the order of insertion. Leaves of one
    dtype keep it; of several, they become float.
    """

    def __init__(self, preserve_levels: int = 0):
        if isinstance(preserve_levels, bool) or not isinstance(preserve_levels, int) or preserve_levels < 0:
            raise ValueError(f"Flattener: preserve_levels must be an integer of at least 0, got {preserve_levels!r}.")
        self.preserve_levels = preserve_levels

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        return StatefulModuleOutput(state, flatten_batch(x, self.preserve_levels), _no_loss("Flattener", x), {})


def flatten_batch(x: Any, preserve_levels: int = 0) -> Any:
    """Flatten a tree ``[B, ...]`` to ``[B, F]``, below ``preserve_levels`` outer dict levels."""
    if preserve_levels and isinstance(x, Mapping):
        return {key: flatten_batch(value, preserve_levels - 1) for key, value in x.items()}
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(x)]
    if not leaves:
        raise ValueError("Flattener: expected at least one array to flatten, got an empty tree.")
    flat = [leaf.reshape(leaf.shape[0], -1) for leaf in leaves]
    if len({leaf.dtype for leaf in flat}) > 1:
        dtype = float_dtype(*flat)
        flat = [leaf.astype(dtype) for leaf in flat]
    return jnp.concatenate(flat, axis=-1)


class Filter(StatefulModule):
    """Choose entries of a nested dict input.

    Args:
        spec: what to choose: a key, a tuple of keys (a path), or a function of the input, to output that entry itself;
            or a dict of those by output key, to output a dict.

    Raises:
        TypeError: ``spec`` is none of these.
        ValueError: when called, an entry that the input does not have.
    """

    def __init__(self, spec: Selector | Mapping[str, Selector]):
        selectors = dict(spec) if isinstance(spec, Mapping) else {"": spec}
        if not selectors:
            raise ValueError("Filter: an empty dict chooses nothing; give at least one output key.")
        for key, selector in selectors.items():
            if not (isinstance(selector, str | tuple) or callable(selector)):
                raise TypeError(
                    f"Filter: expected a key, a tuple of keys or a function{f' for {key!r}' if key else ''}, "
                    f"got a {type(selector).__name__}."
                )
        self.selectors = tuple(selectors.items())
        self.single = not isinstance(spec, Mapping)

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        chosen = {key: select(x, selector) for key, selector in self.selectors}
        return StatefulModuleOutput(state, chosen[""] if self.single else chosen, _no_loss("Filter", x), {})


def select(x: Any, selector: Selector) -> Any:
    """Read one entry of a nested dict."""
    if callable(selector):
        return selector(x)
    for depth, key in enumerate(path := (selector,) if isinstance(selector, str) else selector):
        if not isinstance(x, Mapping) or key not in x:
            there = f"a dict with {sorted(map(str, x))}" if isinstance(x, Mapping) else f"a {type(x).__name__}"
            raise ValueError(f"Filter: no entry {key!r} at {path[:depth]} on the way to {path}; there is {there}.")
        x = x[key]
    return x


class Scale(StatefulModule):
    """Multiply every leaf of the input by a constant; integers become float.

    Args:
        factor: a number.
    """

    def __init__(self, factor: float):
        try:
            self.factor = float(factor)
        except (TypeError, ValueError) as error:
            raise TypeError(f"Scale: factor must be a number, got a {type(factor).__name__}.") from error

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        output = jax.tree.map(lambda leaf: as_float(leaf) * self.factor, x)
        return StatefulModuleOutput(state, output, _no_loss("Scale", x), {})


def _no_loss(owner: str, x: Any) -> jax.Array:
    if not jax.tree.leaves(x):
        raise ValueError(f"{owner}: expected at least one array, got an empty tree.")
    return zero_loss(x)
