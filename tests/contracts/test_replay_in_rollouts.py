"""Replay in minibatches reproduces two consecutive rollouts of a network with every layer that remembers or samples."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from nnx_ppo.networks import (
    CTRNN,
    GRU,
    LRU,
    LSTM,
    AR1VariationalBottleneck,
    Delay,
    Dense,
    Flattener,
    ForwardModel,
    GaussianNoise,
    Normalizer,
    NormalTanhSampler,
    Parallel,
    PopulationGraph,
    PPOAdapter,
    Sequential,
    VariationalBottleneck,
)
from tests.algorithms.test_replay import check
from tests.helpers import RandomEnds


def graph(rngs):
    result = PopulationGraph(rngs)
    result.add_input("retina", 3, input_from=None)
    result.add_population("cortex", 4, activation="tanh", noise_std=0.2)
    result.add_output("motor", 2)
    result.connect("retina", "cortex", transform=Sequential([Normalizer(3), LSTM(3, 4, rngs)]))
    result.connect("cortex", "motor")
    result.connect("motor", "cortex", delay=2)
    result.connect(
        "retina", "motor", delay=3, transform=Sequential([Dense(3, 4, rngs), VariationalBottleneck(2, rngs)])
    )
    result.finalize()
    return result


def everything():
    rngs = nnx.Rngs(0)
    branches = Parallel(
        graph=graph(rngs),
        delay=Delay(jnp.zeros(3), 2),
        ctrnn=Sequential([GaussianNoise(0.1, rngs), CTRNN(3, 4, rngs, recurrent_noise=0.3, input_noise=0.1)]),
        lru=LRU(3, 4, rngs),
        gru=GRU(3, 4, rngs),
        latent=Sequential([Dense(3, 4, rngs), AR1VariationalBottleneck(2, rngs)]),
    )
    heads = PPOAdapter(
        action=Sequential([Dense(19, 4, rngs), NormalTanhSampler(rngs, 0.1)]),
        value=Dense(19, 1, rngs),
    )
    return Sequential([Normalizer(3), branches, Flattener(), heads])


def forward_model():
    rngs = nnx.Rngs(0)
    heads = PPOAdapter(action=Sequential([Dense(4, 4, rngs), NormalTanhSampler(rngs, 0.1)]), value=Dense(4, 1, rngs))
    return ForwardModel(Sequential([GRU(3, 4, rngs), heads]), Dense(6, 3, rngs), action_size=2)


@pytest.mark.parametrize("make", [everything, forward_model])
def test_ratio_is_one_in_float32(make):
    check(make(), RandomEnds(), 1e-5)


@pytest.mark.parametrize("make", [everything, forward_model])
def test_ratio_is_one_in_float64(make):
    with jax.enable_x64(True):
        check(make(), RandomEnds(), 1e-10)
