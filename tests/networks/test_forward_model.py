"""ForwardModel: the error by a loop over the network alone; behaviour unchanged; gradients; errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks import (
    GRU,
    CategoricalSampler,
    Dense,
    Filter,
    ForwardModel,
    Map,
    NormalTanhSampler,
    Sequential,
)

T, B = 5, 3


def make(weight=0.5, sampler=None, **options):
    rngs = nnx.Rngs(0)
    sampler = sampler or NormalTanhSampler(rngs, 0.1)
    network = Sequential([Map(a=Dense(2, 2, rngs), b=Dense(3, 4, rngs)), Filter("b"), GRU(4, 4, rngs), sampler])
    options = {"action_size": 2, "target": "a", **options}
    predictor = Dense(4 + options["action_size"], 2, rngs)
    return ForwardModel(network, predictor, weight=weight, **options)


@pytest.fixture
def sequence():
    rng = np.random.default_rng(0)
    dones = np.zeros((T, B), bool)
    dones[1, 0] = dones[3, 2] = dones[2, 2] = True
    xs = {"a": rng.normal(size=(T, B, 2)), "b": rng.normal(size=(T, B, 3))}
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), xs), jnp.asarray(dones)


def test_error_by_a_loop_over_the_network_alone(sequence):
    xs, dones = sequence
    module = make()
    state = module.initialize_state(B)
    out = module.unroll(state, xs, dones)
    network, linear = module["network"], module["predictor"].linear
    kernel, bias = np.asarray(linear.kernel[...]), np.asarray(linear.bias[...])
    carry, errors, action = state["network"], np.zeros((T, B)), None
    for t in range(T):
        if t:
            prediction = np.concatenate([carry[2], action], -1) @ kernel + bias
            error = np.mean((prediction - np.asarray(xs["a"][t])) ** 2, axis=-1)
            errors[t] = np.where(dones[t - 1], 0, error)
        alone = network(carry, jax.tree.map(lambda leaf, t=t: leaf[t], xs))
        np.testing.assert_allclose(out.output["action"][t], alone.output["action"], rtol=1e-5, atol=1e-6)
        action = np.asarray(alone.output["action"])
        carry = {**alone.next_state, 2: jnp.where(dones[t][:, None], 0, alone.next_state[2])}
    assert (errors[1:] > 0).any(axis=1).all()
    np.testing.assert_allclose(out.metrics["fm_pred_mse"], errors, rtol=1e-4, atol=1e-6)
    entropy_bonus = -0.1 * out.metrics["network"][3]["entropy"]
    np.testing.assert_allclose(out.regularization_loss, entropy_bonus + 0.5 * errors, rtol=1e-4, atol=1e-6)


def test_gradient_reaches_the_memory_and_not_the_action_or_the_target(sequence):
    xs, dones = sequence
    module = make()
    state = module.initialize_state(B)
    extras = module.unroll(state, xs, dones).rollout_extras
    graphdef, params, rest = nnx.split(module, nnx.Param, ...)

    def error(params, targets):
        out = nnx.merge(graphdef, params, rest).unroll(state, {**xs, "a": targets}, dones, extras)
        return jnp.sum(out.metrics["fm_pred_mse"])

    gradients, to_targets = jax.grad(error, argnums=(0, 1))(params, xs["a"])
    flat = {"/".join(map(str, path)): np.abs(leaf[...]).max() for path, leaf in nnx.to_flat_state(gradients)}
    reached = {path for path, size in flat.items() if size > 0}
    assert {path for path in reached if "predictor" in path}
    assert {path for path in reached if "cell" in path}
    assert not {path for path in reached if "/a/" in path}
    np.testing.assert_array_equal(to_targets, np.zeros((T, B, 2)))


def test_discrete_actions_are_encoded():
    sampler = CategoricalSampler(nnx.Rngs(0), 0.1)
    module = make(sampler=sampler, action_size=4, encode_action=lambda action: jax.nn.one_hot(action, 4))
    out = module(module.initialize_state(B), {"a": jnp.ones((B, 2)), "b": jnp.ones((B, 3))})
    np.testing.assert_array_equal(np.argmax(out.next_state["action"], -1), out.output["action"])
    np.testing.assert_array_equal(out.next_state["action"].sum(-1), np.ones(B))


def test_errors():
    x = {"a": jnp.ones((B, 2)), "b": jnp.ones((B, 3))}
    with pytest.raises(ValueError, match="action_size must be an integer of at least 1, got 0"):
        make(action_size=0)
    module = make(target="b")
    with pytest.raises(ValueError, match=r"the target is \(3, 3\) \(flattened\), .* got \(3, 2\)"):
        module(module.initialize_state(B), x)
    module = make(action_size=5)
    with pytest.raises(ValueError, match=r"made for actions of 5 numbers \(action_size\), got 2"):
        module(module.initialize_state(B), x)
    module = make(features=lambda carry: carry[0])
    with pytest.raises(ValueError, match="holds no floating-point array; give the network a memory"):
        module(module.initialize_state(B), x)
    rngs = nnx.Rngs(0)
    module = ForwardModel(GRU(3, 4, rngs), Dense(6, 3, rngs), 2)
    with pytest.raises(TypeError, match="must return a PPONetworkOutput or a sampler's dict with 'action'"):
        module(module.initialize_state(B), x["b"])
