"""Structure of the ready-made networks, their initial kernels, and that every option has an effect."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks.adapter import PPOAdapter
from nnx_ppo.networks.containers import Sequential
from nnx_ppo.networks.factories import make_lstm_actor_critic, make_mlp, make_mlp_actor_critic, make_mlp_layers
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.naming import named_modules
from nnx_ppo.networks.normalizer import Normalizer
from nnx_ppo.networks.recurrent import LSTM
from nnx_ppo.networks.sampling_layers import CategoricalSampler, NormalTanhSampler
from nnx_ppo.networks.utils import Flattener

TREE = {"pose": {"arm": 2, "image": (2, 2)}, "touch": ()}


def structure(network):
    return {path: type(module) for path, module in named_modules(network).items()}


def widths(layers):
    return [(layer.in_features, layer.out_features) for layer in layers if isinstance(layer, Dense)]


def test_mlp_layers():
    layers = make_mlp_layers([3, 5, 2], nnx.Rngs(0), "tanh")
    assert widths(layers) == [(3, 5), (5, 2)]
    assert [layer.activation for layer in layers] == [nnx.tanh, nnx.tanh]
    layers = make_mlp_layers([3, 5, 2], nnx.Rngs(0), activation_last_layer=False, use_bias=False)
    assert [layer.activation for layer in layers] == [nnx.relu, None]
    assert layers[0].linear.bias is None
    network = make_mlp([3, 5, 2], nnx.Rngs(0))
    assert network(network.initialize_state(4), jnp.ones((4, 3))).output.shape == (4, 2)


def test_mlp_actor_critic_has_the_documented_structure():
    network = make_mlp_actor_critic(3, 2, [5, 4], [6], nnx.Rngs(0), nnx.swish)
    assert structure(network) == {
        "": Sequential,
        "0": Normalizer,
        "1": PPOAdapter,
        "1/action": Sequential,
        "1/action/0": Dense,
        "1/action/1": Dense,
        "1/action/2": Dense,
        "1/action/3": NormalTanhSampler,
        "1/value": Sequential,
        "1/value/0": Dense,
        "1/value/1": Dense,
    }
    assert widths(network[1]["action"]) == [(3, 5), (5, 4), (4, 4)]
    assert widths(network[1]["value"]) == [(3, 6), (6, 1)]
    assert [layer.activation for layer in network[1]["value"]] == [nnx.swish, None]


def test_without_normaliser_the_adapter_comes_first():
    network = make_mlp_actor_critic((3,), 2, [4], [4], nnx.Rngs(0), normalize_obs=False)
    assert structure(network)["0/action/0"] is Dense


def test_lstm_actor_critic_has_the_documented_structure():
    network = make_lstm_actor_critic(
        TREE, 5, 4, [3], [2], nnx.Rngs(0), discrete_actions=True, encoder_sizes=[6], trainable_initial_state=True
    )
    assert structure(network) == {
        "": Sequential,
        "normalizer": Normalizer,
        "flatten": Flattener,
        "encoder": Sequential,
        "encoder/0": Dense,
        "memory": LSTM,
        "heads": PPOAdapter,
        "heads/action": Sequential,
        "heads/action/0": Dense,
        "heads/action/1": Dense,
        "heads/action/2": CategoricalSampler,
        "heads/value": Sequential,
        "heads/value/0": Dense,
        "heads/value/1": Dense,
    }
    assert widths(network["encoder"]) == [(7, 6)]
    assert (network["memory"].in_features, network["memory"].hidden_features) == (6, 4)
    assert network["memory"].trainable_initial_state
    assert widths(network["heads"]["action"]) == [(4, 3), (3, 5)]
    small = make_lstm_actor_critic(3, 2, 4, [], [], nnx.Rngs(0), normalize_obs=False)
    assert list(small.keys) == ["memory", "heads"]


@pytest.mark.parametrize("size", [3, (3,), (2, 2), TREE])
def test_runs_on_every_kind_of_observation(size):
    def observe(size):
        if isinstance(size, dict):
            return {key: observe(value) for key, value in size.items()}
        return jnp.ones((4, *((size,) if isinstance(size, int) else size)))

    network = make_mlp_actor_critic(size, 2, [4], [4], nnx.Rngs(0))
    out = network(network.initialize_state(4), observe(size)).output
    assert (out.actions.shape, out.loglikelihoods.shape, out.value_estimates.shape) == ((4, 2), (4,), (4,))


def test_discrete_actions_have_one_logit_each():
    network = make_mlp_actor_critic(3, 5, [4], [4], nnx.Rngs(0), discrete_actions=True)
    out = network(network.initialize_state(2), jnp.ones((2, 3))).output
    assert out.actions.dtype == jnp.int32
    assert widths(network[1]["action"])[-1] == (4, 5)


@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_kernels_are_uniform_with_the_asked_variance(scale):
    network = make_mlp_actor_critic(100, 2, [200], [200], nnx.Rngs(0), initializer_scale=scale)
    for port in ("action", "value"):
        kernel = np.asarray(network[1][port][0].linear.kernel[...])
        np.testing.assert_allclose(kernel.var(), scale / 100, rtol=0.05)
        np.testing.assert_allclose(np.abs(kernel).max(), np.sqrt(3 * scale / 100), rtol=0.01)


@pytest.mark.parametrize(
    "make", [partial(make_mlp_actor_critic, 3, 2, [4], [4]), partial(make_lstm_actor_critic, 3, 2, 4, [4], [4])]
)
def test_sampler_options(make):
    network = make(nnx.Rngs(0), entropy_weight=0.3, min_std=0.2, std_scale=0.5)
    sampler = next(m for m in named_modules(network).values() if isinstance(m, NormalTanhSampler))
    assert (sampler.entropy_weight, sampler.min_std, sampler.std_scale) == (0.3, 0.2, 0.5)


def test_same_seed_same_network():
    def make(seed):
        return jax.tree.leaves(nnx.state(make_mlp_actor_critic(3, 2, [4], [4], nnx.Rngs(seed)), nnx.Param))

    for a, b in zip(make(0), make(0), strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((a != b).any() for a, b in zip(make(0), make(1), strict=True))


def test_messages():
    with pytest.raises(ValueError, match=r"sizes must be positive integers.*got \[3\]"):
        make_mlp([3], nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"sizes must be positive integers.*got \[3, 0, 4\]"):
        make_mlp_actor_critic(3, 2, [0], [4], nnx.Rngs(0), normalize_obs=False)
    with pytest.raises(ValueError, match=r"obs_size must be a positive integer, a shape, or a dict of those, got 0"):
        make_mlp_actor_critic(0, 2, [4], [4], nnx.Rngs(0))
    with pytest.raises(ValueError, match="Unknown activation 'swoosh'"):
        make_mlp_actor_critic(3, 2, [4], [4], nnx.Rngs(0), "swoosh")
