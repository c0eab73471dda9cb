"""Small environments and networks that several test files share, so that they compile once."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nnx_ppo.envs.types import EnvState
from nnx_ppo.networks.adapter import PPOAdapter
from nnx_ppo.networks.containers import Concat, Parallel, Sequential
from nnx_ppo.networks.factories import make_lstm_actor_critic, make_mlp_actor_critic
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.normalizer import Normalizer
from nnx_ppo.networks.recurrent import LSTM
from nnx_ppo.networks.sampling_layers import NormalTanhSampler
from nnx_ppo.networks.utils import Filter


@dataclasses.dataclass(frozen=True)
class RandomEnds:
    """Random observations and rewards; episodes terminate or are truncated at random, often.

    ``trees``: dict observations, two action heads, two rewards.
    """

    trees: bool = False
    p_end: float = 0.4
    observation_size: int = 3

    @property
    def action_size(self) -> Any:
        return {"arm": 2, "leg": 1} if self.trees else 2

    def _state(self, key: jax.Array, action_sum: jax.Array, fresh: bool) -> EnvState:
        own, obs_key, reward_key, end_key, kind_key = jax.random.split(key, 5)
        obs: Any = jax.random.normal(obs_key, (self.observation_size,))
        reward: Any = jax.random.normal(reward_key) + action_sum
        if self.trees:
            obs = {"near": obs, "far": {"x": obs[:2] * 2.0}}
            reward = {"arm": reward, "leg": -reward}
        done = jnp.zeros((), bool) if fresh else jax.random.bernoulli(end_key, self.p_end)
        truncated = done & jax.random.bernoulli(kind_key)
        return EnvState(obs=obs, reward=reward, done=done, info={"truncated": truncated}, metrics={}, data=own)

    def reset(self, key: jax.Array) -> EnvState:
        return self._state(key, jnp.zeros(()), fresh=True)

    def step(self, state: EnvState, action: Any) -> EnvState:
        action_sum = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(action))
        return self._state(state.data, jnp.asarray(action_sum, jnp.result_type(float)), fresh=False)


def mlp(seed: int = 0) -> Sequential:
    return make_mlp_actor_critic(3, 2, [8], [8], nnx.Rngs(seed), activation="tanh")


def lstm(seed: int = 0) -> Sequential:
    return make_lstm_actor_critic(3, 2, 8, [8], [8], nnx.Rngs(seed), activation="tanh")


def trees(seed: int = 0, recurrent: bool = True) -> Sequential:
    """Dict observations, two action heads, two critic heads."""
    rngs = nnx.Rngs(seed)

    def head(size: int) -> Sequential:
        return Sequential([Dense(6, 2 * size, rngs), NormalTanhSampler(rngs, entropy_weight=1e-2)])

    far = Sequential([Filter("x"), Dense(2, 3, rngs, activation="tanh")])
    trunk = LSTM(6, 6, rngs) if recurrent else Dense(6, 6, rngs, activation="tanh")
    return Sequential(
        {
            "normalizer": Normalizer({"near": 3, "far": {"x": 2}}),
            "streams": Concat(near=Dense(3, 3, rngs, activation="tanh"), far=far),
            "trunk": trunk,
            "heads": PPOAdapter(
                action=Parallel(arm=head(2), leg=head(1)),
                value=Parallel(arm=Dense(6, 1, rngs), leg=Dense(6, 1, rngs)),
            ),
        }
    )


def bits(tree: Any) -> list[np.ndarray]:
    """Raw contents of every leaf (PRNG keys as key data), for comparison bit by bit."""

    def raw(leaf: Any) -> np.ndarray:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return np.asarray(leaf).copy()

    return [raw(leaf) for leaf in jax.tree.leaves(tree)]


def assert_same_bits(a: Any, b: Any) -> None:
    left, right = bits(a), bits(b)
    assert len(left) == len(right)
    for x, y in zip(left, right, strict=True):
        np.testing.assert_array_equal(x, y)
