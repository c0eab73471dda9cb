"""Log-likelihoods and entropies against hand-worked numbers and quadrature; keys, replay, eval mode, masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks.sampling_layers import (
    CategoricalSampler,
    NormalTanhSampler,
    normal_tanh_entropy,
    normal_tanh_log_likelihood,
)


def raw_std(sigma, min_std=1e-3):
    """Pre-softplus value that gives ``sigma``."""
    return np.log(np.expm1(sigma - min_std))


def parameters(mu, sigma):
    return jnp.concatenate([jnp.asarray(mu, jnp.float32), jnp.asarray(raw_std(np.asarray(sigma)), jnp.float32)], -1)


def numpy_log_density(action, mu, sigma):
    """Density of the squashed action in its own coordinates, by the inverse function; float64."""
    u = np.arctanh(action)
    return -0.5 * ((u - mu) / sigma) ** 2 - np.log(sigma * np.sqrt(2 * np.pi)) - np.log1p(-(action**2))


@pytest.mark.parametrize(("u", "expected"), [(0, -0.918939), (1, -0.551377), (3, -0.800282), (10, -32.305233)])
def test_log_likelihood_by_hand(u, expected):
    got = normal_tanh_log_likelihood(jnp.full((1,), float(u)), jnp.zeros(1), jnp.ones(1))
    np.testing.assert_allclose(got, expected, atol=2e-6 if u < 10 else 1e-5)


@pytest.mark.parametrize("u", [-20.0, 20.0])
def test_gradients_are_finite_far_out(u):
    def total(u, mu, sigma):
        return normal_tanh_log_likelihood(u, mu, sigma) + normal_tanh_entropy(mu, sigma, (u - mu) / sigma)

    for gradient in jax.grad(total, argnums=(0, 1, 2))(jnp.full((1,), u), jnp.zeros(1), jnp.full((1,), 0.5)):
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize(("mu", "sigma"), [(0.0, 1.0), (0.7, 0.3), (-1.0, 0.6)])
def test_density_integrates_to_one_and_entropy_to_its_integral(mu, sigma):
    # In action space, by Gauss-Legendre quadrature: a formula that shares nothing with the library's.
    nodes, weights = np.polynomial.legendre.leggauss(2000)
    log_p = numpy_log_density(nodes, mu, sigma)
    with jax.enable_x64(True):
        u = jnp.asarray(np.arctanh(nodes))[:, None]
        got = normal_tanh_log_likelihood(u, jnp.full_like(u, mu), jnp.full_like(u, sigma))
        noise, noise_weights = np.polynomial.hermite_e.hermegauss(60)
        noise = jnp.asarray(noise)[:, None]
        estimates = normal_tanh_entropy(jnp.full_like(noise, mu), jnp.full_like(noise, sigma), noise)
    np.testing.assert_allclose(got, log_p, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(np.sum(weights * np.exp(np.asarray(got))), 1.0, atol=1e-5)
    # The estimate is unbiased: its mean over the noise is the entropy.
    entropy = -np.sum(weights * np.exp(log_p) * log_p)
    mean_estimate = np.sum(noise_weights * np.asarray(estimates)) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(mean_estimate, entropy, atol=1e-4)


def test_log_likelihood_and_entropy_sum_over_action_dimensions():
    u, mu, sigma = jnp.array([0.5, -1.0]), jnp.array([0.0, 0.2]), jnp.array([1.0, 0.5])
    one_by_one = sum(normal_tanh_log_likelihood(u[i : i + 1], mu[i : i + 1], sigma[i : i + 1]) for i in range(2))
    np.testing.assert_allclose(normal_tanh_log_likelihood(u, mu, sigma), one_by_one, rtol=1e-6)


def test_normal_tanh_output_metrics_and_loss():
    sampler = NormalTanhSampler(nnx.Rngs(0), entropy_weight=0.5)
    mu, sigma = np.array([[0.1, -0.2], [0.3, 0.0]]), np.array([[0.5, 1.0], [2.0, 0.2]])
    out = sampler(sampler.initialize_state(2), parameters(mu, sigma))
    assert set(out.output) == {"action", "log_likelihood"}
    np.testing.assert_allclose(out.metrics["mu"], mu, rtol=1e-6)
    np.testing.assert_allclose(out.metrics["sigma"], sigma, rtol=1e-5)
    expected = numpy_log_density(np.asarray(out.output["action"], np.float64), mu, sigma).sum(axis=-1)
    np.testing.assert_allclose(out.output["log_likelihood"], expected, rtol=1e-4)
    np.testing.assert_allclose(out.regularization_loss, -0.5 * out.metrics["entropy"])
    np.testing.assert_allclose(
        out.rollout_extras["raw_action"], mu + sigma * out.rollout_extras["noise"], rtol=1e-5, atol=1e-6
    )


def test_std_floor_and_scale():
    sampler = NormalTanhSampler(nnx.Rngs(0), 0.0, min_std=0.1, std_scale=2.0)
    out = sampler(sampler.initialize_state(1), jnp.array([[0.0, -100.0]]))
    np.testing.assert_allclose(out.metrics["sigma"], [[0.2]], rtol=1e-6)


@pytest.mark.parametrize("make", [NormalTanhSampler, CategoricalSampler])
def test_replay_scores_the_stored_draw_with_ratio_exactly_one(make):
    sampler = make(nnx.Rngs(0), 0.1)
    x = jax.random.normal(jax.random.key(1), (16, 6))
    state = sampler.initialize_state(16)
    out = sampler(state, x)
    replay = sampler(state, x, out.rollout_extras)
    np.testing.assert_array_equal(replay.output["log_likelihood"], out.output["log_likelihood"])
    np.testing.assert_array_equal(replay.output["action"], out.output["action"])
    np.testing.assert_array_equal(
        jax.random.key_data(replay.next_state["key"]), jax.random.key_data(out.next_state["key"])
    )
    moved = sampler(state, x + 0.3 * x**2, out.rollout_extras)
    np.testing.assert_array_equal(moved.output["action"], out.output["action"])
    assert (moved.output["log_likelihood"] != out.output["log_likelihood"]).any()


@pytest.mark.parametrize("make", [NormalTanhSampler, CategoricalSampler])
def test_compiled_replay_contains_no_loop(make):
    sampler = make(nnx.Rngs(0), 0.1)
    state = sampler.initialize_state(3)
    xs, dones = jnp.ones((5, 3, 4)), jnp.zeros((5, 3), bool)
    extras = sampler.unroll(state, xs, dones).rollout_extras

    def loss(xs, extras):
        out = sampler.unroll(state, xs, dones, extras)
        return jnp.sum(out.output["log_likelihood"]) + jnp.sum(out.regularization_loss)

    assert "while" not in jax.jit(jax.grad(loss)).lower(xs, extras).compile().as_text()


@pytest.mark.parametrize("make", [NormalTanhSampler, CategoricalSampler])
def test_draws_differ_between_steps_environments_and_samplers(make):
    rngs = nnx.Rngs(0)
    first, second = make(rngs, 0.0), make(rngs, 0.0)
    x = jnp.zeros((64, 4))
    out = first(first.initialize_state(64), x)
    later = first(out.next_state, x)
    other = second(second.initialize_state(64), x)
    for draw in (later, other):
        assert (draw.output["action"] != out.output["action"]).any()
    assert len(np.unique(np.asarray(out.output["action"]), axis=0)) > 1


def test_reset_leaves_the_keys():
    sampler = NormalTanhSampler(nnx.Rngs(0), 0.0)
    state = sampler.initialize_state(2)
    np.testing.assert_array_equal(
        jax.random.key_data(sampler.reset_state(state)["key"]), jax.random.key_data(state["key"])
    )


def test_eval_takes_the_mode_and_leaves_keys():
    sampler = NormalTanhSampler(nnx.Rngs(0), 0.0)
    state = sampler.initialize_state(2)
    mu = np.array([[0.5], [-1.0]])
    sampler.eval()
    out = sampler(state, parameters(mu, np.ones((2, 1))))
    np.testing.assert_allclose(out.output["action"], np.tanh(mu), rtol=1e-6)
    np.testing.assert_array_equal(jax.random.key_data(out.next_state["key"]), jax.random.key_data(state["key"]))
    sampler.train()
    assert (sampler(state, parameters(mu, np.ones((2, 1)))).output["action"] != out.output["action"]).all()


def test_eval_categorical_is_argmax():
    sampler = CategoricalSampler(nnx.Rngs(0), 0.0)
    sampler.eval()
    logits = jnp.array([[0.0, 3.0, 1.0], [2.0, 1.0, 0.0]])
    np.testing.assert_array_equal(sampler(sampler.initialize_state(2), logits).output["action"], [1, 0])


def test_categorical_by_hand():
    sampler = CategoricalSampler(nnx.Rngs(0), entropy_weight=2.0)
    p = np.array([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]])
    out = sampler(sampler.initialize_state(2), jnp.asarray(np.log(p) + 7.0, jnp.float32))
    action = np.asarray(out.output["action"])
    assert action.dtype == np.int32
    entropy = -(p * np.log(p)).sum(axis=-1)
    np.testing.assert_allclose(out.output["log_likelihood"], np.log(p[[0, 1], action]), rtol=1e-5)
    np.testing.assert_allclose(out.metrics["entropy"], entropy, rtol=1e-5)
    np.testing.assert_allclose(out.metrics["max_probability"], [0.5, 0.8], rtol=1e-5)
    np.testing.assert_allclose(out.regularization_loss, -2.0 * entropy, rtol=1e-5)


def test_categorical_draws_with_the_given_frequencies():
    sampler = CategoricalSampler(nnx.Rngs(0), 0.0)
    n, p = 20_000, np.array([0.6, 0.3, 0.1])
    logits = jnp.broadcast_to(jnp.asarray(np.log(p), jnp.float32), (n, 3))
    action = sampler(sampler.initialize_state(n), logits).output["action"]
    # Five standard errors.
    np.testing.assert_allclose(np.bincount(action, minlength=3) / n, p, atol=5 * np.sqrt(0.25 / n))


@pytest.mark.parametrize("dtype", [bool, jnp.int32, jnp.float32])
def test_masked_actions_are_impossible(dtype):
    sampler = CategoricalSampler(nnx.Rngs(0), 0.0)
    n = 200
    logits = jnp.broadcast_to(jnp.array([50.0, 1.0, 0.0]), (n, 3))
    mask = jnp.broadcast_to(jnp.array([0, 1, 1]), (n, 3)).astype(dtype)
    out = sampler(sampler.initialize_state(n), {"logits": logits, "mask": mask})
    assert set(np.asarray(out.output["action"]).tolist()) == {1, 2}
    p = np.exp([1.0, 0.0]) / np.exp([1.0, 0.0]).sum()
    np.testing.assert_allclose(out.metrics["entropy"], np.full(n, -(p * np.log(p)).sum()), rtol=1e-5)
    impossible = sampler(
        sampler.initialize_state(n), {"logits": logits, "mask": mask}, {"action": jnp.zeros(n, jnp.int32)}
    )
    assert (np.exp(impossible.output["log_likelihood"]) == 0).all()


def test_mask_gradients_are_finite_and_zero_where_masked():
    sampler = CategoricalSampler(nnx.Rngs(0), 1.0)
    mask = jnp.array([[True, False, True], [False, False, True]])
    state = sampler.initialize_state(2)

    def loss(logits):
        extras = {"action": jnp.array([0, 2], jnp.int32)}
        out = sampler(state, {"logits": logits, "mask": mask}, extras)
        return jnp.sum(out.output["log_likelihood"]) + jnp.sum(out.regularization_loss)

    gradient = np.asarray(jax.grad(loss)(jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])))
    assert np.isfinite(gradient).all()
    assert (gradient[~np.asarray(mask)] == 0).all()
    assert gradient[0, 0] != 0


def test_a_mask_that_allows_nothing_is_ignored():
    sampler = CategoricalSampler(nnx.Rngs(0), 0.0)
    x = {"logits": jnp.zeros((1, 4)), "mask": jnp.zeros((1, 4), bool)}
    np.testing.assert_allclose(sampler(sampler.initialize_state(1), x).metrics["entropy"], [np.log(4)], rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "x", "message"),
    [
        (NormalTanhSampler, jnp.zeros((2, 3)), r"\[B, 2 \* action\].*got shape \(2, 3\)"),
        (NormalTanhSampler, {"a": jnp.zeros((2, 2))}, "got a dict"),
        (CategoricalSampler, jnp.zeros(3), r"expected logits \[B, K\].*got shape \(3,\)"),
        (CategoricalSampler, {"mask": jnp.zeros((2, 2))}, "dict of 'logits' and 'mask', got a dict"),
        (
            CategoricalSampler,
            {"logits": jnp.zeros((2, 3)), "mask": jnp.ones((2, 2))},
            r"mask of the logits' shape \(2, 3\), got shape \(2, 2\)",
        ),
    ],
)
def test_wrong_input(make, x, message):
    sampler = make(nnx.Rngs(0), 0.0)
    with pytest.raises(ValueError, match=message):
        sampler(sampler.initialize_state(2), x)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="min_std must be at least 0, got -1"):
        NormalTanhSampler(nnx.Rngs(0), 0.0, min_std=-1.0)
    with pytest.raises(ValueError, match="std_scale must be above 0, got 0"):
        NormalTanhSampler(nnx.Rngs(0), 0.0, std_scale=0.0)
    with pytest.raises(ValueError, match=r"streams \['params'\], but a sampler needs 'sampling' or 'default'"):
        NormalTanhSampler(nnx.Rngs(params=0), 0.0)
