"""Loop: populations that read each other's past, stepped together; all that a graph has to scan over time."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from nnx_ppo.networks import _ring_buffer
from nnx_ppo.networks._children import Container, Key
from nnx_ppo.networks.graph.topology import Edge
from nnx_ppo.networks.types import Carry, StatefulModule, StatefulModuleOutput


class Loop(Container):
    """One component of a graph with the connections inside it; the input is what comes from outside, by population.

    Args:
        populations: members, each after those it reads without delay.
        edges: connections between them.
    """

    def __init__(self, populations: Mapping[str, StatefulModule], edges: tuple[Edge, ...]):
        super().__init__(populations)
        self.edges = edges

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        return super().__call__(state, (x, state), rollout_extras)

    def unroll(self, state: Carry, xs: Any, dones: jax.Array, rollout_extras: Any = None) -> StatefulModuleOutput:
        return StatefulModule.unroll(self, state, xs, dones, rollout_extras)

    def join(self, run: Callable[[Key, Any], Any], x: Any, n_lead: int) -> Any:
        from_outside, state = x
        outputs: dict[Key, jax.Array] = {}
        for name in self.keys:
            inside = {edge.key: read(edge, state, outputs) for edge in self.edges if edge.target == name}
            outputs[name] = run(name, {**from_outside[name], **inside})
        return outputs

    def unroll_members(
        self, state: Carry, xs: Any, dones: jax.Array, rollout_extras: Any
    ) -> dict[str, StatefulModuleOutput]:
        """Run a sequence, and return the members' outputs one by one; the first bears the loss of all."""
        names = [str(name) for name in self.keys]
        pick = lambda tree: {name: tree[name] for name in names}  # noqa: E731
        extras = None if rollout_extras is None else pick(rollout_extras)
        out = self.unroll(pick(state), pick(xs), dones, extras)
        loss = out.regularization_loss
        return {
            name: StatefulModuleOutput(
                out.next_state[name],
                out.output[name],
                loss if name == names[0] else jnp.zeros_like(loss),
                out.metrics[name],
                out.rollout_extras[name],
            )
            for name in names
        }


def read(edge: Edge, state: Carry, outputs: Mapping[Any, jax.Array]) -> jax.Array:
    """What a connection brings in a single step, ``[B, size]``."""
    return _ring_buffer.read(state[edge.source]["buffer"], edge.delay) if edge.delay else outputs[edge.source]


def read_sequence(edge: Edge, state: Carry, outputs: Mapping[Any, jax.Array], dones: jax.Array) -> jax.Array:
    """What a connection brings in ``T`` steps whose outputs are known, ``[T, B, size]``: a shift in time."""
    now = outputs[edge.source]
    return _ring_buffer.shift(state[edge.source]["buffer"], now, dones, edge.delay) if edge.delay else now
