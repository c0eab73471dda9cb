"""RepeatPrevious: optimum by a policy that looks back, chance for every memoryless one by enumeration."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_ppo.envs import RepeatPrevious, make_env


def _play(env: RepeatPrevious, answer: Any, seed: int) -> tuple[list[int], list[float], Any]:
    """Symbols shown, rewards, and the last state; ``answer`` maps the symbols so far to an action."""
    step = jax.jit(env.step)
    state = env.reset(jax.random.key(seed))
    shown, rewards = [], []
    while not bool(state.done):
        assert float(state.obs.sum()) == 1.0
        shown.append(int(state.obs.argmax()))
        state = step(state, jnp.int32(answer(shown)))
        rewards.append(float(state.reward))
    return shown, rewards, state


@pytest.mark.parametrize("ends", ["terminate", "truncate"])
@pytest.mark.parametrize(("k", "n_symbols"), [(1, 2), (3, 4)])
def test_looking_back_earns_the_optimum(k: int, n_symbols: int, ends: Any) -> None:
    env = RepeatPrevious(k=k, n_symbols=n_symbols, length=8, ends=ends)
    shown, rewards, last = _play(env, lambda so_far: so_far[-1 - k] if len(so_far) > k else 0, seed=0)
    assert rewards == [0.0] * k + [1.0] * (8 - k)
    assert len(shown) == 8
    assert bool(last.info["truncated"]) == (ends == "truncate")
    # One step early or late is not the same.
    for off in (k - 1, k + 1):
        _, wrong, _ = _play(env, lambda so_far, off=off: so_far[max(len(so_far) - 1 - off, 0)], seed=0)
        assert sum(wrong) < 8 - k


def test_symbols_are_uniform_and_independent_over_steps() -> None:
    env = RepeatPrevious(k=1, n_symbols=3, length=8)
    states = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 9000))
    following = jax.vmap(env.step)(states, jnp.zeros(9000, jnp.int32))
    pairs = np.asarray(states.obs).argmax(-1) * 3 + np.asarray(following.obs).argmax(-1)
    # 1000 of each pair expected, with a standard deviation of 30.
    np.testing.assert_allclose(np.bincount(pairs, minlength=9), 1000, atol=4 * 30)


def test_every_memoryless_policy_earns_exactly_one_in_n_symbols() -> None:
    """For each table from symbol to action, the mean over all pairs (symbol asked for, symbol shown)."""
    env = RepeatPrevious(k=1, n_symbols=2, length=4)
    start = env.step(env.reset(jax.random.key(0)), jnp.int32(0))
    for table in itertools.product(range(2), repeat=2):
        rewards = []
        for asked, shown in itertools.product(range(2), repeat=2):
            state = start.replace(
                obs=jax.nn.one_hot(shown, 2), data={**start.data, "shown": jnp.array([asked, shown], jnp.int32)}
            )
            rewards.append(float(env.step(state, jnp.int32(table[int(state.obs.argmax())])).reward))
        assert np.mean(rewards) == 0.5


def test_interface_and_nonsense() -> None:
    env = make_env("probe:repeat_previous", k=2, n_symbols=3)
    assert isinstance(env, RepeatPrevious)
    assert (env.observation_size, env.action_size, env.discrete_actions) == (3, 3, True)
    with pytest.raises(ValueError, match="k: expected a number of steps of at least 1 and below length=4, got 4"):
        RepeatPrevious(k=4, length=4)
    with pytest.raises(ValueError, match="n_symbols: expected at least 2, got 1"):
        RepeatPrevious(n_symbols=1)
