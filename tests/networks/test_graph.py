"""PopulationGraph against a plain loop over populations with lists of past outputs; loops; errors; pictures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks import (
    LSTM,
    Dense,
    Flattener,
    MaskedDense,
    Normalizer,
    PopulationGraph,
    Sequential,
    TopologyError,
    VariationalBottleneck,
    describe,
    draw_graph,
    extract_activations,
    flatten_activations,
    named_modules,
    to_graphviz,
    with_recording,
)

T, B = 7, 3
FORWARD = (("retina", "cortex", 0), ("cortex", "motor", 0))
GRAPHS = {
    "feed-forward": FORWARD,
    "delays": (*FORWARD, ("retina", "motor", 2), ("cortex", "motor", 3), ("retina", "motor", 0)),
    "self-loop": (*FORWARD, ("cortex", "cortex", 2)),
    "long loop": (*FORWARD, ("motor", "retina", 1), ("motor", "cortex", 4)),
    "two loops": (*FORWARD, ("cortex", "cortex", 1), ("motor", "motor", 2), ("retina", "motor", 3)),
    "loop of two": (*FORWARD, ("motor", "cortex", 1), ("retina", "motor", 2)),
}


def build(connections, **options):
    graph = PopulationGraph(nnx.Rngs(0))
    graph.add_output("motor", 2, output_to="action")
    graph.add_population("cortex", 4, activation="tanh", **options)
    graph.add_input("retina", 3, input_from=("eyes", "left"), activation="tanh")
    for source, target, delay in connections:
        graph.connect(source, target, delay=delay)
    graph.finalize()
    return graph


def by_hand(graph, connections, xs, dones):
    """Every population of every environment, one step at a time, from lists of past outputs."""
    sizes = {"retina": 3, "cortex": 4, "motor": 2}
    weights = {}
    for source, target, delay in connections:
        linear = graph[target][f"{source}@{delay}" if delay else source].linear
        weights[source, target, delay] = np.asarray(linear.kernel[...]), np.asarray(linear.bias[...])
    traces = {name: np.zeros((T, B, size)) for name, size in sizes.items()}
    for b in range(B):
        past = []
        for t in range(T):
            now = {}
            for name in ("retina", "cortex", "motor"):
                total = np.array(xs[t, b], float) if name == "retina" else np.zeros(sizes[name])
                for (source, target, delay), (kernel, bias) in weights.items():
                    if target == name:
                        before = past[-delay][source] if len(past) >= delay > 0 else np.zeros(sizes[source])
                        total = total + (before if delay else now[source]) @ kernel + bias
                now[name] = total if name == "motor" else np.tanh(total)
                traces[name][t, b] = now[name]
            past.append(now)
            if dones[t, b]:
                past = []
    return traces


@pytest.fixture
def sequence():
    rng = np.random.default_rng(0)
    dones = rng.random((T, B)) < 0.3
    dones[1, 0], dones[:, 1] = True, False
    return rng.normal(size=(T, B, 3)).astype(np.float32), dones


def randomize_biases(graph):
    for module in named_modules(graph).values():
        if isinstance(module, Dense):
            module.linear.bias[...] = jnp.linspace(-1, 1, module.out_features)


@pytest.mark.parametrize("name", GRAPHS)
def test_every_population_follows_the_plain_loop(sequence, name):
    xs, dones = sequence
    graph = build(GRAPHS[name])
    randomize_biases(graph)
    recordable = with_recording(graph)
    state, inputs = recordable.initialize_state(B), {"eyes": {"left": jnp.asarray(xs)}}
    out = recordable.unroll(state, inputs, jnp.asarray(dones))
    expected = by_hand(graph, GRAPHS[name], xs, dones)
    recorded = extract_activations(out.metrics)
    assert set(recorded) == {"retina", "cortex", "motor"}
    for population, trace in expected.items():
        np.testing.assert_allclose(recorded[population], trace, atol=2e-6)
    assert set(out.output) == {"action"}
    np.testing.assert_array_equal(out.output["action"], recorded["motor"])


@pytest.mark.parametrize(
    ("name", "loops"),
    [("feed-forward", 0), ("delays", 0), ("self-loop", 1), ("long loop", 1), ("two loops", 2), ("loop of two", 1)],
)
def test_only_a_cycle_costs_a_loop_over_time(sequence, name, loops):
    xs, dones = sequence
    graph = build(GRAPHS[name])
    state = graph.initialize_state(B)
    jaxpr = jax.make_jaxpr(lambda x: graph.unroll(state, {"eyes": {"left": x}}, jnp.asarray(dones)))(jnp.asarray(xs))
    assert str(jaxpr).count("= scan[") + str(jaxpr).count("= while[") == loops


@pytest.mark.parametrize("name", ["feed-forward", "delays"])
def test_without_a_cycle_the_compiled_gradient_holds_no_loop(sequence, name):
    xs, dones = sequence
    graph = build(GRAPHS[name])
    state = graph.initialize_state(B)
    graphdef, variables = nnx.split(graph)

    def loss(variables, xs):
        out = nnx.merge(graphdef, variables).unroll(state, {"eyes": {"left": xs}}, jnp.asarray(dones))
        return jnp.sum(jnp.square(out.output["action"]))

    compiled = jax.jit(jax.grad(loss)).lower(variables, jnp.asarray(xs)).compile().as_text()
    assert "while" not in compiled
    assert "dot" in compiled


def test_only_the_populations_on_a_cycle_are_scanned(sequence):
    xs, dones = sequence
    graph = build(GRAPHS["self-loop"])
    state = graph.initialize_state(B)
    unroll = lambda x: graph.unroll(state, {"eyes": {"left": x}}, jnp.asarray(dones)).output  # noqa: E731
    jaxpr = jax.make_jaxpr(unroll)(jnp.asarray(xs))
    [scan] = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    # Inside: what cortex receives, from the retina and from itself. Outside: what the output receives.
    assert str(scan.params["jaxpr"]).count("= dot_general[") == 2
    assert str(jaxpr).count("= dot_general[") == 3


def test_one_ring_buffer_per_source_as_long_as_its_longest_delay():
    graph = build((*FORWARD, ("retina", "motor", 2), ("retina", "cortex", 5), ("retina", "motor", 0)))
    state = graph.initialize_state(B)
    assert set(state) == {"retina", "cortex", "motor"}
    assert state["retina"]["buffer"]["buffer"].shape == (B, 5, 3)
    assert state["cortex"]["buffer"] == state["motor"]["buffer"] == ()


def everything():
    """One connection of each kind."""
    rngs = nnx.Rngs(0)
    graph = PopulationGraph(rngs)
    graph.add_input("retina", 3, input_from=lambda x: x["eyes"]["left"], noise_std=0.1)
    graph.add_population("memory", 4, activation="tanh", noise_std=0.2)
    graph.add_population("latent", 2)
    graph.add_output("motor", 2)
    graph.add_output("gaze", 1, output_to="eye")
    graph.connect("retina", "memory", transform=Sequential([Normalizer(3), LSTM(3, 4, rngs)]), delay=1)
    graph.connect("memory", "latent", transform=Sequential([Dense(4, 4, rngs), VariationalBottleneck(2, rngs)]))
    graph.connect("latent", "motor", sign=1, mask=np.eye(2))
    graph.connect("latent", "gaze", transform=lambda n_in, n_out, rngs: Dense(n_in, n_out, rngs, "tanh"))
    graph.connect("memory", "motor", density=0.5, sign=[1, 1, -1, -1], delay=2, reciprocal=False)
    graph.finalize()
    return graph


def test_losses_metrics_and_statistics_of_connections_come_through(sequence):
    xs, dones = sequence
    graph = everything()
    inputs = {"eyes": {"left": jnp.asarray(xs)}}
    out = graph.unroll(graph.initialize_state(B), inputs, jnp.asarray(dones))
    bottleneck = out.metrics["latent"]["memory"][1]
    assert bottleneck["kl_divergence"].shape == (T, B)
    assert out.regularization_loss.shape == (T, B)
    np.testing.assert_allclose(out.regularization_loss, bottleneck["kl_divergence"], rtol=1e-6)
    assert len(np.unique(out.regularization_loss)) == T * B
    graph.update_statistics(out.rollout_extras)
    normalizer = named_modules(graph)["memory/retina@1/0"]
    assert float(normalizer.counter[...]) == T * B
    # What it saw: the retina's output (with its noise) one step before, and zeros at the start of an episode.
    retina = xs + 0.1 * np.asarray(out.rollout_extras["retina"]["_noise"])
    before = np.concatenate([np.zeros((1, B, 3)), np.where(dones[:-1, :, None], 0, retina[:-1])])
    np.testing.assert_allclose(normalizer.mean[...], before.mean((0, 1)), atol=1e-5)


def test_recording_reads_populations_and_not_transforms():
    graph = everything()
    recordable = with_recording(Sequential({"graph": graph}), exclude="graph/gaze")
    recordable.eval()
    out = recordable(recordable.initialize_state(B), {"eyes": {"left": jnp.ones((B, 3))}})
    shapes = {path: leaf.shape for path, leaf in flatten_activations(extract_activations(out.metrics)).items()}
    assert shapes == {
        "graph/retina": (B, 3), "graph/memory": (B, 4), "graph/latent": (B, 2), "graph/motor": (B, 2)
    }  # fmt: skip
    assert extract_activations(graph(graph.initialize_state(B), {"eyes": {"left": jnp.ones((B, 3))}}).metrics) is None


def test_layer_table_has_a_row_per_population():
    table = describe(build(GRAPHS["self-loop"]), {"eyes": {"left": jnp.zeros(3)}})
    rows = {row.path: (row.output, row.parameters) for row in table.rows}
    assert rows == {"retina": ("[1, 3]", 0), "cortex": ("[1, 4]", 16 + 20), "motor": ("[1, 2]", 10)}
    wiring = {row.path: row.layer for row in table.rows}
    assert wiring == {
        "retina": "Population", "cortex": "Population <- retina, cortex@2", "motor": "Population <- cortex"
    }  # fmt: skip


def test_reciprocal_connections():
    graph = PopulationGraph(nnx.Rngs(0))
    graph.add_input("a", 2, input_from=None)
    graph.add_output("b", 3)
    mask = np.array([[1, 0, 1], [0, 1, 1]])
    graph.connect("a", "b", delay=1, reciprocal=True, mask=mask)
    graph.finalize()
    there, back = graph["b"]["a@1"], graph["a"]["b@1"]
    assert isinstance(there, MaskedDense)
    assert isinstance(back, MaskedDense)
    np.testing.assert_array_equal(there.effective_kernel() != 0, mask)
    np.testing.assert_array_equal(back.effective_kernel() != 0, mask.T)


def test_noise_is_drawn_in_training_only():
    graph = build(FORWARD, noise_std=0.5)
    state, x = graph.initialize_state(B), {"eyes": {"left": jnp.zeros((B, 3))}}
    first = graph(state, x).output["action"]
    second = graph(graph(state, x).next_state, x).output["action"]
    assert np.abs(first - second).min() > 0
    graph.eval()
    np.testing.assert_array_equal(graph(state, x).output["action"], np.zeros((B, 2)))


def draft():
    graph = PopulationGraph(nnx.Rngs(0))
    graph.add_input("retina", 3, input_from="eyes")
    graph.add_output("motor", 2)
    return graph


def test_before_and_after_finalize():
    graph = draft()
    for use in (
        lambda: graph.initialize_state(1),
        lambda: graph((), {"eyes": jnp.ones((1, 3))}),
        lambda: graph.topology,
    ):
        with pytest.raises(RuntimeError, match=r"call finalize\(\) before using the graph"):
            use()
    graph.connect("retina", "motor")
    graph.finalize()
    for change in (
        graph.finalize,
        lambda: graph.add_population("x", 1),
        lambda: graph.add_input("x", 1, input_from="eyes"),
        lambda: graph.add_output("x", 1),
        lambda: graph.connect("retina", "motor", delay=1),
    ):
        with pytest.raises(RuntimeError, match=r"after finalize\(\); a finalized graph cannot be changed"):
            change()


def test_errors_while_building():
    graph = draft()
    with pytest.raises(TopologyError, match=r"already a population 'motor'; the populations are \['retina', 'motor'\]"):
        graph.add_population("motor", 2)
    with pytest.raises(TopologyError, match="Output 'x': population 'motor' already puts out under 'motor'"):
        graph.add_output("x", 2, output_to="motor")
    with pytest.raises(TopologyError, match=r"size of population 'x' must be .* got 0"):
        graph.add_population("x", 0)
    with pytest.raises(ValueError, match=r"Population 'x': noise_std must be at least 0, got -1.0"):
        graph.add_population("x", 1, noise_std=-1.0)
    with pytest.raises(ValueError, match="Population 'x': Unknown activation 'thanh'"):
        graph.add_population("x", 1, activation="thanh")
    with pytest.raises(TopologyError, match=r"retina -> moto: there is no population 'moto'; did you mean \['motor'\]"):
        graph.connect("retina", "moto")
    with pytest.raises(TypeError, match=r"retina -> motor: transform must be a StatefulModule.*got a Linear"):
        graph.connect("retina", "motor", transform=nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match=r"retina -> motor: \['sign'\] shape the default linear map"):
        graph.connect("retina", "motor", transform=Flattener(), sign=1)
    with pytest.raises(ValueError, match=r"retina -> motor .*: one transform cannot serve both ways"):
        graph.connect("retina", "motor", transform=Dense(3, 2, nnx.Rngs(0)), reciprocal=True, delay=1)
    with pytest.raises(ValueError, match=r"retina -> motor: MaskedDense: expected a mask \[3, 2\]"):
        graph.connect("retina", "motor", mask=np.ones((2, 3)))
    graph.connect("retina", "motor")
    with pytest.raises(TopologyError, match="Connection retina -> motor is there already"):
        graph.connect("retina", "motor")
    graph.connect("motor", "retina")
    with pytest.raises(TopologyError, match="form a cycle without delay"):
        graph.finalize()


def test_errors_in_a_call():
    graph = build(FORWARD)
    state = graph.initialize_state(B)
    with pytest.raises(
        ValueError, match=r"Input population 'retina', input_from=\('eyes', 'left'\): .*no entry 'left'"
    ):
        graph(state, {"eyes": {"right": jnp.ones((B, 3))}})
    with pytest.raises(ValueError, match=r"'retina' has 3 units, .* must choose an array \[B, 3\], got shape \(3, 5\)"):
        graph(state, {"eyes": {"left": jnp.ones((B, 5))}})
    with pytest.raises(ValueError, match=r"expected an input for \['retina'\], got an empty tree"):
        graph(state, {})
    graph = draft()
    graph.connect("retina", "motor", transform=Dense(3, 5, nnx.Rngs(0)))
    graph.finalize()
    with pytest.raises(ValueError, match=r"'motor' has 2 units, so the transform of 'retina' -> 'motor' .*\(3, 5\)"):
        graph(graph.initialize_state(B), {"eyes": jnp.ones((B, 3))})


def test_a_scalar_and_a_matrix_from_outside_are_flattened():
    graph = PopulationGraph(nnx.Rngs(0))
    graph.add_input("scalar", 1, input_from="a")
    graph.add_input("matrix", 6, input_from="b")
    graph.add_output("sum", 1)
    graph.connect("scalar", "sum")
    graph.connect("matrix", "sum")
    graph.finalize()
    out = graph(graph.initialize_state(B), {"a": jnp.ones(B), "b": jnp.ones((B, 2, 3), jnp.int32)})
    assert out.output["sum"].shape == (B, 1)


def test_graphviz_text():
    text = to_graphviz(build(GRAPHS["self-loop"]))
    assert text.startswith("digraph {\n")
    assert '"cortex" -> "cortex" [style=dashed, label="2"];' in text
    assert '"retina" -> "cortex";' in text
    assert text.count(" -> ") == 3
    assert [text.count(f'\n  "{name}" [') for name in ("retina", "cortex", "motor")] == [1, 1, 1]


def test_png(tmp_path):
    draw_graph(build(GRAPHS["long loop"]), "A graph").savefig(tmp_path / "graph.png")
    content = (tmp_path / "graph.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    empty = draw_graph(build(FORWARD))
    # A graph of three in a chain lies on one line, from left to right.
    places = {text.get_text().split("\n")[0]: text.get_position() for text in empty.axes[0].texts if text.get_text()}
    assert places["retina"][0] < places["cortex"][0] < places["motor"][0]
    assert len({y for _, y in places.values()}) == 1
