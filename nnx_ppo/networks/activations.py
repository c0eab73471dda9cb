"""Activation functions, by name."""

import copy
from collections.abc import Callable
from typing import TypeVar

import jax
from flax import nnx

Activation = Callable[[jax.Array], jax.Array] | str | None
"""An elementwise function, its name (see :data:`ACTIVATIONS`), or ``None`` for none."""

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "elu": nnx.elu,
    "gelu": nnx.gelu,
    "leaky_relu": nnx.leaky_relu,
    "relu": nnx.relu,
    "selu": nnx.selu,
    "sigmoid": nnx.sigmoid,
    "silu": nnx.silu,
    "softplus": nnx.softplus,
    "swish": nnx.silu,
    "tanh": nnx.tanh,
}
"""Activation functions that can be given by name."""


T = TypeVar("T")


def without_activation(layer: T) -> T:
    """Return the layer with ``activation`` set to none; it shares everything else with the original."""
    twin = copy.copy(layer)
    object.__setattr__(twin, "activation", None)  # the original's attributes are not written, so NNX need not know
    return twin


def resolve_activation(activation: Activation) -> Callable[[jax.Array], jax.Array] | None:
    """Return the function for a name; functions and ``None`` pass through.

    Raises:
        ValueError: a name that is not in :data:`ACTIVATIONS`.
        TypeError: neither a name, a function nor ``None``.
    """
    return None if activation is None else resolve_function(activation)


def resolve_function(activation: Callable[[jax.Array], jax.Array] | str) -> Callable[[jax.Array], jax.Array]:
    """Like :func:`resolve_activation` where there has to be one, so that ``None`` is refused."""
    if callable(activation):
        return activation
    if not isinstance(activation, str):
        raise TypeError(
            f"An activation must be a function or one of the names {sorted(ACTIVATIONS)}, "
            f"got a {type(activation).__name__}."
        )
    if activation not in ACTIVATIONS:
        raise ValueError(f"Unknown activation {activation!r}; use one of {sorted(ACTIVATIONS)}, or pass a function.")
    return ACTIVATIONS[activation]
