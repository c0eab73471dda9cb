"""One PRNG key per environment in the carry of every layer that samples, so that replay in minibatches is exact."""

from typing import Any

import jax
from flax import nnx

Keys = dict[str, jax.Array]
"""``{"key": [B]}``: the part of a carry that randomness comes from. The end of an episode does not reset it."""


def initial_keys(rng: nnx.RngStream, batch_size: int) -> Keys:
    """Draw one key per environment."""
    return {"key": jax.random.split(rng(), batch_size)}


def next_keys(state: Keys) -> tuple[Keys, jax.Array]:
    """Split each environment's key ``[B]`` into the next carry and the key to use now."""
    pairs = jax.vmap(jax.random.split)(state["key"])
    return {"key": pairs[:, 0]}, pairs[:, 1]


def key_sequence(state: Keys, n_steps: int) -> tuple[Keys, jax.Array]:
    """Do ``n_steps`` of :func:`next_keys`: the carry after them, and the keys to use, ``[T, B]``."""
    return jax.lax.scan(lambda carry, _: next_keys(carry), state, length=n_steps)


def normal(keys: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Draw from N(0, 1), one array of ``shape`` per key, ``[..., *shape]``."""
    draw = lambda key: jax.random.normal(key, shape, dtype)  # noqa: E731
    for _ in keys.shape:
        draw = jax.vmap(draw)
    return draw(keys)


def own_stream(rng: nnx.Rngs | nnx.RngStream) -> nnx.RngStream:
    """Fork a random stream that nobody else draws from."""
    if isinstance(rng, nnx.RngStream):
        return rng.fork()
    if not isinstance(rng, nnx.Rngs):
        raise TypeError(f"rng must be an nnx.Rngs or nnx.RngStream, got a {type(rng).__name__}; use nnx.Rngs(seed).")
    if "sampling" not in rng and "default" not in rng:
        raise ValueError(
            f"rng has the streams {list(rng)}, but a sampler needs 'sampling' or 'default'; use nnx.Rngs(seed)."
        )
    return rng["sampling"].fork()
