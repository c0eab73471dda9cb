"""Interventions against NumPy, in every way of running a network, with recordings in both orders, and their errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.algorithms.rollout import _compiled_evaluation, eval_rollout, record_activations_rollout
from nnx_ppo.envs import make_env
from nnx_ppo.networks import (
    CategoricalSampler,
    Dense,
    Flattener,
    NormalTanhSampler,
    PopulationGraph,
    Sequential,
    describe,
    extract_activations,
    make_mlp,
    make_mlp_actor_critic,
    reset_where,
    with_recording,
)
from nnx_ppo.networks.interventions import Ablate, AddNoise, Clamp, Inject, Scale, with_interventions
from nnx_ppo.recordings import record
from nnx_ppo.testing import check_stateful_module
from tests.helpers import assert_same_bits, bits, mlp

B, T = 2, 6
XS = jnp.asarray(np.random.default_rng(0).normal(size=(T, B, 3)), jnp.float32)
DONES = jnp.zeros((T, B), bool).at[2, 0].set(True)
# Steps of the episode at each of the T steps: the first environment starts anew after the third.
TIMES = np.array([[0, 0], [1, 1], [2, 2], [0, 3], [1, 4], [2, 5]])
DRIVE = np.arange(8.0).reshape(4, 2)
DRIVE_OF_EACH = np.arange(16.0).reshape(4, B, 2)


def net():
    return make_mlp([3, 4, 2], nnx.Rngs(0), activation="tanh")


def stepped(network, xs=XS, dones=DONES):
    """Outputs ``[T, B, ...]`` and the last carry, one call a step."""
    state, outs = network.initialize_state(xs.shape[1]), []
    for x, done in zip(xs, dones, strict=True):
        out = network(state, x)
        state = reset_where(network, done, out.next_state)
        outs.append(np.asarray(out.output))
    return np.stack(outs), state


def first_layer():
    return np.asarray(net()[0].unroll((), XS, DONES).output).copy()


def first_layer_stepped():
    # Compiled for another shape, the hyperbolic tangent may differ in its last bit.
    return np.stack([np.asarray(net()[0]((), x).output) for x in XS])


def ablated(x):
    x[..., [1, 3]] = 0
    return x


def scaled(x):
    x[..., 0] *= 2
    x[..., 2] *= -1
    return x


def clamped_early(x):
    x[..., 2] = np.where(TIMES < 2, 0.5, x[..., 2])
    return x


def clamped_late(x):
    x[..., 2] = np.where(TIMES > 2, 0.5, x[..., 2])
    return x


def driven(x):
    x[..., [3, 1]] = np.where((TIMES < 4)[..., None], DRIVE[np.minimum(TIMES, 3)], x[..., [3, 1]])
    return x


def driven_each(x):
    there = DRIVE_OF_EACH[np.minimum(TIMES, 3), np.arange(B)]
    x[..., [3, 1]] = np.where((TIMES < 4)[..., None], there, x[..., [3, 1]])
    return x


def driven_by_function(x):
    x[..., 0], x[..., 1] = 10.0 * TIMES, 1.0
    return x


KINDS = {
    "ablate": (Ablate([1, 3]), ablated),
    "ablate by mask": (Ablate(np.array([False, True, False, True])), ablated),
    "ablate all": (Ablate(), np.zeros_like),
    "scale": (Scale([0, 2], [2.0, -1.0]), scaled),
    "clamp, when is an array": (Clamp(2, 0.5, when=[True, True, False]), clamped_early),
    "clamp, when is a function": (Clamp(2, 0.5, when=lambda step: step > 2), clamped_late),
    "inject": (Inject(DRIVE, [3, 1]), driven),
    "inject, by environment": (Inject(DRIVE_OF_EACH, [3, 1]), driven_each),
    "inject a function": (Inject(lambda step: jnp.stack([step * 10, 1]), [0, 1]), driven_by_function),
    "two, one after the other": ((Ablate([1, 3]), Scale([0, 2], [2.0, -1.0])), lambda x: scaled(ablated(x))),
    "never": (Clamp(None, 9.0, when=[False]), lambda x: x),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_step_by_step_and_at_once(kind):
    """The first layer against NumPy, bit for bit; the second reads what the first puts out."""
    intervention, by_hand = KINDS[kind]
    changed = with_interventions(net(), {"0": intervention})
    expected = by_hand(first_layer())
    got, state = stepped(changed[0])
    np.testing.assert_array_equal(got, by_hand(first_layer_stepped()))
    at_once = changed[0].unroll(changed[0].initialize_state(B), XS, DONES)
    np.testing.assert_array_equal(at_once.output, expected)
    assert_same_bits(at_once.next_state, state)
    whole = changed.unroll(changed.initialize_state(B), XS, DONES).output
    kernel, bias = (np.asarray(v[...]) for v in (net()[1].linear.kernel, net()[1].linear.bias))
    np.testing.assert_allclose(whole, np.tanh(expected @ kernel + bias), rtol=1e-5, atol=1e-6)


def test_noise():
    """Normal, of the given size, on the chosen units, another at each step and in each environment; from the key."""
    xs, dones = jnp.zeros((200, B, 3)), jnp.zeros((200, B), bool)
    changed = with_interventions(net(), {"0": AddNoise([0.5, 0.1], [2, 0])})
    state = changed[0].initialize_state(B)
    plain = np.asarray(net()[0].unroll((), xs, dones).output)
    noise = np.asarray(changed[0].unroll(state, xs, dones).output) - plain
    np.testing.assert_array_equal(noise[..., [1, 3]], 0)
    np.testing.assert_allclose(noise[..., [2, 0]].std(axis=(0, 1)), [0.5, 0.1], rtol=0.12)
    assert abs(np.corrcoef(noise[:, 0, 2], noise[:, 1, 2])[0, 1]) < 0.25
    assert abs(np.corrcoef(noise[1:, 0, 2], noise[:-1, 0, 2])[0, 1]) < 0.25
    again = with_interventions(net(), {"0": AddNoise([0.5, 0.1], [2, 0])})[0].initialize_state(B)
    other = with_interventions(net(), {"0": AddNoise([0.5, 0.1], [2, 0], seed=1)})[0].initialize_state(B)
    assert_same_bits(state, again)
    assert (jax.random.key_data(state["effect"]["key"]) != jax.random.key_data(other["effect"]["key"])).any()


def graph():
    graph = PopulationGraph(nnx.Rngs(0))
    graph.add_input("retina", 3, input_from=None)
    graph.add_population("cortex", 4, activation="tanh")
    graph.add_output("motor", 2)
    graph.connect("retina", "cortex")
    graph.connect("cortex", "cortex", delay=1)
    graph.connect("cortex", "motor", delay=1)
    graph.finalize()
    return graph


CONTRACT = {
    "layer": lambda: with_interventions(
        net(), {"0": [Scale([1], 3.0, when=lambda step: step > 0), AddNoise(0.1)], "1": Inject(DRIVE)}
    ),
    "population": lambda: with_interventions(graph(), {"cortex": AddNoise(0.3, [1, 2]), "motor": Clamp([0], 0.2)}),
    "sampler": lambda: with_interventions(
        Sequential([Dense(3, 4, nnx.Rngs(0)), NormalTanhSampler(nnx.Rngs(0), 0.1)]),
        {"1": [Clamp([1], 0.3), AddNoise(0.1)]},
    ),
}


@pytest.mark.parametrize("name", CONTRACT)
def test_contract(name):
    check_stateful_module(CONTRACT[name], jnp.zeros(3))


def test_other_populations_read_what_is_left():
    """Without delay and through the buffer of a delay: motor(t) = W cortex(t - 1) + b, cortex held at one value."""
    changed = with_interventions(graph(), {"cortex": Clamp(None, [0.1, 0.2, 0.3, 0.4])})
    recordable = with_recording(changed, what=("output", "pre_activation"))
    out = recordable.unroll(recordable.initialize_state(B), XS, DONES)
    activations = extract_activations(out.metrics)
    held = np.broadcast_to(np.float32([0.1, 0.2, 0.3, 0.4]), (T, B, 4))
    np.testing.assert_array_equal(activations["cortex"]["output"], held)
    linear = graph()["motor"]["cortex@1"].linear
    before = np.where((TIMES > 0)[..., None], held, 0)
    expected = before @ np.asarray(linear.kernel[...]) + np.asarray(linear.bias[...])
    np.testing.assert_allclose(activations["motor"]["output"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(stepped_motor(changed), expected, rtol=1e-5, atol=1e-6)
    assert not np.allclose(activations["cortex"]["pre_activation"], held)


def stepped_motor(network):
    state, outs = network.initialize_state(B), []
    for x, done in zip(XS, DONES, strict=True):
        out = network(state, x)
        state = reset_where(network, done, out.next_state)
        outs.append(np.asarray(out.output["motor"]))
    return np.stack(outs)


def test_two_interventions_on_a_population_come_one_after_the_other():
    once = with_interventions(graph(), {"cortex": Clamp([0], 0.5)})
    twice = with_interventions(once, {"cortex": Scale([0, 1], 2.0)})
    got = extract_activations(stepped_metrics(with_recording(twice)))["cortex"]
    plain = extract_activations(stepped_metrics(with_recording(graph())))["cortex"]
    np.testing.assert_allclose(got[:, 0], 1.0)
    np.testing.assert_allclose(got[:, 1], 2 * plain[:, 1], rtol=1e-6)
    assert describe(twice, XS[0, 0]).rows[1].layer == "Population <- retina, cortex@1 + Sequential"


def stepped_metrics(network):
    return network(network.initialize_state(B), XS[0]).metrics


@pytest.mark.parametrize("order", ["recording last", "recording first"])
def test_a_recording_shows_what_is_left(order):
    what = ("output", "pre_activation", "carry")
    changes = {"1/action/0": Clamp([3], 0.25), "1/action/2": Clamp([0], 0.5), "0": Ablate([1])}
    if order == "recording last":
        network = with_recording(with_interventions(mlp(), changes), what=what)
    else:
        network = with_interventions(with_recording(mlp(), what=what), changes)
    network.eval()
    out = network(network.initialize_state(B), XS[0])
    found = extract_activations(out.metrics)
    hidden = found[1]["action"][0]
    np.testing.assert_array_equal(hidden["output"][:, 3], np.float32(0.25))
    np.testing.assert_array_equal(found[0]["output"][:, 1], 0)
    np.testing.assert_array_equal(out.output.actions[:, 0], np.float32(0.5))
    np.testing.assert_array_equal(found[1]["action"][2]["output"]["action"], out.output.actions)
    others = np.array([0, 1, 2, 4, 5, 6, 7])
    np.testing.assert_allclose(hidden["output"][:, others], np.tanh(hidden["pre_activation"])[:, others], rtol=1e-6)
    assert "carry" not in hidden


def test_original_untouched_and_shared():
    network = mlp()
    before, structure = bits(nnx.state(network)), nnx.graphdef(network)
    changed = with_interventions(network, {"1/action/0": AddNoise(0.1), "1/value/0": Ablate([0])})
    changed.eval()
    changed(changed.initialize_state(B), XS[0])
    assert_same_bits(before, nnx.state(network))
    assert nnx.graphdef(network) == structure
    originals = {id(node) for _, node in nnx.iter_graph(network) if isinstance(node, nnx.Variable)}
    params = [node for _, node in nnx.iter_graph(changed) if isinstance(node, nnx.Param)]
    streams = [node for _, node in nnx.iter_graph(changed) if isinstance(node, nnx.RngState)]
    assert all(id(param) in originals for param in params)
    assert not any(id(stream) in originals for stream in streams)
    assert len(params) == len(jax.tree.leaves(nnx.state(network, nnx.Param)))
    kernel = network[1]["value"][1].linear.kernel
    kernel[...] = kernel[...] * 2  # training goes on
    assert changed[1]["value"][1].linear.kernel[0, 0] == kernel[0, 0]


def test_only_the_place_that_is_named():
    """A layer that is used twice is changed where the path says."""
    shared = Dense(3, 3, nnx.Rngs(0))
    network = Sequential({"first": shared, "second": shared})
    changed = with_interventions(network, {"second": Ablate([0])})
    out = changed(changed.initialize_state(B), XS[0]).output
    expected = np.asarray(network(network.initialize_state(B), XS[0]).output).copy()
    expected[:, 0] = 0
    np.testing.assert_array_equal(out, expected)
    assert len(jax.tree.leaves(nnx.state(changed, nnx.Param))) == 2


def test_time_counts_from_the_start_of_each_episode_in_rollouts_and_recordings(tmp_path):
    """Episodes of counting last four steps; unit 0 is driven by the step, up to the third."""
    env = make_env("probe:counting")
    network = counting_network()
    drive = np.array([[5.0], [6.0], [7.0]])
    changed = with_interventions(network, {"1/action/0": Inject(drive, [0]), "1/action/1": AddNoise(0.5)})
    recording = record(env, changed, tmp_path / "r.zarr", n_envs=2, n_steps=9, key=3)
    driven = recording.layer("1/action/0")[..., 0]
    np.testing.assert_array_equal(driven[[0, 1, 2, 4, 5, 6, 8]].T, np.tile([5, 6, 7, 5, 6, 7, 5], (2, 1)))
    assert set(driven[3].tolist()) & {5.0, 6.0, 7.0} == set()
    activations, _ = record_activations_rollout(env, changed, 2, 4, jax.random.key(3))
    np.testing.assert_array_equal(activations[1]["action"][0], recording.layer("1/action/0")[:4])
    np.testing.assert_array_equal(activations[1]["action"][1], recording.layer("1/action/1")[:4])
    again, _ = record_activations_rollout(env, changed, 2, 4, jax.random.key(4))
    assert not np.array_equal(activations[1]["action"][1], again[1]["action"][1])


def counting_network():
    return make_mlp_actor_critic(1, 1, [4], [4], nnx.Rngs(0))


def test_other_numbers_compile_nothing():
    env, network = make_env("probe:counting"), counting_network()
    args = (2, 4, jax.random.key(0))
    eval_rollout(env, with_interventions(network, {"1/action/0": Ablate([0])}), *args)
    compiled = _compiled_evaluation.cache_info().misses
    for unit in range(1, 4):
        eval_rollout(env, with_interventions(network, {"1/action/0": Ablate([unit])}), *args)
    assert _compiled_evaluation.cache_info().misses == compiled


def test_discrete_actions():
    def make():
        return Sequential([Dense(3, 4, nnx.Rngs(0)), CategoricalSampler(nnx.Rngs(0), 0.0)])

    changed = with_interventions(make(), {"1": Clamp(None, 2)})
    assert changed(changed.initialize_state(B), XS[0]).output["action"].tolist() == [2, 2]
    drive = with_interventions(make(), {"1/action": Inject([[1], [3]])})
    state = drive.initialize_state(B)
    assert drive(drive(state, XS[0]).next_state, XS[0]).output["action"].tolist() == [3, 3]
    for refused in (Ablate(), Scale(None, 2.0), AddNoise(1.0)):
        with pytest.raises(ValueError, match=r"'1' holds whole numbers \(int32\).*use Clamp or Inject"):
            with_interventions(make(), {"1": refused})
    with pytest.raises(ValueError, match="Clamp: value must hold whole numbers too"):
        with_interventions(make(), {"1": Clamp(None, 0.5)})


def test_factor_zero_silences_what_is_not_finite():
    layer = with_interventions(Sequential([Dense(3, 1, nnx.Rngs(0))]), {"0": Scale(None, 0.0)})
    out = layer(layer.initialize_state(1), jnp.full((1, 3), jnp.inf)).output
    assert out.tolist() == [[0.0]]


def test_layer_tables_say_what_is_done():
    table = describe(with_interventions(net(), {"0": [Ablate([1]), AddNoise(0.1)]}))
    assert [row.layer for row in table.rows] == ["Dense + Ablate + AddNoise", "Dense"]
    assert [row.path for row in describe(with_recording(net())).rows] == ["0", "1"]


def flat_net():
    return Sequential([Flattener(), Dense(3, 2, nnx.Rngs(0))])


ERRORS = {
    "unknown path": (net, {"2": Ablate()}, r"there is no layer '2'; near names: \['0', '1'\]"),
    "near path": (mlp, {"1/action/4": Ablate()}, r"no layer '1/action/4'; near names: \['1/action/"),
    "container": (mlp, {"1/action": Ablate()}, r"'1/action' is no layer but holds several: name one of \['1/action/0'"),
    "below an array": (net, {"0/x": Ablate()}, r"there is no array '0/x' in what '0' puts out; near names: \['0'\]"),
    "log-likelihood": (mlp, {"1/action/2/log_likelihood": Ablate()}, "follows from the action: intervene on that"),
    "units": (net, {"0": Ablate([0, 4])}, r"'0' has 4 units, 0 to 3: Ablate cannot act on \[4\]"),
    "negative units": (net, {"0": Ablate([-1])}, r"'0' has 4 units, 0 to 3: Ablate cannot act on \[-1\]"),
    "units twice": (net, {"0": Ablate([1, 1])}, r"Ablate names a unit twice: \[1, 1\]"),
    "no units": (net, {"0": Ablate([])}, "takes some of these numbers"),
    "float units": (net, {"0": Ablate([0.5])}, "takes some of these numbers"),
    "mask": (net, {"0": Ablate([True, False])}, "needs a mask of 4 entries, got 2"),
    "values": (net, {"0": Clamp([1, 2], [1.0, 2.0, 3.0])}, r"Clamp: value must be a number or one for each of 2 units"),
    "words": (net, {"0": Clamp([1], "high")}, "Clamp: value must be numbers"),
    "std": (net, {"0": AddNoise(-1.0)}, "AddNoise: std must be at least 0, got -1.0"),
    "activity": (net, {"0": Inject(np.zeros((5, 3)))}, r"expected an array \[T, 4\] or \[T, B, 4\] for 4 units, got"),
    "when": (net, {"0": Ablate(when=[1, 0])}, r"when must be a bool array \[T\] .* got an array of int64"),
    "no intervention": (net, {"0": [3.0]}, "expected an intervention such as Ablate"),
    "a class": (net, {"0": Ablate}, r"expected an intervention such as Ablate\(\), or several, got <class"),
    "no shape": (flat_net, {"1": Ablate([0])}, "does not tell how many units '1' has: give obs="),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    make, interventions, message = ERRORS[name]
    with pytest.raises(ValueError, match=message):
        with_interventions(make(), interventions)


def test_errors_when_it_runs():
    by_env = with_interventions(net(), {"0": Inject(DRIVE_OF_EACH, [0, 1])})
    with pytest.raises(ValueError, match=r"made for 2 environments \[T, 2, units\], but the network runs in 3"):
        by_env.initialize_state(3)
    wrong = with_interventions(net(), {"0": Inject(lambda step: jnp.zeros(3), [0, 1])})
    with pytest.raises(ValueError, match=r"one for each of 2 units, got shape \[3\]"):
        wrong(wrong.initialize_state(B), XS[0])
    other = with_interventions(flat_net(), {"0": Ablate([0])}, obs=jnp.zeros(3))
    with pytest.raises(ValueError, match=r"Ablate: made for a layer whose output has shape \('B', 3\)"):
        other[0](other[0].initialize_state(1), jnp.zeros((1, 4)))
    with pytest.raises(ValueError, match="no layer to intervene on"):
        with_interventions(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), {"0": Ablate()})
