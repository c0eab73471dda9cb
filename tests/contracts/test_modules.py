"""Every module and composite of the library keeps the contract, in float32 and in float64."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from nnx_ppo.networks import (
    LSTM,
    CategoricalSampler,
    Concat,
    Dense,
    Filter,
    Flattener,
    Map,
    Merge,
    Normalizer,
    NormalTanhSampler,
    Parallel,
    PPOAdapter,
    Scale,
    Sequential,
    Splitter,
    make_lstm_actor_critic,
    make_mlp,
    make_mlp_actor_critic,
)
from nnx_ppo.networks.utils import Selector
from nnx_ppo.testing import check_stateful_module


def vector(size):
    return lambda: jnp.zeros(size)


def tree():
    return {"pose": {"arm": jnp.zeros(2), "leg": jnp.zeros((2, 1))}, "touch": jnp.zeros(())}


def pair():
    return {"a": jnp.zeros(2), "b": jnp.zeros(3)}


def warmed_up_normalizer():
    module = Normalizer(3)
    module.update_statistics(jnp.arange(24.0).reshape(2, 4, 3))
    return module


def evaluated(make):
    def make_evaluated():
        module = make()
        module.eval()
        return module

    return make_evaluated


def trained_start(make):
    """Let the trainable initial state differ from zero, or a reset to zeros would pass unnoticed."""

    def make_trained():
        module = make()
        module.c0[...] = jnp.linspace(-1, 1, 4)
        module.h0[...] = jnp.linspace(1, -0.5, 4)
        return module

    return make_trained


PATH: Selector = ("pose", "leg")
LEAVES = {
    "dense": (lambda: Dense(3, 4, nnx.Rngs(0), "tanh"), vector(3)),
    "dense on integers": (lambda: Dense(3, 4, nnx.Rngs(0)), lambda: jnp.array([1, 2, 3])),
    "lstm": (lambda: LSTM(3, 4, nnx.Rngs(0)), vector(3)),
    "lstm, plain cell": (lambda: LSTM(3, 4, nnx.Rngs(0), use_optimized=False), vector(3)),
    "lstm, other functions": (lambda: LSTM(3, 4, nnx.Rngs(0), gate_fn="softplus", activation_fn="elu"), vector(3)),
    "lstm, trainable start": (
        trained_start(lambda: LSTM(3, 4, nnx.Rngs(0), trainable_initial_state=True)),
        vector(3),
    ),
    "lstm, plain cell, trainable start": (
        trained_start(lambda: LSTM(3, 4, nnx.Rngs(0), use_optimized=False, trainable_initial_state=True)),
        vector(3),
    ),
    "normalizer": (lambda: Normalizer(3), vector(3)),
    "normalizer with data": (warmed_up_normalizer, vector(3)),
    "normalizer of a matrix": (lambda: Normalizer((3, 2)), lambda: jnp.zeros((3, 2))),
    "normalizer of a tree": (lambda: Normalizer({"pose": {"arm": 2, "leg": (2, 1)}, "touch": ()}), tree),
    "splitter": (lambda: Splitter(a=2, b=1), vector(3)),
    "flattener": (Flattener, tree),
    "flattener, one level": (lambda: Flattener(preserve_levels=1), tree),
    "filter, key": (lambda: Filter("touch"), tree),
    "filter, path": (lambda: Filter(PATH), tree),
    "filter, dict": (lambda: Filter({"leg": PATH, "sum": lambda x: x["pose"]["arm"] * 2}), tree),
    "scale": (lambda: Scale(0.5), tree),
    "normal-tanh sampler": (lambda: NormalTanhSampler(nnx.Rngs(0), 0.1), vector(4)),
    "normal-tanh sampler, eval": (evaluated(lambda: NormalTanhSampler(nnx.Rngs(0), 0.1)), vector(4)),
    "categorical sampler": (lambda: CategoricalSampler(nnx.Rngs(0), 0.1), vector(3)),
    "categorical sampler, eval": (evaluated(lambda: CategoricalSampler(nnx.Rngs(0), 0.1)), vector(3)),
    "categorical sampler, mask": (
        lambda: CategoricalSampler(nnx.Rngs(0), 0.1),
        lambda: {"logits": jnp.zeros(3), "mask": jnp.array([True, False, True])},
    ),
}


def two_by_name(container):
    rngs = nnx.Rngs(0)
    return lambda: container(a=Dense(2, 3, rngs), b=LSTM(3, 2, rngs))


COMPOSITES = {
    "sequential": (lambda: Sequential([Dense(3, 4, nnx.Rngs(0)), LSTM(4, 2, nnx.Rngs(1))]), vector(3)),
    "sequential with names": (
        lambda: Sequential({"z": Dense(3, 4, nnx.Rngs(0)), "a": LSTM(4, 2, nnx.Rngs(1))}),
        vector(3),
    ),
    "parallel": (lambda: Parallel(a=Dense(3, 2, nnx.Rngs(0)), b=LSTM(3, 2, nnx.Rngs(1))), vector(3)),
    "concat": (two_by_name(Concat), pair),
    "map": (two_by_name(Map), pair),
    "merge": (lambda: Merge(a=Splitter(u=1, v=2), b=Parallel(w=LSTM(3, 2, nnx.Rngs(0)))), vector(3)),
    "mlp": (lambda: make_mlp([3, 4, 2], nnx.Rngs(0)), vector(3)),
    "adapter with dicts": (
        lambda: PPOAdapter(
            action=Parallel(
                move=Sequential([Dense(3, 4, nnx.Rngs(0)), NormalTanhSampler(nnx.Rngs(1), 0.1)]),
                choose=Sequential([LSTM(3, 2, nnx.Rngs(2)), CategoricalSampler(nnx.Rngs(3), 0.1)]),
            ),
            value=Parallel(run=Dense(3, 1, nnx.Rngs(4)), jump=LSTM(3, 1, nnx.Rngs(5))),
        ),
        vector(3),
    ),
    "mlp actor-critic": (lambda: make_mlp_actor_critic(3, 2, [4], [4], nnx.Rngs(0), "swish"), vector(3)),
    "mlp actor-critic, dict observation": (
        lambda: make_mlp_actor_critic({"pose": {"arm": 2, "leg": (2, 1)}, "touch": ()}, 2, [4], [], nnx.Rngs(0)),
        tree,
    ),
    "lstm actor-critic": (lambda: make_lstm_actor_critic(3, 2, 4, [3], [3], nnx.Rngs(0)), vector(3)),
    "lstm actor-critic, discrete": (
        lambda: make_lstm_actor_critic(
            3, 2, 4, [3], [3], nnx.Rngs(0), discrete_actions=True, encoder_sizes=[3], trainable_initial_state=True
        ),
        vector(3),
    ),
}
MODULES = LEAVES | COMPOSITES


@pytest.mark.parametrize("name", MODULES)
def test_contract_in_float32(name):
    make_module, make_example = MODULES[name]
    check_stateful_module(make_module, make_example())


@pytest.mark.parametrize("name", MODULES)
def test_contract_in_float64(name):
    make_module, make_example = MODULES[name]
    with jax.enable_x64(True):
        check_stateful_module(make_module, make_example())


def test_float64_is_really_float64():
    # Else the tight tolerance above would compare float32 numbers, and pass for the wrong reason.
    with jax.enable_x64(True):
        network = make_lstm_actor_critic(3, 2, 4, [3], [3], nnx.Rngs(0))
        out = network(network.initialize_state(2), jnp.ones((2, 3)))
        dtypes = {leaf.dtype for leaf in jax.tree.leaves((out.output, out.next_state["memory"]))}
    assert dtypes == {jnp.dtype("float64")}
