"""MaskedDense: a linear map with fixed gaps and fixed signs, as in an anatomical connection."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nnx_ppo.networks._checks import check_features
from nnx_ppo.networks._dtypes import default_float, float_dtype, zero_loss
from nnx_ppo.networks.activations import Activation, resolve_activation, without_activation
from nnx_ppo.networks.types import Carry, StatefulModule, StatefulModuleOutput


class FixedWeights(nnx.Variable):
    """Which weights exist, and their signs: saved with the network, but never touched by the optimizer."""


class MaskedDense(StatefulModule):
    """``activation(x @ (mask * kernel) + bias)``, ``[B, in_features] -> [B, out_features]``.

    Args:
        in_features: width of the input.
        out_features: width of the output.
        rngs: where the initial kernel (and for ``density`` the mask) is drawn from.
        activation: function or name applied to the output; ``None``: none.
        mask: which weights exist, ``[in_features, out_features]`` of 0 and 1 (or booleans).
        density: fraction of weights that exist, drawn at random, instead of ``mask``.
        sign: 1 or -1 for all weights, or an array ``[in_features]`` of them, one per input (Dale's law). A signed
            weight acts as ``sign * |kernel|``. ``None``: weights of any sign.
        use_bias: add a bias.
        kernel_init: initialiser of the kernel; scaled up for the weights that are missing, so that the output
            keeps its size.

    Raises:
        ValueError: a mask or sign of another shape or with other values, a density outside (0, 1], both ``mask`` and
            ``density``; when called, an input of another width.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rngs: nnx.Rngs,
        activation: Activation = None,
        *,
        mask: Any = None,
        density: float | None = None,
        sign: Any = None,
        use_bias: bool = True,
        kernel_init: Callable[..., Any] = nnx.initializers.lecun_normal(),
    ):
        dtype, shape = default_float(), (in_features, out_features)
        self.in_features = in_features
        self.out_features = out_features
        self.activation = resolve_activation(activation)
        kernel = kernel_init(rngs.params(), shape, dtype)
        self.mask = _make_mask(mask, density, shape, rngs)
        if self.mask is not None:
            present = jnp.mean(self.mask[...].astype(dtype))
            kernel = kernel / jnp.sqrt(jnp.where(present > 0, present, 1))
        self.kernel = nnx.Param(kernel)
        self.sign = _make_sign(sign, in_features)
        self.bias = nnx.Param(jnp.zeros(out_features, dtype)) if use_bias else None

    def effective_kernel(self) -> jax.Array:
        """Weights as they act, ``[in_features, out_features]``, after sign and mask."""
        kernel = self.kernel[...]
        if self.sign is not None:
            kernel = jnp.abs(kernel) * self.sign[...].astype(kernel.dtype)[:, None]
        if self.mask is not None:
            kernel = jnp.where(self.mask[...], kernel, 0)
        return kernel

    def without_activation(self) -> "MaskedDense":
        """Return the same layer, sharing its parameters, without its activation function."""
        return without_activation(self)

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        check_features("MaskedDense", x, self.in_features)
        kernel = self.effective_kernel()
        dtype = float_dtype(x, kernel)
        y = jnp.asarray(x).astype(dtype) @ kernel.astype(dtype)
        if self.bias is not None:
            y = y + self.bias[...].astype(dtype).reshape((1,) * (y.ndim - 1) + (-1,))
        if self.activation is not None:
            y = self.activation(y)
        return StatefulModuleOutput(state, y, zero_loss(x), {})


def _make_mask(mask: Any, density: float | None, shape: tuple[int, int], rngs: nnx.Rngs) -> FixedWeights | None:
    if mask is not None and density is not None:
        raise ValueError("MaskedDense: give either mask or density, not both.")
    if density is not None:
        if not 0 < density <= 1:
            raise ValueError(f"MaskedDense: density must be above 0 and at most 1, got {density!r}.")
        return FixedWeights(jax.random.bernoulli(rngs.params(), density, shape))
    if mask is None:
        return None
    mask = np.asarray(mask)
    if mask.shape != shape or not ((mask == 0) | (mask == 1)).all():
        raise ValueError(
            f"MaskedDense: expected a mask {list(shape)} (from, to) of zeros and ones, got shape {mask.shape} with "
            f"values from {mask.min()} to {mask.max()}."
        )
    return FixedWeights(jnp.asarray(mask, bool))


def _make_sign(sign: Any, in_features: int) -> FixedWeights | None:
    if sign is None:
        return None
    sign = np.asarray(sign)
    if sign.shape not in ((), (in_features,)) or not (np.abs(sign) == 1).all():
        raise ValueError(
            f"MaskedDense: sign must be 1, -1 or an array [{in_features}] of them, one per input, got {sign.tolist()}."
        )
    return FixedWeights(jnp.asarray(np.broadcast_to(sign, (in_features,)), jnp.int8))
