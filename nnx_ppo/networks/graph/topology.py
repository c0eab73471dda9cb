"""Topology of a population graph as plain data: who receives from whom, in which order, how long to remember."""

import dataclasses
import difflib
import graphlib
from collections.abc import Iterable, Sequence
from typing import Literal

Role = Literal["input", "population", "output"]


class TopologyError(ValueError):
    """Populations and connections that make no graph; the message names the populations."""


@dataclasses.dataclass(frozen=True)
class Node:
    """A population."""

    name: str
    size: int
    """Number of units."""
    role: Role = "population"


@dataclasses.dataclass(frozen=True)
class Edge:
    """A connection: ``target`` receives what ``source`` put out ``delay`` steps ago."""

    source: str
    target: str
    delay: int = 0
    """Steps; 0 reads the output of the same step."""

    @property
    def key(self) -> str:
        """Name of the connection within its target, ``"source"`` or ``"source@delay"``."""
        return f"{self.source}@{self.delay}" if self.delay else self.source

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}" + (f" (delay {self.delay})" if self.delay else "")


@dataclasses.dataclass(frozen=True)
class Topology:
    """A checked graph.

    Attributes:
        nodes: populations, as they were added.
        edges: connections, as they were added.
        components: names in groups, each group after all that it reads, be it with a delay. Populations of one group
            read each other's past; within it each comes after those it reads without delay.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    components: tuple[tuple[str, ...], ...]

    @property
    def order(self) -> tuple[str, ...]:
        """Names such that each population comes after those it reads without delay."""
        return tuple(name for component in self.components for name in component)

    @property
    def has_cycle(self) -> bool:
        """Whether any population reads its own past, be it through others."""
        return any(self.loops(component) for component in self.components)

    def loops(self, component: tuple[str, ...]) -> bool:
        """Whether the populations of a component read their own past."""
        return any(edge.source in component for edge in self.incoming(component[0]))

    def node(self, name: str) -> Node:
        """Return the population of that name."""
        return next(node for node in self.nodes if node.name == name)

    def incoming(self, name: str) -> tuple[Edge, ...]:
        """Return the connections to a population."""
        return tuple(edge for edge in self.edges if edge.target == name)

    def buffer_length(self, name: str) -> int:
        """Return how many past outputs of a population are read, 0 for none."""
        return max((edge.delay for edge in self.edges if edge.source == name), default=0)

    def __str__(self) -> str:
        width = max(len(node.name) for node in self.nodes)
        lines = []
        for name in self.order:
            node = self.node(name)
            sources = ", ".join(edge.key for edge in self.incoming(name))
            lines.append(f"{name:{width}}  {node.role:10}  {node.size:4} units" + (f"  from {sources}" * bool(sources)))
        return "\n".join(lines)


def build_topology(nodes: Sequence[Node], edges: Sequence[Edge]) -> Topology:
    """Check populations and connections, and find an order to compute them in.

    Raises:
        TopologyError: a duplicate, an unknown name, no input or output, a population that receives nothing, or a
            cycle without delay.
    """
    for node in nodes:
        check_node(node)
    _refuse_duplicates("population", [node.name for node in nodes])
    for edge in edges:
        check_edge(edge, [node.name for node in nodes])
    _refuse_duplicates("connection", [str(edge) for edge in edges])
    for role in ("input", "output"):
        if not any(node.role == role for node in nodes):
            raise TopologyError(f"The graph has no {role}; add one with add_{role}.")
    reached = {edge.target for edge in edges} | {node.name for node in nodes if node.role == "input"}
    if silent := [node.name for node in nodes if node.name not in reached]:
        raise TopologyError(f"Nothing is connected to {silent}; connect a population to each, or leave them out.")
    names = [node.name for node in nodes]
    _, cycle = sort(names, [edge for edge in edges if not edge.delay])
    if cycle:
        raise TopologyError(
            f"The populations {' -> '.join(cycle)} form a cycle without delay, which has no order to compute them in; "
            "give at least one of these connections a delay of 1 or more."
        )
    return Topology(tuple(nodes), tuple(edges), find_components(names, edges))


def find_components(names: Sequence[str], edges: Sequence[Edge]) -> tuple[tuple[str, ...], ...]:
    """Group populations that reach each other, and order the groups along the connections between them."""
    reach = {name: reachable(name, edges) for name in names}
    first = {name: next(other for other in names if other == name or _mutual(reach, name, other)) for name in names}
    between = [Edge(first[edge.source], first[edge.target]) for edge in edges]
    groups, _ = sort(dict.fromkeys(first.values()), [edge for edge in between if edge.source != edge.target])
    within, _ = sort(names, [edge for edge in edges if not edge.delay])
    return tuple(tuple(name for name in within if first[name] == group) for group in groups)


def reachable(name: str, edges: Sequence[Edge]) -> set[str]:
    """Return all that a population reaches, itself only if it lies on a cycle."""
    found: set[str] = set()
    pending = [name]
    while pending:
        source = pending.pop()
        new = {edge.target for edge in edges if edge.source == source} - found
        found |= new
        pending.extend(new)
    return found


def _mutual(reach: dict[str, set[str]], a: str, b: str) -> bool:
    return b in reach[a] and a in reach[b]


def sort(names: Iterable[str], edges: Iterable[Edge]) -> tuple[list[str], list[str]]:
    """Return names with every source before its targets, and an empty list; or an empty list and a cycle."""
    sources: dict[str, list[str]] = {name: [] for name in names}
    for edge in edges:
        sources[edge.target].append(edge.source)
    sorter = graphlib.TopologicalSorter(sources)
    try:
        return list(sorter.static_order()), []
    except graphlib.CycleError as error:
        return [], list(error.args[1])


def check_node(node: Node) -> None:
    """Refuse a population without a usable name or size."""
    if not isinstance(node.name, str) or not node.name or node.name.startswith("_"):
        raise TopologyError(
            f"A population's name must be a non-empty string that does not begin with '_', got {node.name!r}."
        )
    if isinstance(node.size, bool) or not isinstance(node.size, int) or node.size < 1:
        raise TopologyError(
            f"The size of population {node.name!r} must be an integer of at least 1, got {node.size!r}."
        )


def check_edge(edge: Edge, names: Sequence[str]) -> None:
    """Refuse a connection from or to a population that is not there, or with an impossible delay."""
    for name in (edge.source, edge.target):
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.4)
            raise TopologyError(
                f"Connection {edge}: there is no population {name!r}; "
                + (f"did you mean {near}? " if near else "")
                + f"The populations are {list(names)}. Add it before you connect it."
            )
    if isinstance(edge.delay, bool) or not isinstance(edge.delay, int) or edge.delay < 0:
        raise TopologyError(
            f"Connection {edge.source} -> {edge.target}: delay must be an integer of at least 0 (steps), "
            f"got {edge.delay!r}."
        )


def _refuse_duplicates(what: str, names: Sequence[str]) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TopologyError(f"The {what} {', '.join(map(repr, twice))} is there twice; each may be added once.")
