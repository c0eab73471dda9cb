"""Recording one step: the table of paths, and what must hold always (inert, identical, shared, off by absence)."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks.containers import Sequential
from nnx_ppo.networks.factories import make_mlp_actor_critic
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.recording import ACTIVATION_KEY, Recorder, extract_activations, with_recording
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput
from tests.helpers import assert_same_bits, bits, lstm, mlp, trees

OBS = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)


def everything(network: nnx.Module) -> list[np.ndarray]:
    return bits(nnx.state(network))


def test_the_table_of_paths():
    network = make_mlp_actor_critic(3, 2, [5, 6], [7, 8], nnx.Rngs(0))
    recordable = with_recording(network)
    recordable.eval()
    out = recordable(recordable.initialize_state(4), OBS)
    activations = extract_activations(out.metrics)
    shapes = {
        (0,): (4, 3),
        (1, "action", 0): (4, 5), (1, "action", 1): (4, 6), (1, "action", 2): (4, 4),
        (1, "action", 3, "action"): (4, 2), (1, "action", 3, "log_likelihood"): (4,),
        (1, "value", 0): (4, 7), (1, "value", 1): (4, 8), (1, "value", 2): (4, 1),
    }  # fmt: skip
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(activations):
        found[tuple(entry.key for entry in path)] = leaf.shape
    assert found == shapes


def test_values_are_those_of_the_layers():
    """Against the same network, computed by hand from its parameters."""
    network = make_mlp_actor_critic(3, 2, [5], [7], nnx.Rngs(0), activation="tanh")
    recordable = with_recording(network)
    recordable.eval()
    got = extract_activations(recordable(recordable.initialize_state(4), OBS).metrics)
    normalised = np.asarray(OBS) / 10.0  # before the first data: mean 0, std 10
    np.testing.assert_allclose(got[0], normalised, rtol=1e-5)
    params = {
        "/".join(map(str, path)): np.asarray(leaf[...])
        for path, leaf in nnx.to_flat_state(nnx.state(network, nnx.Param))
    }

    def layer(head: str, i: int, x: np.ndarray) -> np.ndarray:
        names = [name for name in params if f"/{head}/modules/{i}/" in name]
        kernel = next(params[name] for name in names if name.endswith("kernel"))
        bias = next(params[name] for name in names if name.endswith("bias"))
        return x @ kernel + bias

    for head in ("action", "value"):
        hidden = np.tanh(layer(head, 0, normalised))
        np.testing.assert_allclose(got[1][head][0], hidden, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(got[1][head][1], layer(head, 1, hidden), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [mlp, lstm, trees])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_inert_and_bit_identical(make, mode):
    network = make()
    getattr(network, mode)()
    twin = make()
    getattr(twin, mode)()
    obs: Any = OBS if make is not trees else {"near": OBS, "far": {"x": OBS[:, :2]}}
    before, graph = everything(network), nnx.graphdef(network)
    recordable = with_recording(network)
    assert_same_bits(before, nnx.state(network))
    carry, twin_carry = recordable.initialize_state(4), twin.initialize_state(4)
    for _ in range(3):
        out, twin_out = recordable(carry, obs), twin(twin_carry, obs)
        assert_same_bits(
            (out.output, out.next_state, out.regularization_loss),
            (twin_out.output, twin_out.next_state, twin_out.regularization_loss),
        )
        carry, twin_carry = out.next_state, twin_out.next_state
    assert_same_bits(before, nnx.state(network))
    assert nnx.graphdef(network) == graph
    recordable.eval()
    assert nnx.graphdef(network) == graph


@pytest.mark.parametrize("make", [mlp, lstm])
def test_off_by_absence(make):
    """An ordinary network contains no recorder, and its step has no output for activations."""
    network = make()
    with_recording(network)
    assert not any(isinstance(node, Recorder) for _, node in nnx.iter_graph(network))
    metrics = network(network.initialize_state(2), OBS[:2]).metrics
    assert extract_activations(metrics) is None
    assert ACTIVATION_KEY not in str(jax.tree.structure(metrics))


def test_shares_parameters_and_follows_them_but_owns_its_streams():
    network = mlp()
    recordable = with_recording(network)
    originals = {id(node) for _, node in nnx.iter_graph(network) if isinstance(node, nnx.Variable)}
    for _, node in nnx.iter_graph(recordable):
        if isinstance(node, nnx.RngState):
            assert id(node) not in originals
        elif isinstance(node, nnx.Variable):
            assert id(node) in originals
    nnx.update(network, jax.tree.map(lambda x: x * 2, nnx.state(network, nnx.Param)))
    network.eval(), recordable.eval()
    assert_same_bits(
        network(network.initialize_state(4), OBS).output, recordable(recordable.initialize_state(4), OBS).output
    )


def test_already_recordable_is_returned_unchanged_with_a_warning():
    recordable = with_recording(mlp())
    with pytest.warns(UserWarning, match="already records"):
        assert with_recording(recordable) is recordable


def test_a_module_used_twice_is_recorded_at_both_places():
    dense = Dense(3, 3, nnx.Rngs(0), activation="tanh")
    recordable = with_recording(Sequential([dense, dense]))
    got = extract_activations(recordable(recordable.initialize_state(4), OBS).metrics)
    np.testing.assert_array_equal(got[0], dense((), OBS).output)
    np.testing.assert_array_equal(got[1], dense((), got[0]).output)
    assert recordable[0] is recordable[1]


def test_a_network_without_a_leaf_is_an_error():
    class Plain(nnx.Module):
        def __init__(self) -> None:
            self.linear = nnx.Linear(3, 3, rngs=nnx.Rngs(0))

    with pytest.raises(ValueError, match="Plain has no layer to record"):
        with_recording(Plain())  # type: ignore[arg-type]


class HandMade(StatefulModule):
    """A user's own module that threads its children by hand, one of them in a list."""

    def __init__(self, rngs: nnx.Rngs):
        self.first = Dense(3, 4, rngs)
        self.others = nnx.List([Dense(4, 5, rngs)])

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        first = self.first((), x)
        second = self.others[0]((), first.output)
        metrics = {"first": first.metrics, "others": {0: second.metrics}}
        return StatefulModuleOutput((), second.output, jnp.zeros(len(x)), metrics)


def test_layers_inside_a_users_own_module():
    recordable = with_recording(HandMade(nnx.Rngs(0)))
    got = extract_activations(recordable((), OBS).metrics)
    assert jax.tree.map(jnp.shape, got) == {"first": (4, 4), "others": {0: (4, 5)}}


class Monolith(StatefulModule):
    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        return StatefulModuleOutput((), x * 2.0, jnp.zeros(len(x)), {"own": x})


def test_a_network_that_is_one_leaf():
    recordable = with_recording(Monolith())
    out = recordable((), OBS)
    np.testing.assert_array_equal(extract_activations(out.metrics), OBS * 2.0)
    assert set(out.metrics) == {"own", ACTIVATION_KEY}


def test_jit_scan_and_python_loop_agree():
    recordable = with_recording(lstm())
    recordable.eval()
    carry = recordable.initialize_state(4)
    xs = jnp.stack([OBS * (i + 1) for i in range(3)])
    step = jax.jit(lambda net, carry, x: extract_activations(net(carry, x).metrics))
    looped, jitted, state = [], [], carry
    for x in xs:
        out = recordable(state, x)
        looped.append(extract_activations(out.metrics))
        jitted.append(step(recordable, state, x))
        state = out.next_state
    graphdef, variables = nnx.split(recordable)

    def body(state: Any, x: Any) -> Any:
        out = nnx.merge(graphdef, variables)(state, x)
        return out.next_state, extract_activations(out.metrics)

    scanned = jax.lax.scan(body, carry, xs)[1]
    unrolled = extract_activations(recordable.unroll(carry, xs, jnp.zeros((3, 4), bool)).metrics)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *looped)
    for other in (jax.tree.map(lambda *leaves: jnp.stack(leaves), *jitted), scanned, unrolled):
        assert jax.tree.structure(other) == jax.tree.structure(stacked)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), other, stacked)


def test_snapshots_do_not_change_later():
    recordable = with_recording(lstm())
    carry = recordable.initialize_state(4)
    out = recordable(carry, OBS)
    first = extract_activations(out.metrics)
    before = bits(first)
    for _ in range(3):
        out = recordable(out.next_state, OBS)
    assert_same_bits(before, first)


def test_patterns():
    network = make_mlp_actor_critic(3, 2, [5, 6], [7], nnx.Rngs(0))

    def recorded(**patterns: Any) -> set[str]:
        net = with_recording(network, **patterns)
        found = extract_activations(net(net.initialize_state(4), OBS).metrics)
        paths = jax.tree_util.tree_leaves_with_path(found)
        return {"/".join(str(entry.key) for entry in path) for path, _ in paths}

    assert recorded(include="*/action/[01]") == {"1/action/0", "1/action/1"}
    assert recorded(include=["0", "*/value/*"], exclude="*/value/1") == {"0", "1/value/0"}
    assert recorded(exclude=["*/action/*", "0"]) == {"1/value/0", "1/value/1"}
    with pytest.raises(ValueError, match=r"include='1/actoin/0' matches no layer; near names: .*1/action/0"):
        with_recording(network, include="1/actoin/0")
    with pytest.raises(ValueError, match=r"exclude='nonsense\*' matches no layer; near names"):
        with_recording(network, exclude="nonsense*")
    with pytest.raises(ValueError, match="leave no layer to record"):
        with_recording(network, include="0", exclude="0")


def test_no_warning_for_an_ordinary_network():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with_recording(mlp())
