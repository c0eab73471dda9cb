"""The probes' known answers, by hand and by enumeration."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_ppo.envs import (
    ActionReward,
    ConstantReward,
    CountingEnv,
    DelayedReward,
    DiscreteActionReward,
    MemoryCue,
    ObservationReward,
    TreeEnv,
)


@functools.cache
def _step(env: Any) -> Any:
    return jax.jit(env.step)


def _episode(env: Any, action: Any, seed: int = 0) -> list[Any]:
    """Return the states of one episode, the first included; ``action`` may be a function of the state."""
    step = _step(env)
    states = [env.reset(jax.random.key(seed))]
    while not bool(states[-1].done):
        states.append(step(states[-1], action(states[-1]) if callable(action) else action))
    return states


def _rewards(states: list[Any]) -> list[float]:
    return [float(state.reward) for state in states[1:]]


@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("ends", ["terminate", "truncate"])
def test_counting(length: int, ends: Any) -> None:
    states = _episode(CountingEnv(length=length, ends=ends), jnp.zeros(1))
    assert [state.obs.tolist() for state in states] == [[float(t)] for t in range(length + 1)]
    assert _rewards(states) == [1.0] * length
    assert [bool(state.done) for state in states] == [False] * length + [True]
    assert [bool(state.info["truncated"]) for state in states] == [False] * length + [ends == "truncate"]
    assert all(float(state.metrics["one"]) == 1.0 for state in states)


def test_constant_reward() -> None:
    assert _rewards(_episode(ConstantReward(reward=2.5, length=3), jnp.ones(1))) == [2.5, 2.5, 2.5]


def test_observation_reward_pays_what_was_shown_before_the_step() -> None:
    states = _episode(ObservationReward(length=20), jnp.zeros(1))
    shown = [float(state.obs[0]) for state in states]
    assert _rewards(states) == shown[:-1]
    assert set(shown) == {-1.0, 1.0}


def test_delayed_reward_pays_once_at_the_end() -> None:
    states = _episode(DelayedReward(delay=3), jnp.zeros(1))
    assert _rewards(states) == [0.0, 0.0, 0.0, 1.0]
    np.testing.assert_array_equal([state.obs for state in states[:-1]], np.eye(4))


def test_action_reward() -> None:
    env = ActionReward(target=0.5)
    assert _rewards(_episode(env, jnp.array([0.5]))) == [0.0]
    assert _rewards(_episode(env, jnp.array([-0.5]))) == [-1.0]


def test_discrete_action_reward() -> None:
    env = DiscreteActionReward(target=2, n_actions=4)
    assert [_rewards(_episode(env, jnp.int32(a))) for a in range(4)] == [[0.0], [0.0], [1.0], [0.0]]
    assert env.discrete_actions
    assert env.action_size == 4


def _seed_of_each_cue(env: MemoryCue) -> dict[float, int]:
    cues = {float(env.reset(jax.random.key(seed)).obs[0]): seed for seed in range(20)}
    assert set(cues) == {-1.0, 1.0}
    return cues


def _answer(env: MemoryCue, sign: float) -> jax.Array:
    return jnp.int32(sign > 0) if env.discrete else jnp.array([sign], jnp.float32)


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("delay", [0, 1, 3])
def test_memory_cue_optimum_is_one(delay: int, discrete: bool) -> None:
    env = MemoryCue(delay=delay, discrete=discrete)
    for cue, seed in _seed_of_each_cue(env).items():
        assert _rewards(_episode(env, _answer(env, cue), seed)) == [0.0] * (delay + 1) + [1.0]
        assert sum(_rewards(_episode(env, _answer(env, -cue), seed))) == 0.0


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("delay", [0, 2])
def test_memory_cue_is_exactly_a_half_for_every_deterministic_memoryless_policy(delay: int, discrete: bool) -> None:
    """A memoryless policy is a table from what is shown (cue -1, cue 1, blank, go) to an answer: enumerate them all.

    A random policy is a mixture of these.
    """
    env = MemoryCue(delay=delay, discrete=discrete)
    seeds = _seed_of_each_cue(env)
    shown = [(-1.0, 0.0), (1.0, 0.0), (0.0, 0.0), (0.0, 1.0)]
    for answers in itertools.product([-1.0, 1.0], repeat=4):
        table = dict(zip(shown, answers, strict=True))
        policy = lambda state, table=table: _answer(env, table[tuple(state.obs.tolist())])  # noqa: E731
        assert np.mean([sum(_rewards(_episode(env, policy, seed))) for seed in seeds.values()]) == 0.5


def test_memory_cue_shows_both_cues_equally_often_and_the_same_afterwards() -> None:
    env = MemoryCue(delay=2)
    cues = jax.vmap(env.reset)(jax.random.split(jax.random.key(1), 4096)).obs[:, 0]
    # Four standard deviations of the mean of 4096 signs.
    assert abs(float(jnp.mean(cues))) < 4 / 64
    by_cue = [_episode(env, jnp.zeros(1), seed) for seed in _seed_of_each_cue(env).values()]
    np.testing.assert_array_equal([state.obs for state in by_cue[0][1:]], [state.obs for state in by_cue[1][1:]])
    assert [state.obs.tolist() for state in by_cue[0][1:4]] == [[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]]
    assert not bool(by_cue[0][-1].info["truncated"])


def test_tree_pays_each_head_for_its_own_action() -> None:
    env = TreeEnv(length=1)
    best = {"move": jnp.array([0.5, 0.5]), "look": jnp.array([-0.25])}
    assert _episode(env, best)[-1].reward == {"move": 0.0, "look": 0.0}
    moved = _episode(env, best | {"move": jnp.array([0.5, -0.5])})[-1].reward
    assert moved == {"move": -1.0, "look": 0.0}
    looked = _episode(env, best | {"look": jnp.array([0.75])})[-1].reward
    assert looked == {"move": 0.0, "look": -1.0}


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: CountingEnv(length=0), "length: expected a number of steps of at least 1, got 0"),
        (lambda: MemoryCue(delay=-1), "delay: expected a number of steps of at least 0, got -1"),
    ],
)
def test_nonsense_is_refused(make: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()
