"""Replay in minibatches reproduces two consecutive rollouts of networks that together hold every layer and container.

Episodes terminate, and are truncated, at every step of the rollouts.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks import (
    CTRNN,
    GRU,
    LRU,
    LSTM,
    AR1VariationalBottleneck,
    CategoricalSampler,
    Concat,
    Delay,
    Dense,
    Filter,
    Flattener,
    ForwardModel,
    GaussianNoise,
    Map,
    MaskedDense,
    Merge,
    Normalizer,
    NormalTanhSampler,
    Parallel,
    PopulationGraph,
    PPOAdapter,
    Scale,
    Sequential,
    Splitter,
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


def containers():
    """Every container, the layers without memory, and both samplers side by side."""
    rngs = nnx.Rngs(0)
    return Sequential(
        {
            "split": Splitter(a=2, b=1),
            "map": Map(
                a=Sequential([Scale(0.5), MaskedDense(2, 3, rngs, "tanh", density=0.5)]),
                b=LSTM(1, 2, rngs, use_optimized=False, trainable_initial_state=True),
            ),
            "merge": Merge(
                small=Filter({"b": "b"}),
                large=Sequential([Filter("a"), bottleneck(3, 2, rngs), Parallel(c=Delay(jnp.zeros(2), 1))]),
            ),
            "concat": Concat(b=Dense(2, 3, rngs), c=GRU(2, 2, rngs, trainable_initial_state=True)),
            "heads": PPOAdapter(
                action=Parallel(
                    move=Sequential([Dense(5, 2, rngs), NormalTanhSampler(rngs, 0.1)]),
                    choose=Sequential([Dense(5, 3, rngs), CategoricalSampler(rngs, 0.1)]),
                ),
                value=Dense(5, 1, rngs),
            ),
        }
    )


def bottleneck(n_in, latent_size, rngs):
    return Sequential([Dense(n_in, 2 * latent_size, rngs), VariationalBottleneck(latent_size, rngs)])


class TwoHeads(RandomEnds):
    """An action of two heads, one of them discrete."""

    @property
    def action_size(self):
        return {"move": 1, "choose": 3}

    def step(self, state, action):
        return super().step(state, jax.tree.map(lambda leaf: leaf.astype(jnp.result_type(float)), action))


# Ends so frequent that the rollouts' twelve trajectories end in either way at each step.
CASES = {
    "everything": (everything, RandomEnds()),
    "everything, frequent ends": (everything, RandomEnds(p_end=0.8)),
    "forward model": (forward_model, RandomEnds()),
    "containers": (containers, TwoHeads(p_end=0.8)),
}


def check_case(name, tolerance):
    make, env = CASES[name]
    rollouts = check(make(), env, tolerance)
    if env.p_end > 0.5:
        truncated = np.concatenate([rollout.truncated for rollout in rollouts], axis=1)
        terminated = np.concatenate([rollout.done for rollout in rollouts], axis=1) & ~truncated
        assert terminated.any(axis=1).all()
        assert truncated.any(axis=1).all()


@pytest.mark.parametrize("name", ["everything", "forward model", "containers"])
def test_ratio_is_one_in_float32(name):
    check_case(name, 1e-5)


@pytest.mark.parametrize("name", ["everything, frequent ends", "forward model", "containers"])
def test_ratio_is_one_in_float64(name):
    with jax.enable_x64(True):
        check_case(name, 1e-10)
