"""Recording of carry and pre-activation: against the layers themselves, in steps and in sequences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks import (
    LSTM,
    Dense,
    GaussianNoise,
    MaskedDense,
    PopulationGraph,
    Sequential,
    extract_activations,
    with_recording,
)
from tests.helpers import assert_same_bits

T, B = 4, 2
WHAT = ("output", "carry", "pre_activation")


def make():
    rngs = nnx.Rngs(0)
    graph = PopulationGraph(rngs)
    graph.add_input("in", 3, input_from=None, activation="tanh")
    graph.add_output("out", 2, activation="tanh", noise_std=0.3)
    graph.connect("in", "out", delay=2)
    graph.finalize()
    return Sequential(
        {
            "dense": Dense(3, 3, rngs, "tanh"),
            "masked": MaskedDense(3, 3, rngs, "tanh", density=0.5),
            "noise": GaussianNoise(0.1, rngs),
            "memory": LSTM(3, 3, rngs),
            "graph": graph,
        }
    )


def test_values_and_shapes():
    network, x = make(), jnp.linspace(-1, 1, 6).reshape(B, 3)
    recordable = with_recording(network, what=WHAT)
    state = recordable.initialize_state(B)
    out, plain = recordable(state, x), network(state, x)
    assert_same_bits(
        (out.output, out.next_state, out.regularization_loss),
        (plain.output, plain.next_state, plain.regularization_loss),
    )
    got = extract_activations(out.metrics)
    entries = {name: sorted(value) for name, value in got.items()}
    assert entries == {
        "dense": ["output", "pre_activation"],
        "masked": ["output", "pre_activation"],
        "noise": ["output"],
        "memory": ["carry", "output"],
        "graph": ["in", "out"],
    }
    linear = network["dense"].linear
    np.testing.assert_allclose(
        got["dense"]["pre_activation"], np.asarray(x) @ np.asarray(linear.kernel[...]), rtol=1e-5, atol=1e-6
    )
    for layer in (got["dense"], got["masked"], got["graph"]["in"], got["graph"]["out"]):
        np.testing.assert_allclose(np.tanh(layer["pre_activation"]), layer["output"], rtol=1e-5, atol=1e-6)
    c, h = plain.next_state["memory"]
    np.testing.assert_array_equal(got["memory"]["carry"][0], c)
    np.testing.assert_array_equal(got["memory"]["carry"][1], h)
    assert got["graph"]["in"]["carry"]["buffer"]["buffer"].shape == (B, 2, 3)
    assert "carry" not in got["graph"]["out"]  # nothing but a random key
    # The copies without activation leave the layers as they are.
    assert network["dense"].activation is not None


def test_a_sequence_records_the_carry_of_every_step():
    network = make()
    xs = jax.random.normal(jax.random.key(0), (T, B, 3))
    dones = jnp.zeros((T, B), bool).at[1, 0].set(True)
    recordable = with_recording(network, what=WHAT)
    state = recordable.initialize_state(B)
    out, plain = recordable.unroll(state, xs, dones), network.unroll(state, xs, dones)
    np.testing.assert_allclose(out.output["out"], plain.output["out"], rtol=1e-5, atol=1e-6)
    carry = extract_activations(out.metrics)["memory"]["carry"]
    # The output of an LSTM is the second half of the carry, before a reset.
    np.testing.assert_array_equal(carry[1], extract_activations(out.metrics)["memory"]["output"])
    np.testing.assert_allclose(carry[0][-1], plain.next_state["memory"][0], rtol=1e-5, atol=1e-6)


def test_the_output_alone_by_default_and_by_name():
    network, x = make(), jnp.ones((B, 3))
    for options in ({}, {"what": ("output",)}):
        recordable = with_recording(network, **options)
        assert extract_activations(recordable(recordable.initialize_state(B), x).metrics)["dense"].shape == (B, 3)
    recordable = with_recording(network, what=("carry",))
    got = extract_activations(recordable(recordable.initialize_state(B), x).metrics)
    assert set(got["memory"]) == {"carry"}


@pytest.mark.parametrize("what", ["output", (), ("output", "cell")])
def test_unknown_what(what):
    with pytest.raises(ValueError, match=r"what must be a tuple with one or more of \['output', 'carry', .*got"):
        with_recording(make(), what=what)
