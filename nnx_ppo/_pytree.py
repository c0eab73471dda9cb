"""Tree helpers that every layer of the library shares; knows nothing of networks, environments or PPO."""

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import struct

PyTreeNode = struct.PyTreeNode
"""Base of the frozen dataclasses that are JAX pytrees and have ``.replace(...)``."""

T = TypeVar("T")


class Identity:
    """Hashable handle of any object, equal only to a handle of the very same object.

    Environments need not be hashable, or may compare by value through arrays; a cache of compiled functions has to
    know just whether it is still the same object.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.value is self.value


def expand_to(mask: jax.Array, ndim: int) -> jax.Array:
    """Append length-1 axes to ``mask`` until it has ``ndim`` axes."""
    return mask.reshape(mask.shape + (1,) * (ndim - mask.ndim))


def tree_where(mask: jax.Array, if_true: T, if_false: T) -> T:
    """Choose per leading entry between two trees of equal structure.

    Args:
        mask: bool ``[B]`` (or any leading axes that all leaves share).
        if_true: tree of ``[B, ...]``, PRNG key arrays included.
        if_false: the same.
    """

    def choose(a: Any, b: Any) -> jax.Array:
        a, b = jnp.asarray(a), jnp.asarray(b)
        return jnp.where(jnp.broadcast_to(expand_to(mask, a.ndim), a.shape), a, b)

    return jax.tree.map(choose, if_true, if_false)


def split_dicts(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Take nested dicts apart; JAX cannot sort one whose keys are of mixed types, and so takes none into a loop.

    Returns:
        What the dicts hold, in order, and ``join``, which puts as many values back in the same places.
    """
    if not isinstance(tree, Mapping):
        return [tree], lambda parts: parts[0]
    children = {key: split_dicts(value) for key, value in tree.items()}
    ends = list(itertools.accumulate(len(parts) for parts, _ in children.values()))

    def join(parts: list[Any]) -> Any:
        starts = [0, *ends][:-1]
        return {
            key: child(parts[start:end])
            for (key, (_, child)), start, end in zip(children.items(), starts, ends, strict=True)
        }

    return [part for parts, _ in children.values() for part in parts], join


def fold_time(tree: T) -> T:
    """Merge the two leading axes, ``[T, B, ...] -> [T * B, ...]``."""
    return jax.tree.map(lambda x: x.reshape((x.shape[0] * x.shape[1],) + x.shape[2:]), tree)


def total(tree: Any) -> jax.Array:
    """Sum of a tree's leaves, which have one shape: over reward keys, action heads, critic heads."""
    return functools.reduce(jnp.add, jax.tree.leaves(tree))


def has_leaves(tree: Any) -> bool:
    """Whether a tree holds any array at all."""
    return bool(jax.tree.leaves(tree))
