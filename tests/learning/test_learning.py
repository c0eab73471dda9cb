"""What is learned, three seeds each: known optima and classic tasks."""

import optax
import pytest
from flax import nnx

from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig
from nnx_ppo.algorithms.ppo import train_ppo
from nnx_ppo.envs import make_env
from nnx_ppo.networks.factories import make_mlp_actor_critic
from nnx_ppo.wrappers import RewardScalingWrapper

SEEDS = (0, 1, 2)
CARTPOLE = make_env("gymnax:CartPole-v1")
PENDULUM = make_env("gymnax:Pendulum-v1")
PENDULUM_SCALED = RewardScalingWrapper(PENDULUM, 0.1)


def final_reward(env, network, ppo, *, max_episode_length, seed, eval_env=None, n_episodes=128):
    gradient_steps = -(-ppo.total_steps // ppo.steps_per_iteration) * ppo.n_epochs * ppo.n_minibatches
    ppo = PPOConfig(**{**vars(ppo), "learning_rate": schedule(ppo.learning_rate, gradient_steps)})
    evaluation = EvalConfig(every_steps=ppo.total_steps, n_envs=n_episodes, max_episode_length=max_episode_length)
    result = train_ppo(env, network, TrainConfig(ppo=ppo, eval=evaluation, seed=seed), eval_env=eval_env)
    return result.eval_history[-1]["eval/episode_reward/mean"]


_SCHEDULES = {}


def schedule(learning_rate, steps):
    """One object per setting, so that all seeds share one compiled step."""
    return _SCHEDULES.setdefault((learning_rate, steps), optax.linear_schedule(learning_rate, 0.0, steps))


@pytest.mark.parametrize("seed", SEEDS)
def test_cartpole(seed):
    network = make_mlp_actor_critic(
        4, 2, [64, 64], [64, 64], nnx.Rngs(seed), activation="swish", entropy_weight=1e-2, discrete_actions=True
    )
    ppo = PPOConfig(
        n_envs=8, rollout_length=128, total_steps=150_000, learning_rate=1e-3, n_epochs=10, gradient_clipping=0.5
    )
    assert final_reward(CARTPOLE, network, ppo, max_episode_length=500, seed=seed) >= 475


@pytest.mark.parametrize("seed", SEEDS)
def test_pendulum(seed):
    network = make_mlp_actor_critic(3, 1, [64, 64], [64, 64], nnx.Rngs(seed), activation="swish", entropy_weight=1e-3)
    ppo = PPOConfig(
        n_envs=64,
        rollout_length=50,
        total_steps=250_000,
        learning_rate=1e-3,
        n_epochs=8,
        gradient_clipping=1.0,
        discounting_factor=0.95,
        gae_lambda=0.9,
    )
    reward = final_reward(PENDULUM_SCALED, network, ppo, max_episode_length=200, seed=seed, eval_env=PENDULUM)
    assert reward >= -250


def trained(env, **ppo):
    network = make_mlp_actor_critic(
        env.observation_size, env.action_size, [16], [16], nnx.Rngs(0), activation="tanh", entropy_weight=1e-4
    )
    settings = {
        "n_envs": 16, "rollout_length": 16, "total_steps": 40_000, "learning_rate": 3e-3, "discounting_factor": 0.9
    }  # fmt: skip
    reward = final_reward(env, network, PPOConfig(**(settings | ppo)), max_episode_length=20, seed=0)
    return network, reward


def test_the_best_action_is_found():
    env = make_env("probe:action_reward", target=0.5)
    _, reward = trained(env)
    assert reward >= -0.01  # optimum 0; an untrained policy acts near 0, which costs 0.25
