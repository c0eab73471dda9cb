"""Draft: a population graph under construction."""

from collections.abc import Callable
from typing import Any

from flax import nnx

from nnx_ppo.networks.activations import Activation
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.graph.population import Population
from nnx_ppo.networks.graph.topology import Edge, Node, Topology, TopologyError
from nnx_ppo.networks.masked import MaskedDense
from nnx_ppo.networks.noise import GaussianNoise
from nnx_ppo.networks.types import StatefulModule
from nnx_ppo.networks.utils import Selector

Transform = StatefulModule | Callable[[int, int, nnx.Rngs], StatefulModule]
"""What a connection does to its source's output: a module, or a maker ``(source size, target size, rngs) -> module``.
"""


class Draft:
    """Populations and connections as declared so far; connections make their modules at once."""

    def __init__(self, rngs: nnx.Rngs):
        self.rngs = rngs
        self.nodes: list[Node] = []
        self.activations: dict[str, Activation] = {}
        self.noise: dict[str, GaussianNoise] = {}
        self.selectors: dict[str, Selector | None] = {}
        self.outputs: dict[str, str] = {}
        self.transforms: dict[Edge, StatefulModule] = {}

    def connect(self, edge: Edge, transform: Transform | None, masks: dict[str, Any]) -> None:
        if edge in self.transforms:
            raise TopologyError(f"Connection {edge} is there already; each may be added once.")
        sizes = {node.name: node.size for node in self.nodes}
        n_in, n_out = sizes[edge.source], sizes[edge.target]
        if isinstance(transform, StatefulModule):
            self.transforms[edge] = transform
        elif transform is not None:
            self.transforms[edge] = transform(n_in, n_out, self.rngs)
        elif any(value is not None for value in masks.values()):
            self.transforms[edge] = self._masked(edge, n_in, n_out, masks)
        else:
            self.transforms[edge] = Dense(n_in, n_out, self.rngs)

    def population(self, name: str, topology: Topology) -> Population:
        transforms = {edge.key: self.transforms[edge] for edge in topology.incoming(name)}
        size, length = topology.node(name).size, topology.buffer_length(name)
        return Population(name, size, transforms, self.activations[name], length, self.noise.get(name))

    def _masked(self, edge: Edge, n_in: int, n_out: int, masks: dict[str, Any]) -> MaskedDense:
        try:
            return MaskedDense(n_in, n_out, self.rngs, **masks)
        except ValueError as error:
            raise ValueError(f"Connection {edge}: {error}") from error


def check_transform(edge: Edge, transform: Any, reciprocal: bool, masks: dict[str, Any]) -> None:
    """Refuse a transform that cannot serve a connection, or cannot do so with the other options."""
    if transform is None:
        return
    if given := [name for name, value in masks.items() if value is not None]:
        raise ValueError(
            f"Connection {edge}: {given} shape the default linear map; leave out either them or transform."
        )
    if isinstance(transform, StatefulModule):
        if reciprocal:
            raise ValueError(
                f"Connection {edge}: one transform cannot serve both ways; connect {edge.target!r} to {edge.source!r} "
                "with a transform of its own, or give a maker (source size, target size, rngs) -> module."
            )
    elif isinstance(transform, nnx.Module) or not callable(transform):
        raise TypeError(
            f"Connection {edge}: transform must be a StatefulModule or a maker of one, "
            f"got a {type(transform).__name__}. Use Dense for a linear layer."
        )
