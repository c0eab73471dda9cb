"""A ring buffer per environment: what was pushed k steps ago, in single steps and as a shift in time."""

from typing import Any

import jax
import jax.numpy as jnp

from nnx_ppo._pytree import expand_to

RingBuffer = dict[str, Any]
"""``{"buffer": tree of [B, n, ...], "idx": [B] int32}``: the last ``n`` values, the oldest at ``idx``."""


def create(sample: Any, length: int, batch_size: int, value: int | float = 0.0) -> RingBuffer:
    """Return a buffer as if ``value`` had been pushed for ever.

    Args:
        sample: tree of arrays or shapes, without batch axis.
        length: ``n``, the longest delay that can be read.
        batch_size: ``B``.
        value: what every entry holds.
    """
    full = lambda leaf: jnp.full((batch_size, length, *leaf.shape), value, leaf.dtype)  # noqa: E731
    return {"buffer": jax.tree.map(full, sample), "idx": jnp.zeros(batch_size, jnp.int32)}


def cleared(state: RingBuffer, value: int | float = 0.0) -> RingBuffer:
    """Return the buffer of a fresh episode, of the same shapes."""
    full = lambda leaf: jnp.full_like(leaf, value)  # noqa: E731
    return {"buffer": jax.tree.map(full, state["buffer"]), "idx": jnp.zeros_like(state["idx"])}


def read(state: RingBuffer, delay: int) -> Any:
    """Return what was pushed ``delay`` steps ago (1: the latest), tree of ``[B, ...]``."""
    take = lambda row, i: jax.lax.dynamic_index_in_dim(row, i, keepdims=False)  # noqa: E731
    return jax.tree.map(lambda leaf: jax.vmap(take)(leaf, (state["idx"] - delay) % leaf.shape[1]), state["buffer"])


def push(state: RingBuffer, x: Any) -> RingBuffer:
    """Replace the oldest entry by ``x``, tree of ``[B, ...]``."""
    put = lambda row, i, new: jax.lax.dynamic_update_index_in_dim(row, new, i, 0)  # noqa: E731
    buffer = jax.tree.map(
        lambda leaf, new: jax.vmap(put)(leaf, state["idx"], new.astype(leaf.dtype)), state["buffer"], x
    )
    return {"buffer": buffer, "idx": (state["idx"] + 1) % _length(state)}


def shift(state: RingBuffer, xs: Any, dones: jax.Array, delay: int, value: int | float = 0.0) -> Any:
    """Read ``delay`` steps back at each of ``T`` steps, before that step's push; equal to stepping, without a loop.

    Args:
        state: the buffer before the first step.
        xs: what is pushed, tree of ``[T, B, ...]``.
        dones: bool ``[T, B]``; the buffer is cleared after each.
        delay: 1 to ``n``.
        value: what a cleared buffer holds.

    Returns:
        Tree of ``[T, B, ...]``.
    """
    n, n_steps = _length(state), dones.shape[0]
    age = episode_age(dones)
    valid = age[:n_steps] >= delay

    def one(buffer: jax.Array, x: jax.Array) -> jax.Array:
        window = jax.lax.slice_in_dim(_timeline(buffer, state["idx"], x), n - delay, n - delay + n_steps)
        return _where(valid, window, value)

    return jax.tree.map(one, state["buffer"], xs)


def push_sequence(state: RingBuffer, xs: Any, dones: jax.Array, value: int | float = 0.0) -> RingBuffer:
    """Push ``T`` values (tree of ``[T, B, ...]``), clearing after each ``done``; equal to stepping, without a loop."""
    n, n_steps = _length(state), dones.shape[0]
    age = episode_age(dones)[n_steps]
    # Without a reset the index runs on from where it was.
    idx = jnp.where(jnp.any(dones.astype(bool), axis=0), age, state["idx"] + n_steps) % n
    steps_ago = n - jnp.arange(n, dtype=jnp.int32)[:, None]
    valid = age[None, :] >= steps_ago
    place = (jnp.arange(n, dtype=jnp.int32)[None, :] - idx[:, None]) % n

    def one(buffer: jax.Array, x: jax.Array) -> jax.Array:
        oldest_first = _where(valid, _timeline(buffer, state["idx"], x)[n_steps:], value)
        return jax.vmap(lambda row, i: row[i])(jnp.moveaxis(oldest_first, 0, 1), place)

    return {"buffer": jax.tree.map(one, state["buffer"], xs), "idx": idx.astype(jnp.int32)}


def episode_age(dones: jax.Array) -> jax.Array:
    """Steps since the last ``done`` before step t, ``[T + 1, B]``; huge where there was none in this sequence."""
    n_steps = dones.shape[0]
    t = jnp.arange(n_steps, dtype=jnp.int32)[:, None]
    never = -(2**30)
    begins = jnp.where(dones.astype(bool), t + 1, never)
    latest = jax.lax.cummax(begins, axis=0)
    latest = jnp.concatenate([jnp.full_like(latest[:1], never), latest])
    return jnp.arange(n_steps + 1, dtype=jnp.int32)[:, None] - latest


def _length(state: RingBuffer) -> int:
    return jax.tree.leaves(state["buffer"])[0].shape[1]


def _timeline(buffer: jax.Array, idx: jax.Array, x: jax.Array) -> jax.Array:
    """Buffered values, oldest first, and then the new ones: ``[n + T, B, ...]``."""
    n = buffer.shape[1]
    order = (idx[:, None] + jnp.arange(n, dtype=idx.dtype)[None]) % n
    past = jax.vmap(lambda row, i: row[i])(buffer, order)
    return jnp.concatenate([jnp.moveaxis(past, 1, 0), x.astype(buffer.dtype)])


def _where(valid: jax.Array, x: jax.Array, value: int | float) -> jax.Array:
    mask = jnp.broadcast_to(expand_to(valid, x.ndim), x.shape)
    return jnp.where(mask, x, jnp.asarray(value, x.dtype))
