"""Reward scaling: factors for all rewards or for each, and an environment inside that never sees them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_ppo.envs import ActionReward, CountingEnv, EnvState, TreeEnv, check_env
from nnx_ppo.wrappers import EpisodeWrapper, RewardScalingWrapper, reward_scaling_wrapper

LOOK_AROUND = {"move": jnp.array([0.5, -0.5]), "look": jnp.array([0.75])}


def _one_step(env: Any, action: Any) -> Any:
    return env.step(env.reset(jax.random.key(0)), action).reward


def test_one_factor_for_a_reward() -> None:
    assert float(_one_step(RewardScalingWrapper(ActionReward(target=0.0), 0.5), jnp.array([2.0]))) == -2.0


def test_one_factor_for_all_rewards_and_one_for_each() -> None:
    # Unscaled, both terms are -1 for this action.
    assert _one_step(RewardScalingWrapper(TreeEnv(), 3), LOOK_AROUND) == {"move": -3.0, "look": -3.0}
    scales = {"move": 2.0, "look": 0.25}
    assert _one_step(RewardScalingWrapper(TreeEnv(), scales), LOOK_AROUND) == {"move": -2.0, "look": -0.25}


@pytest.mark.parametrize("scales", [{"move": 1.0}, {"move": 1.0, "look": 1.0, "jump": 1.0}])
def test_factors_must_match_the_rewards(scales: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"reward_scale: expected one factor per reward, .*'look'.*, got .*'move'"):
        RewardScalingWrapper(TreeEnv(), scales).reset(jax.random.key(0))


def test_factors_for_a_single_reward_are_refused() -> None:
    with pytest.raises(ValueError, match="reward_scale: expected one factor per reward"):
        RewardScalingWrapper(CountingEnv(), {"move": 1.0}).reset(jax.random.key(0))


class Accumulating:
    """Pays one more at every step, by reading its own last reward; integers."""

    observation_size = 1
    action_size = 1

    def reset(self, key: jax.Array) -> EnvState:
        return EnvState(jnp.zeros(1), jnp.int32(0), False, {}, {})

    def step(self, state: EnvState, action: Any) -> EnvState:
        return state.replace(reward=state.reward + 1)


def test_the_environment_inside_reads_its_own_reward_also_in_two_wrappers() -> None:
    env = RewardScalingWrapper(RewardScalingWrapper(Accumulating(), 0.5), 0.5)
    state = env.reset(jax.random.key(0))
    rewards = []
    for _ in range(4):
        state = env.step(state, jnp.zeros(1))
        rewards.append(float(state.reward))
    assert rewards == [0.25, 0.5, 0.75, 1.0]
    assert check_env(env).state.reward.dtype == jnp.float32


def test_the_start_of_an_episode_is_forwarded() -> None:
    limited = EpisodeWrapper(CountingEnv(length=99), 50)
    keys = jax.random.split(jax.random.key(0), 20)
    scaled = RewardScalingWrapper(limited, 2.0)
    ages = jax.vmap(scaled.reset)(keys).info["time_limit"]["age"]
    np.testing.assert_array_equal(ages, jax.vmap(limited.reset)(keys).info["time_limit"]["age"])
    assert len(set(np.asarray(ages).tolist())) > 5
    np.testing.assert_array_equal(jax.vmap(scaled.reset_episode)(keys).info["time_limit"]["age"], np.zeros(20))


def test_the_published_import_path() -> None:
    assert reward_scaling_wrapper.RewardScalingWrapper is RewardScalingWrapper
