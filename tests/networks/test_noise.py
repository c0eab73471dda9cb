"""Noise layers: size of the noise, replay, eval mode, keys per environment."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks.noise import GaussianNoise


def test_noise_has_the_standard_deviation_asked_for():
    module = GaussianNoise(0.5, nnx.Rngs(0))
    xs = jnp.full((50, 4, 20), 3.0)
    out = module.unroll(module.initialize_state(4), xs, jnp.zeros((50, 4), bool))
    noise = np.asarray(out.output) - 3.0
    np.testing.assert_allclose([noise.mean(), noise.std()], [0.0, 0.5], atol=0.03)
    # Nothing repeats over steps, environments or features.
    assert len(np.unique(noise)) > 0.99 * noise.size
    np.testing.assert_allclose(noise, 0.5 * out.rollout_extras, atol=1e-6)


def test_eval_mode_is_the_identity_and_keeps_the_keys():
    module = GaussianNoise(0.5, nnx.Rngs(0))
    module.eval()
    state, x = module.initialize_state(3), jnp.arange(6.0).reshape(3, 2)
    out = module(state, x)
    np.testing.assert_array_equal(out.output, x)
    np.testing.assert_array_equal(jax.random.key_data(out.next_state["key"]), jax.random.key_data(state["key"]))


def test_replay_compiles_to_no_loop():
    module = GaussianNoise(0.5, nnx.Rngs(0))
    state, xs, dones = module.initialize_state(3), jnp.ones((5, 3, 2)), jnp.zeros((5, 3), bool)
    extras = module.unroll(state, xs, dones).rollout_extras
    compiled = jax.jit(lambda xs, extras: module.unroll(state, xs, dones, extras).output).lower(xs, extras).compile()
    assert "while" not in compiled.as_text()


def test_errors():
    with pytest.raises(ValueError, match=r"GaussianNoise: std must be at least 0, got -1.0"):
        GaussianNoise(-1.0, nnx.Rngs(0))
    module = GaussianNoise(1.0, nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"GaussianNoise: expected an array \[B, F\], got shape \(3,\)"):
        module(module.initialize_state(3), jnp.zeros(3))
