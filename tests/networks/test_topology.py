"""Topology: order, cycles, buffer lengths; every error names the populations."""

import pytest

from nnx_ppo.networks.graph.topology import Edge, Node, TopologyError, build_topology

NODES = [Node("motor", 2, "output"), Node("cortex", 4), Node("retina", 3, "input")]
CHAIN = [Edge("cortex", "motor"), Edge("retina", "cortex")]


def test_order_and_buffers():
    topology = build_topology(NODES, [*CHAIN, Edge("retina", "motor", 3), Edge("retina", "motor", 1)])
    assert topology.order == ("retina", "cortex", "motor")
    assert not topology.has_cycle
    assert [topology.buffer_length(name) for name in topology.order] == [3, 0, 0]
    assert [edge.key for edge in topology.incoming("motor")] == ["cortex", "retina@3", "retina@1"]


def test_without_cycle_the_order_respects_delayed_connections_too():
    nodes = [Node("b", 1, "output"), Node("a", 1, "input"), Node("c", 1)]
    topology = build_topology(nodes, [Edge("c", "b", 2), Edge("a", "c", 1), Edge("a", "b")])
    assert topology.order == ("a", "c", "b")


@pytest.mark.parametrize("loop", [[Edge("cortex", "cortex", 1)], [Edge("motor", "cortex", 2)]])
def test_a_delayed_cycle_is_a_cycle_but_no_error(loop):
    topology = build_topology(NODES, [*CHAIN, *loop])
    assert topology.has_cycle
    assert topology.order == ("retina", "cortex", "motor")
    assert topology.buffer_length(loop[0].source) == loop[0].delay


def test_components_are_populations_that_reach_each_other():
    nodes = [Node(name, 1) for name in "dcbae"] + [Node("in", 1, "input"), Node("out", 1, "output")]
    loop = [Edge("a", "b"), Edge("b", "c", 1), Edge("c", "a", 2)]
    others = [Edge("in", "a"), Edge("c", "d", 3), Edge("d", "d", 1), Edge("d", "e"), Edge("e", "out")]
    topology = build_topology(nodes, [*others, *loop])
    assert [set(component) for component in topology.components] == [{"in"}, {"a", "b", "c"}, {"d"}, {"e"}, {"out"}]
    assert [topology.loops(component) for component in topology.components] == [False, True, True, False, False]
    assert topology.order.index("a") < topology.order.index("b")


def test_text():
    lines = str(build_topology(NODES, [*CHAIN, Edge("cortex", "cortex", 2)])).splitlines()
    assert lines[1] == "cortex  population     4 units  from retina, cortex@2"
    assert str(Edge("a", "b", 2)) == "a -> b (delay 2)"


@pytest.mark.parametrize(("nodes", "edges", "message"), [
    (NODES, [*CHAIN, Edge("motor", "cortex")], "cortex -> motor -> cortex|motor -> cortex -> motor"),
    (NODES, [*CHAIN, Edge("cortex", "cortex")], "cortex -> cortex form a cycle without delay.*delay of 1 or more"),
    (NODES, [*CHAIN, Edge("cortx", "motor")], r"cortx -> motor: there is no population 'cortx'; did you mean \['cort"),
    (NODES, [*CHAIN, Edge("cortex", "motor", -1)], "cortex -> motor: delay must be an integer of at least 0.*got -1"),
    (NODES, [*CHAIN, CHAIN[0]], "The connection 'cortex -> motor' is there twice"),
    ([*NODES, NODES[1]], CHAIN, "The population 'cortex' is there twice"),
    (NODES, CHAIN[:1], r"Nothing is connected to \['cortex'\]"),
    (NODES[:2], CHAIN[:1], "no input; add one with add_input"),
    (NODES[1:], CHAIN[1:], "no output; add one with add_output"),
    ([*NODES, Node("x", 0)], CHAIN, "size of population 'x' must be an integer of at least 1, got 0"),
    ([*NODES, Node("_x", 1)], CHAIN, "does not begin with '_', got '_x'"),
    ([*NODES, Node("", 1)], CHAIN, "non-empty string"),
])  # fmt: skip
def test_errors_name_the_populations(nodes, edges, message):
    with pytest.raises(TopologyError, match=message):
        build_topology(nodes, edges)
