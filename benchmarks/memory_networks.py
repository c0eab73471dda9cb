"""Networks that differ in nothing but their memory."""

import functools
from typing import Any

import jax
from flax import nnx

from nnx_ppo.networks import (
    GRU,
    LRU,
    LSTM,
    CategoricalSampler,
    Delay,
    Dense,
    Filter,
    Normalizer,
    NormalTanhSampler,
    PopulationGraph,
    PPOAdapter,
    Sequential,
    StatefulModule,
    make_lstm_actor_critic,
    make_mlp_actor_critic,
)

UNITS = 32


def memory_network(env: Any, lag: int, name: str, rngs: nnx.Rngs) -> StatefulModule:
    """One layer between the observation and the two heads; what is asked for was shown ``lag`` steps before."""
    heads = PPOAdapter(
        action=Sequential([Dense(UNITS, env.action_size, rngs), CategoricalSampler(rngs, entropy_weight=1e-2)]),
        value=Dense(UNITS, 1, rngs),
    )
    return Sequential({"memory": memory_layer(name, env.observation_size, lag, rngs), "heads": heads})


def memory_layer(name: str, n_obs: int, lag: int, rngs: nnx.Rngs) -> StatefulModule:
    """The layer called ``name``, ``[B, n_obs] -> [B, UNITS]``."""
    dense = functools.partial(Dense, rngs=rngs, activation="tanh")
    sample = jax.ShapeDtypeStruct((n_obs,), "float32")
    makers = {
        "mlp": lambda: dense(n_obs, UNITS),
        "gru": lambda: GRU(n_obs, UNITS, rngs),
        "lstm": lambda: LSTM(n_obs, UNITS, rngs),
        "lru": lambda: Sequential([LRU(n_obs, UNITS, rngs), dense(UNITS, UNITS)]),
        "delay": lambda: Sequential([Delay(sample, lag), dense(n_obs, UNITS)]),
        "graph": lambda: Sequential([loop_graph(n_obs, rngs), Filter("out")]),
    }
    if name not in makers:
        raise ValueError(f"this task has the networks {sorted(makers)}, got {name!r}.")
    return makers[name]()


def loop_graph(n_obs: int, rngs: nnx.Rngs) -> PopulationGraph:
    """A population that reads what it put out itself one step before."""
    orthogonal = Dense(UNITS, UNITS, rngs, kernel_init=nnx.initializers.orthogonal())
    graph = PopulationGraph(rngs)
    graph.add_input("senses", n_obs, input_from=None)
    graph.add_population("loop", UNITS, activation="tanh")
    graph.add_output("out", UNITS)
    graph.connect("senses", "loop")
    graph.connect("loop", "loop", delay=1, transform=orthogonal)
    graph.connect("loop", "out")
    graph.finalize()
    return graph


def control_network(env: Any, name: str, rngs: nnx.Rngs, *, entropy_weight: float) -> StatefulModule:
    """An LSTM or a feed-forward actor-critic (``"mlp"``, ``"full"``)."""
    sizes = (env.observation_size, env.action_size)
    options: dict[str, Any] = {"entropy_weight": entropy_weight, "discrete_actions": env.discrete_actions}
    if name not in ("mlp", "full", "lstm"):
        raise ValueError(f"this task has the networks ['full', 'lstm', 'mlp'], got {name!r}.")
    if name != "lstm":
        return make_mlp_actor_critic(*sizes, [64, 64], [64, 64], rngs, activation="swish", **options)
    if env.discrete_actions:
        return make_lstm_actor_critic(*sizes, 64, [64], [64], rngs, activation="tanh", **options)
    return two_memories(*sizes, rngs, entropy_weight)


def two_memories(n_obs: int, n_actions: int, rngs: nnx.Rngs, entropy_weight: float) -> StatefulModule:
    """An LSTM for the actor and one for the critic, whose large errors then do not disturb the actor's memory."""
    small = nnx.initializers.variance_scaling(0.01, "fan_in", "uniform")
    actor = [
        LSTM(n_obs, 64, rngs),
        Dense(64, 64, rngs, "tanh"),
        Dense(64, 2 * n_actions, rngs, kernel_init=small),
        NormalTanhSampler(rngs, entropy_weight, min_std=0.1),
    ]
    critic = [LSTM(n_obs, 64, rngs), Dense(64, 64, rngs, "tanh"), Dense(64, 1, rngs)]
    return Sequential([Normalizer(n_obs), PPOAdapter(action=Sequential(actor), value=Sequential(critic))])
