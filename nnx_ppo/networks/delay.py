"""Delay: every environment's input, a fixed number of steps later."""

from typing import Any

import jax
import jax.numpy as jnp

from nnx_ppo.networks import _ring_buffer
from nnx_ppo.networks._dtypes import zero_loss
from nnx_ppo.networks.types import Carry, StatefulModule, StatefulModuleOutput


class Delay(StatefulModule):
    """Output at step t is the input at step ``t - k_steps`` of the same episode, and ``initial_value`` before.

    The carry is the ring buffer ``{"buffer": [B, k_steps, ...], "idx": [B] int32}``. A sequence is shifted in time,
    without a loop.

    Args:
        sample_input: one sample *without* batch axis, a tree of arrays or ``jax.ShapeDtypeStruct``; its shapes and
            dtypes count, not its values.
        k_steps: steps of delay, at least 1.
        initial_value: output of the first ``k_steps`` steps of an episode.

    Raises:
        ValueError: ``k_steps`` below 1, a sample without arrays; when called, an input of other shapes.
        TypeError: when called, an input whose dtype the buffer cannot hold (floats in a buffer of integers).

    Example:
        >>> delay = Delay(jnp.zeros(2), 3)
        >>> delay(delay.initialize_state(4), jnp.ones((4, 2))).output.tolist()[0]
        [0.0, 0.0]
    """

    def __init__(self, sample_input: Any, k_steps: int, initial_value: int | float = 0.0):
        if isinstance(k_steps, bool) or not hasattr(k_steps, "__index__") or k_steps < 1:
            raise ValueError(
                f"Delay: k_steps must be an integer of at least 1, got {k_steps!r}. For no delay leave the layer out."
            )
        leaves, treedef = jax.tree.flatten(sample_input)
        if not leaves:
            raise ValueError("Delay: expected at least one array in sample_input, got an empty tree.")
        self.k_steps = k_steps.__index__()
        self.initial_value = initial_value
        # Names of dtypes and tuples, since an example array would become a variable of the network.
        self.sample = (treedef, tuple((jnp.shape(leaf), _dtype_name(leaf)) for leaf in leaves))

    def initialize_state(self, batch_size: int) -> Carry:
        treedef, leaves = self.sample
        structs = jax.tree.unflatten(treedef, [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in leaves])
        return _ring_buffer.create(structs, self.k_steps, batch_size, self.initial_value)

    def reset_state(self, state: Carry) -> Carry:
        return _ring_buffer.cleared(state, self.initial_value)

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        x = self._checked(x, 1)
        output = _ring_buffer.read(state, self.k_steps)
        return StatefulModuleOutput(_ring_buffer.push(state, x), output, zero_loss(x), {})

    def unroll(self, state: Carry, xs: Any, dones: jax.Array, rollout_extras: Any = None) -> StatefulModuleOutput:
        xs = self._checked(xs, 2)
        output = _ring_buffer.shift(state, xs, dones, self.k_steps, self.initial_value)
        next_state = _ring_buffer.push_sequence(state, xs, dones, self.initial_value)
        return StatefulModuleOutput(next_state, output, jnp.zeros(dones.shape, jnp.float32), {})

    def _checked(self, x: Any, n_lead: int) -> Any:
        treedef, expected = self.sample
        leaves, got = jax.tree.flatten(x)
        shapes = [jnp.shape(leaf)[n_lead:] for leaf in leaves]
        if got != treedef or shapes != [shape for shape, _ in expected]:
            wanted = jax.tree.unflatten(treedef, [shape for shape, _ in expected])
            found = jax.tree.unflatten(got, [jnp.shape(leaf) for leaf in leaves])
            raise ValueError(
                f"Delay: made for samples of shape {wanted} (sample_input has no batch axis), so an input "
                f"{'[B, ...]' if n_lead == 1 else '[T, B, ...]'} of those, got shape {found}."
            )
        for leaf, (_, dtype) in zip(leaves, expected, strict=True):
            if not jnp.can_cast(jnp.asarray(leaf).dtype, dtype, "same_kind"):
                raise TypeError(
                    f"Delay: made for samples of dtype {dtype}, got {jnp.asarray(leaf).dtype}; "
                    "give a sample_input of the input's dtype."
                )
        return jax.tree.unflatten(treedef, [jnp.asarray(leaf) for leaf in leaves])


def _dtype_name(leaf: Any) -> str:
    dtype = leaf.dtype if hasattr(leaf, "dtype") else jnp.asarray(leaf).dtype
    return jax.dtypes.canonicalize_dtype(dtype).name
