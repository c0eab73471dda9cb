"""The loss terms against hand arithmetic and finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_ppo.algorithms.losses import actor_advantages, approx_kl, clipped_surrogate


@pytest.mark.parametrize(("ratio", "expected"), [(1.5, 0.094535), (0.5, 0.193147), (1.0, 0.0)])
def test_approx_kl_by_hand(ratio, expected):
    np.testing.assert_allclose(approx_kl(jnp.log(jnp.float32(ratio))), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, -2.0),
        (1.5, 2.0, -2.4),  # clipped at 1.2: no gain from going further
        (1.5, -2.0, 3.0),  # not clipped: a mistake is paid in full
        (0.5, 2.0, -1.0),
        (0.5, -2.0, 1.6),  # clipped at 0.8
    ],
)
def test_clipped_surrogate_by_hand(ratio, advantage, expected):
    assert float(clipped_surrogate(jnp.float32(ratio), jnp.float32(advantage), 0.2)) == pytest.approx(expected)


def test_gradient_vanishes_exactly_where_clipped():
    gradient = jax.vmap(jax.grad(lambda r, a: clipped_surrogate(r, a, 0.2)), in_axes=(0, 0))
    ratios = jnp.array([1.5, 1.5, 0.5, 0.5, 1.1])
    advantages = jnp.array([2.0, -2.0, 2.0, -2.0, 3.0])
    np.testing.assert_allclose(gradient(ratios, advantages), [0.0, 2.0, -2.0, 0.0, -3.0])


def test_each_head_gets_the_advantage_that_belongs_to_it():
    one = jnp.ones(2)
    heads = {"arm": jnp.zeros(2), "leg": jnp.zeros(2)}
    apart = {"arm": one, "leg": 2.0 * one}
    assert actor_advantages(apart, heads, combine=False) is apart
    combined = actor_advantages(apart, heads, combine=True)
    np.testing.assert_array_equal(combined["arm"], 3.0 * one)
    np.testing.assert_array_equal(combined["leg"], 3.0 * one)
    shared = actor_advantages(one, heads, combine=False)
    np.testing.assert_array_equal(shared["leg"], one)
    np.testing.assert_array_equal(actor_advantages(apart, jnp.zeros(2), combine=True), 3.0 * one)
