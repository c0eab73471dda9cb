"""Canonical paths are lossless, modules are found wherever they are held, and the table computes nothing."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rich.console
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from nnx_ppo.networks import factories, naming
from nnx_ppo.networks.containers import Parallel, Sequential
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.naming import (
    describe,
    flatten_activations,
    named_modules,
    near_names,
    parse_path,
    path_string,
    unflatten_activations,
)
from nnx_ppo.networks.recording import extract_activations, with_recording
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput
from nnx_ppo.networks.utils import Scale

KEYS = st.one_of(st.integers(-3, 200), st.sampled_from(["", "0", "-1", "01", "%", "/", "%2F", "a/b", "12"]), st.text())
TREES = st.recursive(st.integers(0, 9), lambda tree: st.dictionaries(KEYS, tree, max_size=3), max_leaves=8)


@pytest.mark.parametrize(
    ("path", "string"),
    [
        ((), ""),
        ((1, "action", 0), "1/action/0"),
        (("trunk", "encoder"), "trunk/encoder"),
        (("1",), "%31"),
        (("-12", 12), "%2D12/12"),
        (("01", "a/b", "50%"), "01/a%2Fb/50%25"),
        (("",), "%"),
    ],
)
def test_paths_by_hand(path, string):
    assert path_string(path) == string
    assert parse_path(string) == path


@given(st.lists(KEYS).map(tuple))
def test_paths_are_lossless(path):
    parsed = parse_path(path_string(path))
    assert parsed == path
    assert [type(key) for key in parsed] == [type(key) for key in path]


@given(st.lists(KEYS, min_size=2, max_size=2))
def test_different_keys_have_different_strings(pair):
    a, b = pair
    assert (path_string((a,)) == path_string((b,))) == (type(a) is type(b) and a == b)


@given(TREES)
@settings(max_examples=200)
def test_activations_are_lossless(tree):
    assert unflatten_activations(flatten_activations(tree)) == tree


def test_activations_of_an_actor_critic():
    network = with_recording(factories.make_mlp_actor_critic(3, 2, [8], [8], nnx.Rngs(0)))
    out = network(network.initialize_state(5), jnp.ones((5, 3)))
    nested = extract_activations(out.metrics)
    flat = flatten_activations(nested)
    assert {path: leaf.shape for path, leaf in flat.items()} == {
        "0": (5, 3),
        "1/action/0": (5, 8),
        "1/action/1": (5, 4),
        "1/action/2/action": (5, 2),
        "1/action/2/log_likelihood": (5,),
        "1/value/0": (5, 8),
        "1/value/1": (5, 1),
    }
    back = unflatten_activations(flat)
    assert jax.tree.structure(back) == jax.tree.structure(nested)
    assert back[1]["action"][0] is nested[1]["action"][0]


@pytest.mark.usefixtures("without_type_checks")
def test_path_messages():
    with pytest.raises(ValueError, match="'a//b' is not a canonical path: '' is empty"):
        parse_path("a//b")
    with pytest.raises(ValueError, match="'50%' is not a canonical path"):
        parse_path("50%")
    with pytest.raises(TypeError, match=r"must be an integer or a string, got 1\.5"):
        path_string((1.5,))
    with pytest.raises(TypeError, match=r"nothing was recorded\. Apply with_recording first"):
        flatten_activations(None)
    with pytest.raises(ValueError, match="'a/b' runs through another entry's array"):
        unflatten_activations({"a": 1, "a/b": 2})
    with pytest.raises(ValueError, match="'a' is both an array and a branch"):
        unflatten_activations({"a/b": 1, "a": 2})


class Inner(nnx.Module):
    def __init__(self, layer):
        self.layer = layer


class Custom(StatefulModule):
    """A user's own composite, with layers in all the places where a module can hold them."""

    def __init__(self, rngs):
        self.encoder = Dense(3, 4, rngs)
        self.blocks = nnx.List([Dense(4, 4, rngs), Sequential([Dense(4, 4, rngs)])])
        self.heads = nnx.Dict(left=Dense(4, 2, rngs))
        self.inner = Inner(Dense(4, 1, rngs))
        self.own = nnx.Linear(4, 4, rngs=rngs)

    def initialize_state(self, batch_size):
        return self.blocks[1].initialize_state(batch_size)

    def __call__(self, state, x, rollout_extras=None):
        x = self.own(self.encoder((), x).output)
        x = self.blocks[0]((), x).output
        out = self.blocks[1](state, x)
        left, right = self.heads["left"]((), out.output).output, self.inner.layer((), out.output).output
        return out.replace(output=jnp.concatenate([left, right], axis=-1))


def test_modules_in_attributes_lists_and_dicts_have_paths():
    assert {path: type(module).__name__ for path, module in named_modules(Custom(nnx.Rngs(0))).items()} == {
        "": "Custom",
        "encoder": "Dense",
        "blocks/0": "Dense",
        "blocks/1": "Sequential",
        "blocks/1/0": "Dense",
        "heads/left": "Dense",
        "inner/layer": "Dense",
    }


def test_a_module_in_two_places_has_two_paths():
    shared = Scale(2.0)
    modules = named_modules(Sequential([shared, Parallel(a=shared)]))
    assert modules["0"] is modules["1/a"] is shared


def test_near_names():
    assert near_names("1/acton/0", ["1/action/0", "1/value/0", "other"])[0] == "1/action/0"
    assert near_names("zzz", ["1/action/0"]) == []


def rows(table):
    return {row.path: row for row in table.rows}


def test_table_of_an_lstm_actor_critic():
    size = {"near": 3, "far": (2, 2)}
    network = factories.make_lstm_actor_critic(size, 2, 8, [5], [4], nnx.Rngs(0))
    table = describe(network, batch_size=6)
    by_path = rows(table)
    assert by_path["normalizer"].output == "far [6, 2, 2], near [6, 3]"
    memory = by_path["memory"]
    assert (memory.layer, memory.output, memory.carry) == ("LSTM", "[6, 8]", "[6, 8], [6, 8]")
    assert memory.parameters == 4 * 8 * (7 + 8 + 1)
    assert by_path["heads/action/2"].output == "action [6, 2], log_likelihood [6]"
    assert by_path["heads/action/2"].carry == "key [6]"
    by_hand = memory.parameters + (8 * 5 + 5) + (5 * 4 + 4) + (8 * 4 + 4) + (4 * 1 + 1)
    assert table.parameters == sum(row.parameters for row in table.rows) == by_hand


def test_shapes_in_the_table_are_those_of_a_recording():
    network = factories.make_mlp_actor_critic(3, 2, [8], [8], nnx.Rngs(0))
    recordable = with_recording(network)
    out = recordable(recordable.initialize_state(1), jnp.ones((1, 3)))
    recorded = flatten_activations(extract_activations(out.metrics))
    table = rows(describe(network))
    for path, leaf in recorded.items():
        layer = next(name for name in (path, path.rpartition("/")[0]) if name in table)
        assert str(list(leaf.shape)) in table[layer].output


def test_table_of_a_custom_network():
    network = Custom(nnx.Rngs(0))
    table = describe(network, obs=jax.ShapeDtypeStruct((3,), jnp.float32))
    assert rows(table)["inner/layer"].output == "[1, 1]"
    # The composite's own parameters stand in no layer's row, but in the total.
    assert table.parameters - sum(row.parameters for row in table.rows) == 4 * 4 + 4
    assert {row.output for row in describe(network).rows} == {"?"}


def test_a_shared_layer_counts_once_in_the_total():
    shared = Dense(3, 3, nnx.Rngs(0))
    table = describe(Sequential([shared, shared]))
    assert [row.parameters for row in table.rows] == [12, 12]
    assert [row.output for row in table.rows] == ["[1, 3]", "[1, 3]"]
    assert table.parameters == 12


def test_text_and_rich_show_every_cell():
    table = describe(factories.make_mlp_actor_critic(3, 2, [1000], [8], nnx.Rngs(0)))
    console = rich.console.Console(width=200, record=True, file=io.StringIO())
    console.print(table)
    sampler = ["1/action/2", "NormalTanhSampler", "action [1, 2], log_likelihood [1]", "key [1]"]
    for text in (str(table), console.export_text()):
        for cell in ["path", "4,000", "total", *sampler]:
            assert cell in text


def test_describe_leaves_the_network_bit_identical():
    network = factories.make_lstm_actor_critic(3, 2, 8, [5], [4], nnx.Rngs(0))
    network.eval()
    before = bits(nnx.state(network))
    graphdef = nnx.graphdef(network)
    describe(network)
    for a, b in zip(before, bits(nnx.state(network)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert nnx.graphdef(network) == graphdef
    assert network["heads"]["action"][2].deterministic


def bits(state):
    def raw(leaf):
        return np.array(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)

    return [raw(leaf) for leaf in jax.tree.leaves(state)]


def test_describe_computes_nothing():
    # A network of shapes without numbers: there is nothing to compute with.
    make = lambda: factories.make_lstm_actor_critic(3, 2, 8, [5], [4], nnx.Rngs(0))  # noqa: E731
    assert describe(nnx.eval_shape(make)) == describe(make())


def test_describe_reports_an_observation_that_does_not_fit():
    network = factories.make_mlp_actor_critic(3, 2, [8], [8], nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"samples of shape \(3,\)"):
        describe(network, obs=jnp.zeros(4))


def test_output_is_unknown_where_the_first_layer_does_not_tell():
    assert describe(Sequential([Scale(1.0)])).rows[0].output == "?"


def test_names_are_public():
    for name in ("describe", "flatten_activations", "named_modules", "parse_path", "path_string"):
        assert getattr(naming, name).__doc__


def test_empty_output_has_a_dash():
    class Nothing(StatefulModule):
        def __call__(self, state, x, rollout_extras=None):
            return StatefulModuleOutput(state, {}, jnp.zeros(x.shape[0]), {})

    assert describe(Nothing(), obs=jnp.zeros(3)).rows[0].output == "-"
