"""Pictures of a population graph: Graphviz text, and a figure that needs no Graphviz."""

from typing import TYPE_CHECKING, Any

from nnx_ppo.networks.graph.graph import PopulationGraph
from nnx_ppo.networks.graph.topology import Edge, Topology, sort

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHAPES = {"input": "invhouse", "population": "ellipse", "output": "house"}
# Blue, grey and orange of the Okabe-Ito palette, light enough for black text.
COLOURS = {"input": "#56B4E9", "population": "#DDDDDD", "output": "#E69F00"}
COLUMN_INCHES, ROW_INCHES = 2.0, 1.2
BEND = 0.35
"""Curvature of an arrow that leads back to the left."""


def to_graphviz(graph: PopulationGraph) -> str:
    """Return the graph as Graphviz text; dashed arrows carry a delay, written next to them in steps.

    Args:
        graph: a finalized graph.

    Raises:
        RuntimeError: the graph is not finalized.
    """
    topology = graph.topology
    lines = ["digraph {", "  rankdir=LR;", "  node [style=filled];"]
    for node in topology.nodes:
        label = _quote(f"{node.name}\n{node.size}")
        lines.append(
            f'  {_quote(node.name)} [label={label}, shape={SHAPES[node.role]}, fillcolor="{COLOURS[node.role]}"];'
        )
    for edge in topology.edges:
        style = f' [style=dashed, label="{edge.delay}"]' if edge.delay else ""
        lines.append(f"  {_quote(edge.source)} -> {_quote(edge.target)}{style};")
    return "\n".join([*lines, "}", ""])


def draw_graph(graph: PopulationGraph, title: str = "") -> "Figure":
    """Draw the graph from left to right; save the figure by ``figure.savefig("graph.png")``.

    Dashed arrows carry a delay, written next to them in steps. Needs the ``analysis`` extra.

    Args:
        graph: a finalized graph.
        title: title of the figure.

    Raises:
        RuntimeError: the graph is not finalized.
        ImportError: matplotlib is not installed.
    """
    topology = graph.topology
    places = layout(topology)
    n_columns = 1 + max(x for x, _ in places.values())
    n_rows = 1 + max(y for _, y in places.values())
    figure = _figure((1.0 + COLUMN_INCHES * n_columns, 1.0 + ROW_INCHES * n_rows))
    axes = figure.subplots()
    boxes = {}
    for node in topology.nodes:
        box = {"boxstyle": "round,pad=0.5", "facecolor": COLOURS[node.role], "edgecolor": "black", "linewidth": 0.8}
        text = axes.text(
            *places[node.name], f"{node.name}\n{node.size}", ha="center", va="center", fontsize=9, bbox=box
        )
        boxes[node.name] = text.get_bbox_patch()
    for edge in topology.edges:
        _draw_edge(axes, edge, places, boxes)
    axes.set(xlim=(-0.6, n_columns - 0.4), ylim=(n_rows - 0.4, -0.8), title=title)
    axes.set_axis_off()
    return figure


def layout(topology: Topology) -> dict[str, tuple[float, float]]:
    """Return column and row of each population: right of what it reads (of the past, if it can), rows centred."""
    columns: dict[str, int] = {}
    for name in _left_to_right(topology):
        before = [columns[edge.source] for edge in topology.incoming(name) if edge.source in columns]
        columns[name] = max((column + 1 for column in before), default=0)
    members = {column: [name for name in columns if columns[name] == column] for column in set(columns.values())}
    n_rows = max(map(len, members.values()))
    return {
        name: (float(column), i + (n_rows - len(names)) / 2)
        for column, names in members.items()
        for i, name in enumerate(names)
    }


def _left_to_right(topology: Topology) -> tuple[str, ...]:
    if not topology.has_cycle:
        return topology.order
    order, _ = sort((node.name for node in topology.nodes), (edge for edge in topology.edges if not edge.delay))
    return tuple(order)


def _draw_edge(axes: Any, edge: Edge, places: dict[str, tuple[float, float]], boxes: dict[str, Any]) -> None:
    start, end = places[edge.source], places[edge.target]
    label = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    arrow = {
        "arrowstyle": "-|>",
        "linestyle": "--" if edge.delay else "-",
        "color": "black",
        "linewidth": 1.0,
        "patchA": boxes[edge.source],
        "patchB": boxes[edge.target],
    }
    if edge.source == edge.target:
        arrow |= {"connectionstyle": "arc3,rad=-1.8", "patchA": None, "patchB": None, "shrinkA": 22, "shrinkB": 22}
        start, end, label = (start[0] - 0.15, start[1]), (end[0] + 0.15, end[1]), (label[0], label[1] - 0.5)
    elif end[0] <= start[0]:
        arrow["connectionstyle"] = f"arc3,rad={BEND}"
        label = label[0], label[1] - 0.5 * BEND * (start[0] - end[0]) * COLUMN_INCHES / ROW_INCHES
    axes.annotate("", xy=end, xytext=start, arrowprops=arrow)
    if edge.delay:
        white = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
        axes.text(*label, str(edge.delay), fontsize=8, ha="center", va="center", bbox=white)


def _quote(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _figure(size: tuple[float, float]) -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'nnx-ppo[analysis]'") from error
    return Figure(figsize=size, layout="constrained", dpi=150)
