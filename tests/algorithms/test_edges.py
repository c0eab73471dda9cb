"""Odd sizes, odd environments, programs written for the published interface."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.algorithms import ppo, rollout
from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig
from nnx_ppo.envs.types import EnvState
from nnx_ppo.networks.factories import make_mlp_actor_critic
from nnx_ppo.wrappers import episode_wrapper, reward_scaling_wrapper
from tests.helpers import RandomEnds, assert_same_bits, lstm, mlp

EVAL = EvalConfig(every_steps=4, n_envs=1, max_episode_length=3)


@pytest.mark.parametrize(("make", "n_envs", "rollout_length"), [(mlp, 1, 1), (lstm, 1, 3), (lstm, 3, 1)])
def test_one_environment_and_one_step(make, n_envs, rollout_length):
    settings = PPOConfig(
        n_envs=n_envs, rollout_length=rollout_length, total_steps=7, n_epochs=1, n_minibatches=1, learning_rate=1e-3
    )
    network = make()
    result = ppo.train_ppo(RandomEnds(), network, TrainConfig(ppo=settings, eval=EVAL))
    assert result.total_steps >= 7
    assert result.total_steps - n_envs * rollout_length < 7
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(nnx.state(network, nnx.Param)))


@dataclasses.dataclass(frozen=True)
class PythonScalars(RandomEnds):
    """What people write: a Python 0 as reward, False as done, an integer reward, a float done."""

    def reset(self, key: jax.Array) -> EnvState:
        return EnvState(obs=jnp.zeros(3), reward=0, done=False, info={}, metrics={}, data=key)

    def step(self, state: EnvState, action: Any) -> EnvState:
        own, end = jax.random.split(state.data)
        done = jax.random.bernoulli(end, 0.3)
        return state.replace(obs=state.obs + 1.0, reward=jnp.sum(action > 0).astype(int), done=done, data=own)


def test_python_scalars_are_cast_at_the_border():
    settings = PPOConfig(n_envs=4, rollout_length=3, total_steps=12, n_epochs=1, n_minibatches=2)
    result = ppo.train_ppo(PythonScalars(), mlp(), TrainConfig(ppo=settings, eval=EVAL))
    assert np.isfinite(result.final_metrics["losses/total"])


def test_training_in_float64():
    with jax.enable_x64(True):
        settings = PPOConfig(n_envs=4, rollout_length=3, total_steps=24, n_epochs=1, n_minibatches=2)
        network = lstm()
        result = ppo.train_ppo(RandomEnds(), network, TrainConfig(ppo=settings, eval=EVAL))
        assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(network, nnx.Param))} == {jnp.dtype("float64")}
        assert np.isfinite(result.final_metrics["losses/total"])


def test_a_program_for_the_published_interface():
    env = RandomEnds()
    train_env = reward_scaling_wrapper.RewardScalingWrapper(episode_wrapper.EpisodeWrapper(env, 20), 0.5)
    nets = make_mlp_actor_critic(
        env.observation_size,
        env.action_size,
        actor_hidden_sizes=[8] * 2,
        critic_hidden_sizes=[8] * 2,
        rngs=nnx.Rngs(0),
        normalize_obs=True,
    )
    result = ppo.train_ppo(
        train_env,
        nets,
        TrainConfig(
            ppo=PPOConfig(n_envs=4, rollout_length=3, total_steps=24, n_minibatches=2),
            eval=EvalConfig(enabled=True, every_steps=12, n_envs=2, max_episode_length=5),
        ),
        eval_env=env,
    )
    assert result.eval_history[-1]["step"] == 24
    state = ppo.new_training_state(train_env, nets, 4, seed=0)
    next_carry, _, transitions = jax.jit(
        lambda variables, env_state, carry, key: rollout.unroll_env(
            train_env, env_state, nnx.merge(nnx.graphdef(nets), variables, copy=True), carry, 3, key
        )
    )(nnx.state(nets), state.env_states, state.network_states, jax.random.PRNGKey(0))
    assert transitions.rewards.shape == (3, 4)
    assert transitions.network_output.loglikelihoods.shape == (3, 4)
    assert jax.tree.structure(next_carry) == jax.tree.structure(state.network_states)


def test_raw_and_typed_keys_give_the_same():
    network = mlp()
    raw = rollout.record_activations_rollout(RandomEnds(), network, 2, 3, jax.random.PRNGKey(4))
    typed = rollout.record_activations_rollout(RandomEnds(), network, 2, 3, jax.random.key(4))
    assert_same_bits(raw, typed)


def test_unroll_outside_of_jit_advances_nothing_but_what_it_returns():
    network, env = mlp(), RandomEnds()
    state = ppo.new_training_state(env, network, 2, 0)
    before = [np.asarray(leaf).copy() for leaf in jax.tree.leaves(nnx.state(network, nnx.Param))]
    carry, env_state, _ = rollout.unroll_env(env, state.env_states, network, state.network_states, 2, jax.random.key(1))
    again = rollout.unroll_env(env, state.env_states, network, state.network_states, 2, jax.random.key(1))
    assert_same_bits((carry, env_state), again[:2])
    for a, b in zip(before, jax.tree.leaves(nnx.state(network, nnx.Param)), strict=True):
        np.testing.assert_array_equal(a, b)
