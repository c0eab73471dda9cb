"""Dense: one linear map and an activation function."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nnx_ppo.networks._checks import check_features
from nnx_ppo.networks._dtypes import default_float, zero_loss
from nnx_ppo.networks.activations import Activation, resolve_activation, without_activation
from nnx_ppo.networks.types import Carry, StatefulModule, StatefulModuleOutput


class Dense(StatefulModule):
    """``activation(x @ kernel + bias)``, ``[B, in_features] -> [B, out_features]``.

    Args:
        in_features: width of the input.
        out_features: width of the output.
        rngs: where the initial kernel is drawn from.
        activation: function or name (``"relu"``, ``"swish"``, ``"tanh"``, ...) applied to the output; ``None``: none.
        **linear_kwargs: passed on to :class:`flax.nnx.Linear` (``use_bias``, ``kernel_init``, ``dtype``, ...).

    Raises:
        ValueError: unknown activation; when called, an input of another width.

    Integer inputs are cast to float. Parameters are of the default float dtype, unless ``param_dtype`` is given.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rngs: nnx.Rngs,
        activation: Activation = None,
        **linear_kwargs: Any,
    ):
        linear_kwargs.setdefault("param_dtype", default_float())
        self.in_features = in_features
        self.out_features = out_features
        self.activation = resolve_activation(activation)
        self.linear = nnx.Linear(in_features, out_features, rngs=rngs, **linear_kwargs)

    def without_activation(self) -> "Dense":
        """Return the same layer, sharing its parameters, without its activation function."""
        return without_activation(self)

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        check_features("Dense", x, self.in_features)
        # Observations may be integers, or wider than the parameters; flax promotes them only in standard mode.
        with jax.numpy_dtype_promotion("standard"):
            y = self.linear(jnp.asarray(x))
        if self.activation is not None:
            y = self.activation(y)
        return StatefulModuleOutput(state, y, zero_loss(x), {})
