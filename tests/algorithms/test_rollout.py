"""What a rollout stores, by hand: true final observations, restarts, values at truncations, carry resets."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.algorithms.rollout import eval_rollout, record_activations_rollout, unroll_env
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.algorithms.values import visited_values
from nnx_ppo.envs.probes import CountingEnv
from nnx_ppo.envs.vector import vectorize
from nnx_ppo.networks.types import PPONetworkOutput, StatefulModule, StatefulModuleOutput
from tests.helpers import RandomEnds, assert_same_bits, bits, lstm, mlp


class Counter(StatefulModule):
    """Output: the number of calls since the last reset of its carry. Its value is observation plus 100 times that."""

    def __init__(self, action_size: int = 1):
        self.action_size = action_size

    def initialize_state(self, batch_size: int) -> Any:
        return jnp.zeros(batch_size)

    def reset_state(self, state: Any) -> Any:
        return jnp.zeros_like(state)

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        count = state + 1.0
        output = PPONetworkOutput(
            actions=jnp.broadcast_to(count[:, None], (len(count), self.action_size)),
            loglikelihoods=jnp.zeros_like(count),
            value_estimates=x[:, 0] + 100.0 * count,
        )
        return StatefulModuleOutput(count, output, jnp.zeros_like(count), {"calls": count})


def roll(env, network, steps, n_envs=2, seed=0):
    graphdef, variables = nnx.split(network)

    @jax.jit
    def run(variables, key):
        net = nnx.merge(graphdef, variables)
        reset_key, key = jax.random.split(key)
        env_state = vectorize(env).reset(jax.random.split(reset_key, n_envs))
        return unroll_env(env, env_state, net, net.initialize_state(n_envs), steps, key)

    return run(variables, jax.random.key(seed))


def test_counting_network_in_three_step_episodes():
    carry, _, rollout = roll(CountingEnv(length=3), Counter(), 9)
    np.testing.assert_array_equal(rollout.network_output.actions[:, 0, 0], [1, 2, 3, 1, 2, 3, 1, 2, 3])
    np.testing.assert_array_equal(carry, [0, 0])


@pytest.mark.parametrize("ends", ["terminate", "truncate"])
def test_observations_at_and_after_the_end(ends):
    _, env_state, rollout = roll(CountingEnv(length=4, ends=ends), Counter(), 6)
    np.testing.assert_array_equal(rollout.obs[:, 0, 0], [0, 1, 2, 3, 0, 1])
    np.testing.assert_array_equal(rollout.next_obs[:, 0, 0], [1, 2, 3, 4, 1, 2])
    np.testing.assert_array_equal(rollout.done[:, 0], [0, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(rollout.truncated[:, 0], [0, 0, 0, ends == "truncate", 0, 0])
    np.testing.assert_array_equal(env_state.obs[:, 0], [2, 2])


def test_the_value_at_a_truncation_is_of_the_final_observation_with_the_carry_it_had():
    _, _, rollout = roll(CountingEnv(length=4, ends="truncate"), Counter(), 6)
    # Final observation 4, and the network's fifth call of that episode: 4 + 100 * 5.
    np.testing.assert_array_equal(rollout.final_values[:, 0], [0, 0, 0, 504, 0, 0])
    _, _, rollout = roll(CountingEnv(length=4, ends="terminate"), Counter(), 6)
    np.testing.assert_array_equal(rollout.final_values, np.zeros((6, 2)))


def test_visited_values_and_the_value_after_the_last_step():
    env, network = CountingEnv(length=4, ends="truncate"), Counter()
    carry, env_state, rollout = roll(env, network, 6)
    values, last = visited_values(network, jnp.zeros(2), rollout, carry, env_state.obs)
    np.testing.assert_array_equal(values[:, 0], [100, 201, 302, 403, 100, 201])
    np.testing.assert_array_equal(last, [2 + 300, 2 + 300])


@pytest.mark.parametrize("n_envs", [1, 3, 50])
def test_restarts_are_fresh_and_leave_the_others_alone(n_envs):
    """Every start of an episode is a new one, whatever the number of environments that end at once."""
    env = RandomEnds()
    _, _, rollout = roll(env, mlp(), 12, n_envs=n_envs)
    done = np.asarray(rollout.done)
    obs, next_obs = np.asarray(rollout.obs), np.asarray(rollout.next_obs)
    continues = ~done[:-1]
    np.testing.assert_array_equal(obs[1:][continues], next_obs[:-1][continues])
    starts = np.concatenate([obs[0], obs[1:][done[:-1]]])
    assert len(np.unique(starts, axis=0)) == len(starts)
    assert not (obs[1:][done[:-1]] == next_obs[:-1][done[:-1]]).any()


@pytest.mark.parametrize("length", [1, 2, 7, 1000])
@pytest.mark.parametrize("ends", ["terminate", "truncate"])
def test_evaluation_is_exact(length, ends):
    metrics = eval_rollout(
        CountingEnv(length=length, ends=ends), Counter(), 3, 1000, jax.random.key(0), (0, 50, 100), LoggingLevel.ALL
    )
    assert metrics["eval/episode_reward/mean"] == length
    assert metrics["eval/episode_reward/std"] == 0.0
    assert metrics["eval/lifespan/p50"] == length
    assert metrics["eval/env/one/p0"] == metrics["eval/env/one/p100"] == 1.0
    assert metrics["eval/net/calls/p50"] == (length + 1) / 2  # mean of 1..length


def test_evaluation_cuts_at_the_maximum_length():
    metrics = eval_rollout(CountingEnv(length=50), Counter(), 2, 10, jax.random.key(0))
    assert metrics == {
        "eval/episode_reward/mean": 10.0, "eval/episode_reward/std": 0.0,
        "eval/lifespan/mean": 10.0, "eval/lifespan/std": 0.0, "eval/nonfinite": 0.0,
    }  # fmt: skip


def test_evaluation_leaves_the_network_as_it_is_and_depends_on_the_key_alone():
    network, env = lstm(), RandomEnds(p_end=0.2)
    network.train()
    before = bits(nnx.state(network))
    first = eval_rollout(env, network, 4, 20, jax.random.key(3))
    assert eval_rollout(env, network, 4, 20, jax.random.key(3)) == first
    assert eval_rollout(env, network, 4, 20, jax.random.key(4)) != first
    assert_same_bits(before, nnx.state(network))
    assert not network["heads"]["action"][-1].deterministic


def test_counting_network_in_a_recording():
    activations, dones = record_activations_rollout(CountingEnv(length=3), Counter(), 2, 5, jax.random.key(0))
    np.testing.assert_array_equal(dones[:, 0], [0, 0, 0, 1, 1])
    np.testing.assert_array_equal((1.0 - dones)[:, 1], [1, 1, 1, 0, 0])
    np.testing.assert_array_equal(activations.actions[:, 0, 0], [1, 2, 3, 4, 5])  # not reset inside
