"""GRU: gated recurrent units, with the input projection of a whole sequence in one matmul."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nnx_ppo.networks._checks import check_features
from nnx_ppo.networks._dtypes import default_float, zero_loss
from nnx_ppo.networks.activations import resolve_function
from nnx_ppo.networks.types import Carry, StatefulModule, StatefulModuleOutput


class GRU(StatefulModule):
    """Gated recurrent unit (Cho et al. 2014), ``[B, in_features] -> [B, hidden_features]``.

    Wraps :class:`flax.nnx.GRUCell`. The carry is the cell's, ``h`` of ``[B, hidden_features]``, and so is the output.
    Computes in the dtype of its parameters.

    Args:
        in_features: width of the input.
        hidden_features: number of units.
        rngs: where the initial kernels are drawn from.
        gate_fn: function of the reset and update gates, or its name.
        activation_fn: function of the candidate state, or its name.
        kernel_init: initialiser of the input kernel.
        recurrent_kernel_init: initialiser of the recurrent kernel.
        bias_init: initialiser of the bias.
        trainable_initial_state: start episodes from the parameter ``h0`` (``[hidden_features]``, first zero) instead
            of zeros. It learns through the episodes that begin inside a replayed rollout.

    Raises:
        ValueError: when called, an input of another width.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        rngs: nnx.Rngs,
        *,
        gate_fn: Callable[[jax.Array], jax.Array] | str = nnx.sigmoid,
        activation_fn: Callable[[jax.Array], jax.Array] | str = nnx.tanh,
        kernel_init: Callable[..., Any] = nnx.initializers.lecun_normal(),
        recurrent_kernel_init: Callable[..., Any] = nnx.initializers.orthogonal(),
        bias_init: Callable[..., Any] = nnx.initializers.zeros_init(),
        trainable_initial_state: bool = False,
    ):
        self.in_features = in_features
        self.hidden_features = hidden_features
        self.cell = nnx.GRUCell(
            in_features,
            hidden_features,
            gate_fn=resolve_function(gate_fn),
            activation_fn=resolve_function(activation_fn),
            kernel_init=kernel_init,
            recurrent_kernel_init=recurrent_kernel_init,
            bias_init=bias_init,
            param_dtype=default_float(),
            rngs=rngs,
        )
        self.trainable_initial_state = trainable_initial_state
        if trainable_initial_state:
            self.h0 = nnx.Param(jnp.zeros(hidden_features, default_float()))

    def initialize_state(self, batch_size: int) -> Carry:
        shape = (batch_size, self.hidden_features)
        if self.trainable_initial_state:
            return jnp.broadcast_to(self.h0[...], shape)
        return jnp.zeros(shape, self._dtype())

    def reset_state(self, state: Carry) -> Carry:
        return self.initialize_state(state.shape[0])

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        check_features("GRU", x, self.in_features)
        next_state, output = self.cell(state, jnp.asarray(x).astype(self._dtype()))
        return StatefulModuleOutput(next_state, output, zero_loss(x), {})

    def unroll(self, state: Carry, xs: Any, dones: jax.Array, rollout_extras: Any = None) -> StatefulModuleOutput:
        check_features("GRU", xs, self.in_features)
        # One matmul for all T steps: only the recurrent half of the gates depends on the step before.
        projected = self.cell.dense_i(jnp.asarray(xs).astype(self._dtype()))
        recurrent_kernel = self.cell.dense_h.kernel[...]
        fresh = self.initialize_state(dones.shape[1])

        def step(h: Carry, inputs: Any) -> tuple[Carry, jax.Array]:
            from_input, done = inputs
            h = self._gates(h, from_input, h @ recurrent_kernel)
            return jnp.where(done.reshape(-1, 1), fresh, h), h

        next_state, hs = jax.lax.scan(step, state, (projected, dones.astype(bool)))
        return StatefulModuleOutput(next_state, hs, jnp.zeros(dones.shape, jnp.float32), {})

    def _gates(self, h: jax.Array, from_input: jax.Array, recurrent: jax.Array) -> jax.Array:
        gate, activation = self.cell.gate_fn, self.cell.activation_fn
        input_r, input_z, input_n = jnp.split(from_input, 3, axis=-1)
        recurrent_r, recurrent_z, recurrent_n = jnp.split(recurrent, 3, axis=-1)
        z = gate(input_z + recurrent_z)
        candidate = activation(input_n + gate(input_r + recurrent_r) * recurrent_n)
        return (1 - z) * candidate + z * h

    def _dtype(self) -> Any:
        return self.cell.dense_h.kernel.dtype
