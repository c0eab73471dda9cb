"""Variational bottlenecks: divergence by quadrature, latents by hand, gradients, the AR(1) penalty by a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks.variational import AR1VariationalBottleneck, VariationalBottleneck, kl_to_standard_normal

T, B, L = 6, 3, 2


@pytest.mark.parametrize(("mu", "sigma"), [(0.0, 1.0), (0.7, 0.3), (-1.5, 2.0)])
def test_divergence_is_its_integral(mu, sigma):
    x = np.linspace(-25, 25, 200_001)
    log_p = -0.5 * ((x - mu) / sigma) ** 2 - np.log(sigma)
    log_q = -0.5 * x**2
    p = np.exp(log_p) / np.sqrt(2 * np.pi)
    integral = np.sum(p * (log_p - log_q)) * (x[1] - x[0])
    got = kl_to_standard_normal(jnp.array([mu, mu]), jnp.array([sigma, sigma]))
    np.testing.assert_allclose(got, 2 * integral, rtol=1e-5, atol=1e-6)


def test_output_metrics_and_loss():
    module = VariationalBottleneck(L, nnx.Rngs(0), kl_weight=0.5, min_std=0.1)
    x = jax.random.normal(jax.random.key(0), (B, 2 * L))
    out = module(module.initialize_state(B), x)
    mu, sigma = np.asarray(x[:, :L]), np.log1p(np.exp(np.asarray(x[:, L:]))) + 0.1
    noise = np.asarray(out.rollout_extras)
    assert noise.shape == (B, L)
    assert noise.std() > 0
    np.testing.assert_allclose(out.metrics["mu"], mu, rtol=1e-6)
    np.testing.assert_allclose(out.metrics["sigma"], sigma, rtol=1e-5)
    np.testing.assert_allclose(out.output, mu + sigma * noise, rtol=1e-5, atol=1e-6)
    kl = 0.5 * (mu**2 + sigma**2 - 1 - np.log(sigma**2)).sum(-1)
    np.testing.assert_allclose(out.metrics["kl_divergence"], kl, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(out.regularization_loss, 0.5 * out.metrics["kl_divergence"], rtol=1e-6)


@pytest.mark.parametrize("make", [VariationalBottleneck, AR1VariationalBottleneck])
def test_eval_mode_gives_the_mean(make):
    module = make(L, nnx.Rngs(0))
    module.eval()
    x = jax.random.normal(jax.random.key(0), (B, 2 * L))
    np.testing.assert_array_equal(module(module.initialize_state(B), x).output, x[:, :L])


def test_replayed_noise_meets_the_new_parameters_and_lets_gradients_pass():
    module = VariationalBottleneck(L, nnx.Rngs(0))
    state, x = module.initialize_state(B), jnp.ones((B, 2 * L))
    noise = module(state, x).rollout_extras
    moved = module(state, 2 * x, noise)
    np.testing.assert_allclose(moved.output, 2 + (np.log1p(np.exp(2)) + 1e-6) * np.asarray(noise), rtol=1e-5)
    gradient = jax.grad(lambda x: jnp.sum(module(state, x, noise).output))(x)
    np.testing.assert_allclose(gradient[:, :L], 1.0)
    np.testing.assert_allclose(gradient[:, L:], np.asarray(noise) / (1 + np.exp(-1)), rtol=1e-5)


def test_ar1_penalty_by_a_loop():
    module = AR1VariationalBottleneck(L, nnx.Rngs(0), kl_weight=0.0, ar1_weight=0.5)
    xs = jax.random.normal(jax.random.key(0), (T, B, 2 * L))
    dones = np.zeros((T, B), bool)
    dones[2, 0] = dones[3, 0] = dones[5, 2] = True
    out = module.unroll(module.initialize_state(B), xs, jnp.asarray(dones))
    z, expected = np.asarray(out.output), np.zeros((T, B))
    for t in range(1, T):
        expected[t] = np.where(dones[t - 1], 0, ((z[t] - z[t - 1]) ** 2).sum(-1))
    np.testing.assert_allclose(out.metrics["l2_diff"], expected, rtol=1e-5)
    np.testing.assert_allclose(out.regularization_loss, 0.5 * expected, rtol=1e-5)
    # The next rollout goes on where this one stopped.
    after = module(out.next_state, xs[0])
    step = ((np.asarray(after.output) - z[-1]) ** 2).sum(-1)
    np.testing.assert_allclose(after.metrics["l2_diff"], np.where(dones[-1], 0, step), rtol=1e-5)


@pytest.mark.parametrize("backprop", [True, False])
def test_backprop_through_time(backprop):
    module = AR1VariationalBottleneck(L, nnx.Rngs(0), kl_weight=0.0, backprop_through_time=backprop)
    state, dones = module.initialize_state(B), jnp.zeros((2, B), bool)
    xs = jax.random.normal(jax.random.key(0), (2, B, 2 * L))
    noise = module.unroll(state, xs, dones).rollout_extras
    gradient = jax.grad(lambda xs: jnp.sum(module.unroll(state, xs, dones, noise).regularization_loss))(xs)
    assert np.abs(gradient[1, :, :L]).min() > 0
    # The first step has no penalty of its own; only through the second can it learn.
    np.testing.assert_allclose(gradient[0, :, :L], -gradient[1, :, :L] if backprop else 0.0, rtol=1e-6)


def test_errors():
    with pytest.raises(ValueError, match="VariationalBottleneck: latent_size must be an integer of at least 1, got 0"):
        VariationalBottleneck(0, nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"min_std must be at least 0, got -1.0"):
        AR1VariationalBottleneck(2, nnx.Rngs(0), min_std=-1.0)
    module = VariationalBottleneck(2, nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"expected an array \[B, 4\].*got shape \(3, 5\)"):
        module(module.initialize_state(3), jnp.zeros((3, 5)))
