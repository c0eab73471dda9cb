"""The two ports of an actor-critic: which shapes and trees come out, and what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks.adapter import PPOAdapter, squeeze_value
from nnx_ppo.networks.containers import Parallel, Sequential
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.sampling_layers import CategoricalSampler, NormalTanhSampler


def head(size, seed):
    return Sequential([Dense(3, 2 * size, nnx.Rngs(seed)), NormalTanhSampler(nnx.Rngs(seed), 0.1)])


def value(seed, size=1):
    return Dense(3, size, nnx.Rngs(seed))


def run(module, batch_size):
    return module(module.initialize_state(batch_size), jnp.ones((batch_size, 3)))


@pytest.mark.parametrize("batch_size", [1, 2])
def test_shapes_of_flat_outputs(batch_size):
    out = run(PPOAdapter(action=head(2, 0), value=value(1)), batch_size).output
    assert out.actions.shape == (batch_size, 2)
    assert out.loglikelihoods.shape == (batch_size,)
    assert out.value_estimates.shape == (batch_size,)


def test_values_are_those_of_the_port():
    port = value(1)
    out = run(PPOAdapter(head(2, 0), port), 2)
    np.testing.assert_array_equal(out.output.value_estimates, port((), jnp.ones((2, 3))).output[:, 0])


@pytest.mark.parametrize("n_steps", [1, 4])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_shapes_in_sequence_mode(n_steps, batch_size):
    module = PPOAdapter(head(2, 0), value(1))
    xs, dones = jnp.ones((n_steps, batch_size, 3)), jnp.zeros((n_steps, batch_size), bool)
    out = module.unroll(module.initialize_state(batch_size), xs, dones).output
    assert out.actions.shape == (n_steps, batch_size, 2)
    assert out.value_estimates.shape == out.loglikelihoods.shape == (n_steps, batch_size)


def test_nested_heads_and_one_value_per_reward():
    choose = Sequential([Dense(3, 4, nnx.Rngs(5)), CategoricalSampler(nnx.Rngs(5), 0.1)])
    module = PPOAdapter(
        action=Parallel(arms=Parallel(left=head(2, 0), right=head(3, 1)), choose=choose),
        value=Parallel(run=value(3), jump=value(4)),
    )
    out = run(module, 2).output
    assert out.actions["arms"]["right"].shape == (2, 3)
    assert out.actions["choose"].dtype == jnp.int32
    assert out.loglikelihoods["arms"]["left"].shape == (2,)
    assert {key: v.shape for key, v in out.value_estimates.items()} == {"run": (2,), "jump": (2,)}


def test_squeezes_trailing_axes_of_length_one_only():
    assert squeeze_value(jnp.zeros((1, 1, 1)), 1).shape == (1,)
    assert squeeze_value(jnp.zeros((1, 1, 1)), 2).shape == (1, 1)
    assert squeeze_value(jnp.zeros((3,)), 1).shape == (3,)


@pytest.mark.usefixtures("without_type_checks")
def test_messages():
    with pytest.raises(ValueError, match=r"one number per sample, shape \(2,\) or \(2, 1\), got \(2, 4\)"):
        run(PPOAdapter(head(2, 0), value(1, size=4)), 2)
    with pytest.raises(ValueError, match=r"must end in an action sampler.*got shape \(2, 4\).*NormalTanhSampler"):
        run(PPOAdapter(value(0, size=4), value(1)), 2)
    with pytest.raises(TypeError, match="child 'value' must be a StatefulModule"):
        PPOAdapter(head(2, 0), nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
