"""Reseed the random streams of a network from one key, so that a rollout depends on that key alone."""

import zlib
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


def as_key(key: Any) -> jax.Array:
    """Accept a typed PRNG key, a raw ``uint32`` key or an int seed, and return a typed key.

    Raises:
        TypeError: it is none of them.
        ValueError: a seed that is negative, or of more than 32 bits.
    """
    if isinstance(key, int):
        if not 0 <= key < 2**32:
            # JAX would take it modulo 2**32 without a word, so that two seeds were one.
            raise ValueError(f"a seed must be from 0 to {2**32 - 1}, got {key}.")
        return jax.random.key(key)
    key = jnp.asarray(key)
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    if key.ndim == 0 and jnp.issubdtype(key.dtype, jnp.integer):
        return jax.random.key(key)
    if key.dtype == jnp.uint32 and key.shape in ((2,), (4,)):
        return jax.random.wrap_key_data(key, impl="threefry2x32" if key.shape == (2,) else "rbg")
    raise TypeError(f"Expected a JAX PRNG key or an int seed, got an array of {key.dtype} with shape {key.shape}.")


def reseed(network: nnx.Module, key: jax.Array) -> None:
    """Give every random stream of ``network`` its own key derived from ``key`` and its path, and count zero."""
    for path, node in nnx.iter_graph(network):
        if isinstance(node, nnx.RngKey):
            name = "/".join(map(str, path))
            own = jax.random.fold_in(key, zlib.crc32(name.encode()))
            shape = node.get_value().shape
            node.set_value(jax.random.split(own, shape) if shape else own)
        elif isinstance(node, nnx.RngCount):
            node.set_value(jnp.zeros_like(node.get_value()))
