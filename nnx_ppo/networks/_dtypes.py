"""The dtype rules that all layers share, written out because nothing here promotes implicitly."""

from typing import Any

import jax
import jax.numpy as jnp


def default_float() -> Any:
    """Dtype of new parameters and statistics: float32, or float64 under ``jax_enable_x64``."""
    return jax.dtypes.canonicalize_dtype(float)


def float_dtype(*arrays: Any) -> Any:
    """Return the floating dtype in which to compute with ``arrays``; integers and booleans alone count as default."""
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.result_type(*arrays)
    return dtype if jnp.issubdtype(dtype, jnp.floating) else default_float()


def as_float(x: Any) -> jax.Array:
    """Cast integers and booleans to the default float; leave floating arrays as they are."""
    x = jnp.asarray(x)
    return x.astype(float_dtype(x))


def zero_loss(x: Any) -> jax.Array:
    """Regularization loss of a layer that has none, ``[B]``; never widens the dtype of a sum it goes into."""
    return jnp.zeros(jax.tree.leaves(x)[0].shape[:1], jnp.float32)
