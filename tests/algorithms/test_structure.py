"""Structure of what is compiled: loops over time, restarts, what is not asked for."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.algorithms import ppo
from nnx_ppo.algorithms.config import PPOConfig
from nnx_ppo.algorithms.losses import Batch, ppo_loss
from nnx_ppo.algorithms.rollout import unroll_env
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.envs.vector import vectorize
from tests.helpers import RandomEnds, lstm, mlp, trees

CONFIG = PPOConfig(n_envs=4, rollout_length=5, n_epochs=2, n_minibatches=2)


def gradient_loops(network, env) -> int:
    """Loops in the compiled gradient of one minibatch."""
    graphdef, params, rest = nnx.split(network, nnx.Param, ...)

    def collect(params: Any, key: jax.Array) -> Batch:
        net = nnx.merge(graphdef, params, rest, copy=True)
        carry = net.initialize_state(4)
        env_state = vectorize(env).reset(jax.random.split(key, 4))
        _, _, rollout = unroll_env(env, env_state, net, carry, 5, key)
        old = rollout.network_output
        return Batch(
            carry, rollout.obs, rollout.done, rollout.rollout_extras, old.loglikelihoods, old.loglikelihoods,
            old.value_estimates,
        )  # fmt: skip

    def gradient(params: Any, batch: Batch) -> Any:
        return jax.grad(lambda p: ppo_loss(nnx.merge(graphdef, p, rest), batch, CONFIG)[0])(params)

    batch = jax.eval_shape(collect, params, jax.random.key(0))
    return jax.jit(gradient).lower(params, batch).compile().as_text().count(" while(")


@pytest.mark.parametrize(
    ("make", "env"), [(mlp, RandomEnds()), (lambda: trees(recurrent=False), RandomEnds(trees=True))]
)
def test_no_loop_over_time_in_the_gradient_of_a_feed_forward_network(make, env):
    assert gradient_loops(make(), env) == 0


def test_a_recurrent_network_loops_in_its_recurrent_layer_alone():
    assert gradient_loops(lstm(), RandomEnds()) == 2  # forward and backward


@dataclasses.dataclass(frozen=True)
class CountsResets(RandomEnds):
    """Counts, on the host, how many single environments were reset."""

    length: int = 0

    def reset(self, key: jax.Array) -> Any:
        state = super().reset(key)

        def count(words: Any) -> Any:
            RESETS.append(words[..., 0].size)
            return np.zeros(words.shape[:-1], np.float32)

        words = jax.random.key_data(key)
        zero = jax.pure_callback(count, jax.ShapeDtypeStruct((), jnp.float32), words, vmap_method="expand_dims")
        return state.replace(metrics={"age": zero})

    def step(self, state: Any, action: Any) -> Any:
        age = state.metrics["age"] + 1
        over = age >= self.length
        next_state = super().step(state, action)
        return next_state.replace(done=over, info={"truncated": over}, metrics={"age": age})


RESETS: list[int] = []


@pytest.mark.parametrize(("length", "episodes"), [(1000, 0), (10, 2)])
def test_resets_follow_the_episodes_that_end(length, episodes):
    n, steps = 32, 20
    env, network = CountsResets(p_end=0.0, length=length), mlp()
    graphdef, variables = nnx.split(network)

    @jax.jit
    def run(variables: Any, env_state: Any, key: jax.Array) -> Any:
        net = nnx.merge(graphdef, variables, copy=True)
        return unroll_env(env, env_state, net, net.initialize_state(n), steps, key)[1:]

    start = jax.jit(vectorize(env).reset)(jax.random.split(jax.random.key(0), n))
    jax.block_until_ready(start)
    RESETS.clear()
    _, rollout = jax.block_until_ready(run(variables, start, jax.random.key(1)))
    assert int(rollout.done.sum()) == episodes * n
    assert sum(RESETS) == episodes * n  # chunks of 8 divide 32: not one reset too many


def lowered(level: LoggingLevel, percentiles: Any = None) -> Any:
    network = mlp()
    state = ppo.new_training_state(RandomEnds(), network, 4, 0)
    config = dataclasses.replace(CONFIG, logging_level=level, logging_percentiles=percentiles)
    step, arrays = ppo._prepare(RandomEnds(), state, config)
    return step.lower(arrays)


def row_of(program: Any) -> Any:
    return program.out_info[2].row


def count(program: Any, *operations: str) -> list[int]:
    text = program.as_text()
    return [text.count(f"stablehlo.{operation}") for operation in operations]


def test_what_is_not_asked_for_is_not_in_the_program():
    none, losses, everything = (lowered(level) for level in (LoggingLevel.NONE, LoggingLevel.LOSSES, LoggingLevel.ALL))
    lines = [len(program.as_text().splitlines()) for program in (none, losses, everything)]
    assert lines[0] < lines[1] < lines[2]
    assert row_of(none).values.shape == (0,)
    assert row_of(losses).values.shape == (7,)
    # Beside the row, the program gives the state and the census of what is not finite.
    outputs = [len(jax.tree.leaves(program.out_info)) for program in (none, losses, everything)]
    assert outputs[0] == outputs[1] == outputs[2]


def test_no_level_of_all_runs_the_network_once_more_or_loops():
    heavy = ("dot_general", "while", "convolution")
    none = count(lowered(LoggingLevel.NONE), *heavy)
    assert count(lowered(LoggingLevel.LOSSES), *heavy) == none
    assert count(lowered(LoggingLevel.ALL, (0, 25, 50, 75, 100)), *heavy) == none
    diagnosing = count(lowered(LoggingLevel.DIAGNOSTICS), *heavy)
    assert diagnosing[0] > none[0]
    assert diagnosing[1:] == none[1:]


def test_every_array_is_sorted_once_for_all_percentiles():
    everything = lowered(LoggingLevel.ALL, (0, 2.5, 50, 75, 100))
    arrays = {name.rsplit("/", 1)[0] for name in row_of(everything).names if name.endswith("/p2.5")}
    (none,), (sorts,) = count(lowered(LoggingLevel.NONE), "sort"), count(everything, "sort")
    # Arrays of one shape share a function in the text, and parameters of one shape may: never more than one each.
    assert none < sorts <= none + len(arrays)
    assert count(lowered(LoggingLevel.ALL), "sort") == [none]


def test_everything_but_the_network_is_donated():
    donated = jax.tree.map(lambda info: info.donated, lowered(LoggingLevel.NONE).args_info[0])
    networks, rest = donated
    assert not any(jax.tree.leaves(networks))
    assert all(jax.tree.leaves(rest))
