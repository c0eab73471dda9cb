"""PopulationGraph: a network drawn as populations and connections, with delays and feedback."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nnx_ppo._pytree import fold_time
from nnx_ppo.networks._checks import describe_input
from nnx_ppo.networks._children import Container, Key
from nnx_ppo.networks._dtypes import as_float
from nnx_ppo.networks.activations import Activation, resolve_activation
from nnx_ppo.networks.graph.draft import Draft, Transform, check_transform
from nnx_ppo.networks.graph.loop import Loop, read, read_sequence
from nnx_ppo.networks.graph.population import EXTERNAL
from nnx_ppo.networks.graph.topology import (
    Edge,
    Node,
    Role,
    Topology,
    TopologyError,
    build_topology,
    check_edge,
    check_node,
)
from nnx_ppo.networks.noise import GaussianNoise
from nnx_ppo.networks.types import Carry, StatefulModule, StatefulModuleOutput
from nnx_ppo.networks.utils import Selector, select


class PopulationGraph(Container):
    """Populations that sum what their connections bring and apply their activation once; the output is a dict.

    Declare populations, then connections, then :meth:`finalize`. A connection without ``transform`` is a linear map.
    One with ``delay=k`` reads what its source put out ``k`` steps ago, zeros in the first ``k`` steps of an episode;
    every cycle must hold a delay. Each source has one ring buffer, as long as its longest delay.

    A whole sequence runs population by population, and delays are shifts in time. Only populations that read their own
    past, be it through others, are scanned over time.

    Carry, metrics and ``rollout_extras`` are dicts by population. Recording reads every population under its name.

    Args:
        rngs: where the parameters of connections, and the first keys of noise, are drawn from.

    Attributes:
        topology: the finalized graph as plain data; ``print`` it.

    Example:
        >>> import jax.numpy as jnp
        >>> graph = PopulationGraph(nnx.Rngs(0))
        >>> graph.add_input("retina", 3, input_from="image")
        >>> graph.add_population("cortex", 8, activation="tanh")
        >>> graph.add_output("motor", 2)
        >>> graph.connect("retina", "cortex")
        >>> graph.connect("cortex", "cortex", delay=1)
        >>> graph.connect("cortex", "motor")
        >>> graph.finalize()
        >>> out = graph(graph.initialize_state(4), {"image": jnp.ones((4, 3))})
        >>> out.output["motor"].shape
        (4, 2)
    """

    def __init__(self, rngs: nnx.Rngs):
        super().__init__({})
        self._draft: Draft | None = Draft(rngs)
        self._topology: Topology | None = None
        self._selectors: tuple[tuple[str, Selector | None], ...] = ()
        self._outputs: tuple[tuple[str, str], ...] = ()

    def add_input(
        self,
        name: str,
        size: int,
        *,
        input_from: Selector | None,
        activation: Activation = None,
        noise_std: float = 0.0,
    ) -> None:
        """Add a population that receives part of the graph's input.

        Args:
            name: unique, not beginning with ``_``.
            size: number of units.
            input_from: which part of the input: a key, a tuple of keys (a path), a function of the whole, or ``None``
                for all of it. It must hold ``size`` numbers per sample.
            activation: function or name; ``None``: none.
            noise_std: standard deviation of noise added before the activation, in training only.

        Raises:
            TopologyError: a name that is taken or a size that is no positive integer.
            RuntimeError: the graph is finalized.
        """
        draft = self._add(name, size, "input", activation, noise_std)
        draft.selectors[name] = input_from

    def add_population(self, name: str, size: int, *, activation: Activation = None, noise_std: float = 0.0) -> None:
        """Add an inner population; arguments and errors as in :meth:`add_input`."""
        self._add(name, size, "population", activation, noise_std)

    def add_output(
        self,
        name: str,
        size: int,
        *,
        output_to: str | None = None,
        activation: Activation = None,
        noise_std: float = 0.0,
    ) -> None:
        """Add a population whose output leaves the graph.

        Args:
            name: unique, not beginning with ``_``.
            size: number of units.
            output_to: its key in the output dict; ``None``: its name.
            activation: function or name; ``None``: none.
            noise_std: standard deviation of noise added before the activation, in training only.

        Raises:
            TopologyError: a name or an output key that is taken, or a size that is no positive integer.
            RuntimeError: the graph is finalized.
        """
        key = name if output_to is None else output_to
        taken = {other: population for population, other in self._open("add_output").outputs.items()}
        if key in taken:
            raise TopologyError(f"Output {name!r}: population {taken[key]!r} already puts out under {key!r}.")
        draft = self._add(name, size, "output", activation, noise_std)
        draft.outputs[name] = key

    def connect(
        self,
        source: str,
        target: str,
        *,
        transform: Transform | None = None,
        delay: int = 0,
        reciprocal: bool = False,
        sign: Any = None,
        mask: Any = None,
        density: float | None = None,
    ) -> None:
        """Let ``target`` receive the output of ``source``.

        Args:
            source: name of a population, already added.
            target: the same; it may be the source itself.
            transform: from ``[B, source size]`` to ``[B, target size]``: any stateful module, or a maker
                ``(source size, target size, rngs) -> module``; ``None``: a linear map with bias.
            delay: steps; 0 reads the output of the same step.
            reciprocal: also connect ``target`` to ``source``, with weights of its own and the same delay.
            sign: of the linear map's weights, see :class:`~nnx_ppo.networks.masked.MaskedDense`.
            mask: which of its weights exist, ``[source size, target size]`` (for the way back, transposed).
            density: fraction of its weights that exist, drawn at random.

        Raises:
            TopologyError: an unknown population, a negative delay, the same connection twice.
            ValueError: sign, mask or density together with a transform; a module with ``reciprocal``.
            TypeError: a transform that is neither.
            RuntimeError: the graph is finalized.
        """
        draft = self._open("connect")
        forward = Edge(source, target, delay)
        check_edge(forward, [node.name for node in draft.nodes])
        masks = {"sign": sign, "mask": mask, "density": density}
        check_transform(forward, transform, reciprocal, masks)
        draft.connect(forward, transform, masks)
        if reciprocal:
            back = {**masks, "mask": None if mask is None else jnp.asarray(mask).T}
            draft.connect(Edge(target, source, delay), transform, back)

    def finalize(self) -> None:
        """Check the graph and make it callable; afterwards nothing can be added.

        Raises:
            TopologyError: no input or output, a population that receives nothing, a cycle without delay.
            RuntimeError: the graph is finalized already.
        """
        draft = self._open("finalize")
        topology = build_topology(draft.nodes, list(draft.transforms))
        self.keys = topology.order
        self.modules = nnx.data({name: draft.population(name, topology) for name in topology.order})
        self._selectors = tuple(draft.selectors.items())
        self._outputs = tuple(draft.outputs.items())
        self._topology = topology
        self._draft = None

    @property
    def topology(self) -> Topology:
        """The finalized graph as plain data."""
        if self._topology is None:
            raise RuntimeError("PopulationGraph: call finalize() before using the graph.")
        return self._topology

    def initialize_state(self, batch_size: int) -> Carry:
        return {name: self.modules[name].initialize_state(batch_size) for name in self.topology.order}

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        feed = _Feed(self._external(x, 1), lambda edge, outputs: read(edge, state, outputs))
        return super().__call__(state, feed, rollout_extras)

    def unroll(self, state: Carry, xs: Any, dones: jax.Array, rollout_extras: Any = None) -> StatefulModuleOutput:
        feed = _Feed(
            self._external(xs, 2),
            lambda edge, outputs: read_sequence(edge, state, outputs, dones),
            lambda loop, x: loop.unroll_members(state, x, dones, rollout_extras),
        )

        def call(child: StatefulModule, carry: Carry, x: Any, extras: Any) -> StatefulModuleOutput:
            # Members of a loop have run already, all together.
            return x if isinstance(x, StatefulModuleOutput) else child.unroll(carry, x, dones, extras)

        return self._thread(call, state, feed, 2, rollout_extras)

    def join(self, run: Callable[[Key, Any], Any], x: Any, n_lead: int) -> Any:
        outputs: dict[str, jax.Array] = {}
        for component in self.topology.components:
            if x.unroll_loop is not None and self.topology.loops(component):
                from_outside = {name: self._received(name, x, outputs, component) for name in component}
                for name, out in x.unroll_loop(self._loop(component), from_outside).items():
                    outputs[name] = run(name, out)
            else:
                for name in component:
                    outputs[name] = run(name, self._received(name, x, outputs))
        return {key: outputs[name] for name, key in self._outputs}

    def _received(
        self, name: str, feed: "_Feed", outputs: dict[str, jax.Array], without: tuple[str, ...] = ()
    ) -> dict[str, jax.Array]:
        """Input of a population: by connection, and from outside the graph; connections from ``without`` left out."""
        edges = [edge for edge in self.topology.incoming(name) if edge.source not in without]
        received = {edge.key: feed.read(edge, outputs) for edge in edges}
        return {**received, EXTERNAL: feed.external[name]} if name in feed.external else received

    def _loop(self, component: tuple[str, ...]) -> Loop:
        edges = [edge for edge in self.topology.edges if edge.source in component and edge.target in component]
        return Loop({name: self.modules[name] for name in component}, tuple(edges))

    def _external(self, x: Any, n_lead: int) -> dict[str, jax.Array]:
        """What each input population receives from outside, ``[..., size]``."""
        leaves = jax.tree.leaves(x)
        if not leaves:
            raise ValueError(
                f"PopulationGraph: expected an input for {[name for name, _ in self._selectors]}, got an empty tree."
            )
        lead = leaves[0].shape[:n_lead]
        # Time is folded into the batch, since a selector may be a function that was written for [B, ...].
        batch = fold_time(x) if n_lead == 2 else x
        return {name: self._select(name, selector, batch, lead) for name, selector in self._selectors}

    def _select(self, name: str, selector: Selector | None, x: Any, lead: tuple[int, ...]) -> jax.Array:
        size = self.topology.node(name).size
        try:
            chosen = x if selector is None else select(x, selector)
        except ValueError as error:
            raise ValueError(f"Input population {name!r}, input_from={selector!r}: {error}") from error
        n = 1
        for length in lead:
            n *= length
        if not hasattr(chosen, "shape") or chosen.shape[:1] != (n,) or chosen.size != n * size:
            raise ValueError(
                f"Input population {name!r} has {size} units, so input_from={selector!r} must choose an array "
                f"[B, {size}], got {describe_input(chosen)}."
            )
        return as_float(chosen).reshape(lead + (size,))

    def _open(self, method: str) -> "Draft":
        if self._draft is None:
            raise RuntimeError(f"PopulationGraph: {method} after finalize(); a finalized graph cannot be changed.")
        return self._draft

    def _add(self, name: str, size: int, role: Role, activation: Activation, noise_std: float) -> "Draft":
        draft = self._open(f"add_{role}")
        node = Node(name, size, role)
        check_node(node)
        if name in draft.activations:
            raise TopologyError(
                f"There is already a population {name!r}; the populations are {list(draft.activations)}."
            )
        if not noise_std >= 0:
            raise ValueError(f"Population {name!r}: noise_std must be at least 0, got {noise_std!r}.")
        try:
            resolve_activation(activation)
        except (TypeError, ValueError) as error:
            raise type(error)(f"Population {name!r}: {error}") from error
        draft.nodes.append(node)
        draft.activations[name] = activation
        if noise_std:
            draft.noise[name] = GaussianNoise(noise_std, draft.rngs)
        return draft


@dataclasses.dataclass(frozen=True)
class _Feed:
    """What :meth:`PopulationGraph.join` needs: input from outside, how to read a connection, how to run a loop."""

    external: dict[str, jax.Array]
    read: Callable[[Edge, dict[str, jax.Array]], jax.Array]
    unroll_loop: Callable[[Loop, Any], dict[str, StatefulModuleOutput]] | None = None
