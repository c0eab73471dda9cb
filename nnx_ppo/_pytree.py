"""Tree helpers that every layer of the library shares; knows nothing of networks, environments or PPO."""

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


def fold_time(tree: T) -> T:
    """Merge the two leading axes, ``[T, B, ...] -> [T * B, ...]``."""
    return jax.tree.map(lambda x: x.reshape((x.shape[0] * x.shape[1],) + x.shape[2:]), tree)


def has_leaves(tree: Any) -> bool:
    """Whether a tree holds any array at all."""
    return bool(jax.tree.leaves(tree))
