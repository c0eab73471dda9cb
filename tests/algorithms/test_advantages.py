"""GAE against hand arithmetic, an O(T²) sum, and identities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nnx_ppo.algorithms.advantages import gae, normalize

GAMMA, LAMBDA = 0.99, 0.95
gae_jit = jax.jit(gae)


def column(*values, dtype=np.float32):
    return jnp.asarray(np.array(values, dtype)[:, None])


def two_steps(terminated, truncated):
    done = terminated or truncated
    return gae_jit(
        column(1, 1), column(0.5, 0.5), jnp.full((1,), 0.5), column(False, done, dtype=bool),
        column(False, truncated, dtype=bool), LAMBDA, GAMMA, column(7.0, 0.5) if truncated else jnp.zeros((2, 1)),
    )[:, 0]  # fmt: skip


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [(True, False, (1.46525, 0.5)), (False, True, (1.9307975, 0.995)), (False, False, (1.9307975, 0.995))],
)
def test_hand_arithmetic(terminated, truncated, expected):
    np.testing.assert_allclose(two_steps(terminated, truncated), expected, rtol=1e-6)


def quadratic_gae(rewards, values, last, terminated, truncated, final, lambda_, gamma):
    """The double sum of the definition, in float64."""
    steps, batch = rewards.shape
    result = np.zeros((steps, batch))
    for b in range(batch):
        for t in range(steps):
            for k in range(t, steps):
                following = values[k + 1, b] if k + 1 < steps else last[b]
                if terminated[k, b]:
                    following = 0.0
                elif truncated[k, b]:
                    following = final[k, b]
                delta = rewards[k, b] + gamma * following - values[k, b]
                result[t, b] += (gamma * lambda_) ** (k - t) * delta
                if terminated[k, b] or truncated[k, b]:
                    break
    return result


SHAPE = (7, 3)
numbers = arrays(np.float32, SHAPE, elements=st.floats(-10, 10, width=32))
flags = arrays(np.bool_, SHAPE)
unit = st.floats(0, 1, width=32)


@settings(max_examples=150, deadline=None)
@given(
    numbers,
    numbers,
    arrays(np.float32, SHAPE[1], elements=st.floats(-10, 10, width=32)),
    flags,
    flags,
    numbers,
    unit,
    unit,
)
def test_against_the_double_sum(rewards, values, last, terminated, truncated, final, lambda_, gamma):
    truncated = truncated & ~terminated
    got = gae_jit(rewards, values, last, terminated | truncated, truncated, lambda_, gamma, final)
    expected = quadratic_gae(rewards, values, last, terminated, truncated, final, lambda_, gamma)
    np.testing.assert_allclose(got, expected, atol=2e-4, rtol=1e-4)


@settings(max_examples=30, deadline=None)
@given(numbers, numbers, flags, flags, st.integers(0, SHAPE[0] - 2))
def test_the_next_episode_moves_no_advantage_of_this_one(rewards, values, terminated, truncated, boundary):
    terminated = terminated.copy()
    terminated[boundary] = True
    truncated = truncated & ~terminated
    done = terminated | truncated
    last = np.zeros(SHAPE[1], np.float32)
    before = gae_jit(rewards, values, last, done, truncated, LAMBDA, GAMMA, values)[: boundary + 1]
    rewards, values = rewards.copy(), values.copy()
    rewards[boundary + 1 :], values[boundary + 1 :] = np.nan, np.inf
    after = gae_jit(rewards, values, last + np.float32(np.nan), done, truncated, LAMBDA, GAMMA, values)
    np.testing.assert_array_equal(before, after[: boundary + 1])


def test_lambda_zero_is_td_zero_and_lambda_one_the_discounted_return():
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(2, 5, 2)).astype(np.float32)
    last = rng.normal(size=2).astype(np.float32)
    none = np.zeros((5, 2), bool)
    following = np.concatenate([values[1:], last[None]])
    np.testing.assert_allclose(
        gae_jit(rewards, values, last, none, none, 0.0, GAMMA), rewards + GAMMA * following - values, rtol=1e-5
    )
    returns = sum(GAMMA**k * rewards[k] for k in range(5)) + GAMMA**5 * last - values[0]
    np.testing.assert_allclose(gae_jit(rewards, values, last, none, none, 1.0, GAMMA)[0], returns, rtol=1e-5)


def test_a_counting_environment_cut_after_four_steps_has_target_five():
    # obs = step counter, V(o) = o, reward 1, γ = 1, λ = 0; the next episode starts at 0.
    values = column(0, 1, 2, 3, 0, 1)
    truncated = column(False, False, False, True, False, False, dtype=bool)
    final = column(0, 0, 0, 4, 0, 0)
    advantages = gae_jit(jnp.ones((6, 1)), values, jnp.full((1,), 2.0), truncated, truncated, 0.0, 1.0, final)
    assert float((advantages + values)[3, 0]) == 5.0


def test_terminal_reward_only():
    values = column(0.25, 0.5, 0.75)
    done = column(False, False, True, dtype=bool)
    advantages = gae_jit(column(0, 0, 1), values, jnp.zeros(1), done, jnp.zeros_like(done), LAMBDA, GAMMA)
    assert float(advantages[2, 0]) == 1.0 - 0.75


def test_without_final_values_a_truncated_step_is_left_out():
    truncated = column(False, True, False, dtype=bool)
    advantages = gae_jit(column(1, 1, 1), column(0.5, 0.5, 0.5), jnp.zeros(1), truncated, truncated, LAMBDA, GAMMA)
    np.testing.assert_allclose(advantages[:, 0], [1 + GAMMA * 0.5 - 0.5, 0.0, 0.5], rtol=1e-6)


def test_shapes_are_checked():
    flags = jnp.zeros((3, 2), bool)
    with pytest.raises(ValueError, match=r"must all be \[T, B\]; got \(3,\)"):
        gae(jnp.zeros(3), jnp.zeros((3, 2)), jnp.zeros(2), flags, flags, 0.9, 0.9)
    with pytest.raises(ValueError, match=r"last_value must be \[B\] = \(2,\), got \(3,\)"):
        gae(jnp.zeros((3, 2)), jnp.zeros((3, 2)), jnp.zeros(3), flags, flags, 0.9, 0.9)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, 2, 3, 4), (-1.3416, -0.4472, 0.4472, 1.3416)),
        ((5,), (0,)),
        ((0.1, 0.1, 0.1), (0, 0, 0)),
        ((1e8, 1e8), (0, 0)),
        ((0, 0), (0, 0)),
        ((1e-8, -1e-8), (1, -1)),
    ],
)
def test_normalisation(values, expected):
    np.testing.assert_allclose(normalize(jnp.asarray(values, jnp.float32)), expected, atol=5e-5)
