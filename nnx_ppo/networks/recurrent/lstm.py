"""LSTM: long short-term memory, with the input projection of a whole sequence in one matmul."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nnx_ppo.networks._checks import check_features
from nnx_ppo.networks._dtypes import default_float, zero_loss
from nnx_ppo.networks.activations import resolve_function
from nnx_ppo.networks.types import Carry, StatefulModule, StatefulModuleOutput


class LSTM(StatefulModule):
    """Long short-term memory (Hochreiter & Schmidhuber 1997), ``[B, in_features] -> [B, hidden_features]``.

    Wraps :class:`flax.nnx.OptimizedLSTMCell` (or :class:`flax.nnx.LSTMCell`). The carry is the cell's, ``(c, h)`` of
    ``[B, hidden_features]`` each; the output is the new ``h``. Computes in the dtype of its parameters.

    Args:
        in_features: width of the input.
        hidden_features: number of units.
        rngs: where the initial kernels are drawn from.
        gate_fn: function of the input, forget and output gates, or its name.
        activation_fn: function of the cell input and of the output, or its name.
        kernel_init: initialiser of the input kernels.
        recurrent_kernel_init: initialiser of the recurrent kernels.
        bias_init: initialiser of the biases.
        use_optimized: one kernel for all four gates instead of four kernels.
        trainable_initial_state: start episodes from parameters ``c0``, ``h0`` (``[hidden_features]``, first zero)
            instead of zeros. They learn through the episodes that begin inside a replayed rollout.

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
        use_optimized: bool = True,
        trainable_initial_state: bool = False,
    ):
        self.in_features = in_features
        self.hidden_features = hidden_features
        cell_type = nnx.OptimizedLSTMCell if use_optimized else nnx.LSTMCell
        self.cell = cell_type(
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
            self.c0 = nnx.Param(jnp.zeros(hidden_features, default_float()))
            self.h0 = nnx.Param(jnp.zeros(hidden_features, default_float()))

    def initialize_state(self, batch_size: int) -> Carry:
        shape = (batch_size, self.hidden_features)
        if self.trainable_initial_state:
            return jnp.broadcast_to(self.c0[...], shape), jnp.broadcast_to(self.h0[...], shape)
        return jnp.zeros(shape, self._dtype()), jnp.zeros(shape, self._dtype())

    def reset_state(self, state: Carry) -> Carry:
        return self.initialize_state(state[0].shape[0])

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        check_features("LSTM", x, self.in_features)
        next_state, output = self.cell(state, jnp.asarray(x).astype(self._dtype()))
        return StatefulModuleOutput(next_state, output, zero_loss(x), {})

    def unroll(self, state: Carry, xs: Any, dones: jax.Array, rollout_extras: Any = None) -> StatefulModuleOutput:
        check_features("LSTM", xs, self.in_features)
        input_kernel, recurrent_kernel, bias = fused_kernels(self.cell)
        # One matmul for all T steps: only the recurrent half of the gates depends on the step before.
        projected = jnp.asarray(xs).astype(self._dtype()) @ input_kernel + bias.reshape(1, 1, -1)
        fresh = self.initialize_state(dones.shape[1])

        def step(carry: Carry, inputs: Any) -> tuple[Carry, jax.Array]:
            from_input, done = inputs
            c, h = self._gates(carry[0], from_input + carry[1] @ recurrent_kernel)
            done = done.reshape(-1, 1)
            return (jnp.where(done, fresh[0], c), jnp.where(done, fresh[1], h)), h

        next_state, hs = jax.lax.scan(step, state, (projected, dones.astype(bool)))
        return StatefulModuleOutput(next_state, hs, jnp.zeros(dones.shape, jnp.float32), {})

    def _gates(self, c: jax.Array, gates: jax.Array) -> Carry:
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        gate, activation = self.cell.gate_fn, self.cell.activation_fn
        c = gate(f) * c + gate(i) * activation(g)
        return c, gate(o) * activation(c)

    def _dtype(self) -> Any:
        cell = self.cell
        return (cell.dense_h if isinstance(cell, nnx.OptimizedLSTMCell) else cell.hi).kernel.dtype


def fused_kernels(cell: nnx.LSTMCell | nnx.OptimizedLSTMCell) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return ``(input kernel, recurrent kernel, bias)``, each with the gates i, f, g, o along its last axis."""
    if isinstance(cell, nnx.OptimizedLSTMCell):
        from_input, recurrent = (cell.dense_i,), (cell.dense_h,)
    else:
        from_input, recurrent = (cell.ii, cell.if_, cell.ig, cell.io), (cell.hi, cell.hf, cell.hg, cell.ho)
    return (
        jnp.concatenate([layer.kernel[...] for layer in from_input], axis=-1),
        jnp.concatenate([layer.kernel[...] for layer in recurrent], axis=-1),
        jnp.concatenate([layer.bias[...] for layer in recurrent if layer.bias is not None]),
    )
