"""Every module and composite of the library keeps the contract, in float32 and in float64."""

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


def trained_gru_start(make):
    def make_trained():
        module = make()
        module.h0[...] = jnp.linspace(1, -0.5, 4)
        return module

    return make_trained


CTRNN_OPTIONS = {
    "tau": (0.05, 0.1, 0.1, 0.4),
    "trainable_tau": True,
    "excitatory_fraction": 0.75,
    "recurrent_noise": 0.3,
    "input_noise": 0.2,
}
PATH: Selector = ("pose", "leg")
LEAVES = {
    "dense": (lambda: Dense(3, 4, nnx.Rngs(0), "tanh"), vector(3)),
    "dense on integers": (lambda: Dense(3, 4, nnx.Rngs(0)), lambda: jnp.array([1, 2, 3])),
    "masked dense": (lambda: MaskedDense(3, 4, nnx.Rngs(0), "tanh", density=0.5, sign=[1, -1, 1]), vector(3)),
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
    "gru": (lambda: GRU(3, 4, nnx.Rngs(0)), vector(3)),
    "gru, other functions": (lambda: GRU(3, 4, nnx.Rngs(0), gate_fn="softplus", activation_fn="elu"), vector(3)),
    "gru, trainable start": (
        trained_gru_start(lambda: GRU(3, 4, nnx.Rngs(0), trainable_initial_state=True)),
        vector(3),
    ),
    "lru": (lambda: LRU(3, 4, nnx.Rngs(0)), vector(3)),
    "ctrnn": (lambda: CTRNN(3, 4, nnx.Rngs(0), activation="tanh"), vector(3)),
    "ctrnn, all options": (lambda: CTRNN(3, 4, nnx.Rngs(0), **CTRNN_OPTIONS), vector(3)),
    "ctrnn, all options, eval": (evaluated(lambda: CTRNN(3, 4, nnx.Rngs(0), **CTRNN_OPTIONS)), vector(3)),
    "delay": (lambda: Delay(jnp.zeros(3), 2), vector(3)),
    "delay longer than the rollout": (lambda: Delay(jnp.zeros(3), 7, initial_value=0.5), vector(3)),
    "delay of a tree": (lambda: Delay(tree(), 1), tree),
    "delay of integers": (lambda: Delay(jnp.array([1, 2, 3]), 2, initial_value=-1), lambda: jnp.array([1, 2, 3])),
    "noise": (lambda: GaussianNoise(0.5, nnx.Rngs(0)), vector(3)),
    "noise, eval": (evaluated(lambda: GaussianNoise(0.5, nnx.Rngs(0))), vector(3)),
    "variational bottleneck": (lambda: VariationalBottleneck(2, nnx.Rngs(0)), vector(4)),
    "variational bottleneck, eval": (evaluated(lambda: VariationalBottleneck(2, nnx.Rngs(0))), vector(4)),
    "ar1 bottleneck": (lambda: AR1VariationalBottleneck(2, nnx.Rngs(0)), vector(4)),
    "ar1 bottleneck, eval": (evaluated(lambda: AR1VariationalBottleneck(2, nnx.Rngs(0))), vector(4)),
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


def graph(*connections, finalize=True):
    result = PopulationGraph(nnx.Rngs(0))
    result.add_input("retina", 3, input_from="b", activation="tanh")
    result.add_input("touch", 2, input_from=lambda x: x["a"])
    result.add_population("cortex", 4, activation="tanh", noise_std=0.2)
    result.add_output("motor", 2)
    result.connect("touch", "cortex")
    result.connect("cortex", "motor")
    for source, target, delay in connections:
        result.connect(source, target, delay=delay)
    if finalize:
        result.finalize()
    return result


def graph_with_transforms(*connections):
    rngs = nnx.Rngs(1)
    result = graph(*connections, finalize=False)
    result.connect("retina", "cortex", transform=Sequential([warmed_up_normalizer(), LSTM(3, 4, rngs)]), delay=2)
    result.connect("retina", "motor", transform=Sequential([Dense(3, 4, rngs), VariationalBottleneck(2, rngs)]))
    result.connect("cortex", "motor", density=0.5, sign=[1, 1, 1, -1], delay=1)
    result.finalize()
    return result


COMPOSITES = {
    "forward model": (
        lambda: ForwardModel(
            make_lstm_actor_critic(3, 2, 4, [3], [3], nnx.Rngs(0)), Dense(10, 3, nnx.Rngs(1)), action_size=2
        ),
        vector(3),
    ),
    "graph": (lambda: graph(("retina", "cortex", 0)), pair),
    "graph, delays": (lambda: graph(("retina", "cortex", 1), ("retina", "motor", 3)), pair),
    "graph, self-loop": (lambda: graph(("cortex", "cortex", 2)), pair),
    "graph, transforms": (graph_with_transforms, pair),
    "graph, transforms and feedback": (lambda: graph_with_transforms(("motor", "touch", 1)), pair),
    "graph, transforms and feedback, eval": (evaluated(lambda: graph_with_transforms(("motor", "touch", 1))), pair),
    "graph in an actor-critic": (
        lambda: Sequential(
            [
                Map(a=Normalizer(2), b=Dense(3, 3, nnx.Rngs(0))),
                graph(("retina", "cortex", 0), ("motor", "cortex", 1)),
                Filter("motor"),
                PPOAdapter(action=NormalTanhSampler(nnx.Rngs(3), 0.1), value=GRU(2, 1, nnx.Rngs(4))),
            ]
        ),
        pair,
    ),
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
