"""GRU against the flax cell and the textbook; one projection outside the scan."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks.recurrent import GRU

T, B, D, H = 6, 3, 2, 4


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def numpy_gru(cell, xs, dones, h0):
    """The textbook equations, in float64, one step at a time."""
    w, b = (np.asarray(leaf[...], np.float64) for leaf in (cell.dense_i.kernel, cell.dense_i.bias))
    u = np.asarray(cell.dense_h.kernel[...], np.float64)
    h, hs = np.tile(h0, (B, 1)), []
    for x, done in zip(np.asarray(xs, np.float64), np.asarray(dones), strict=True):
        r_x, z_x, n_x = np.split(x @ w + b, 3, axis=-1)
        r_h, z_h, n_h = np.split(h @ u, 3, axis=-1)
        z = sigmoid(z_x + z_h)
        h = (1 - z) * np.tanh(n_x + sigmoid(r_x + r_h) * n_h) + z * h
        hs.append(h)
        h = np.where(done[:, None], h0, h)
    return np.stack(hs), h


@pytest.fixture
def sequence():
    rng = np.random.default_rng(0)
    dones = rng.random((T, B)) < 0.4
    dones[1, 0], dones[:, 1] = True, False
    return jnp.asarray(rng.normal(size=(T, B, D)), jnp.float32), jnp.asarray(dones)


@pytest.mark.parametrize("trainable", [True, False])
def test_unroll_follows_the_textbook(sequence, trainable):
    xs, dones = sequence
    module = GRU(D, H, nnx.Rngs(0), bias_init=nnx.initializers.normal(), trainable_initial_state=trainable)
    h0 = np.zeros(H)
    if trainable:
        h0 = np.linspace(-1, 1, H)
        module.h0[...] = jnp.asarray(h0, jnp.float32)
    out = module.unroll(module.initialize_state(B), xs, dones)
    hs, h = numpy_gru(module.cell, xs, dones, h0)
    np.testing.assert_allclose(out.output, hs, atol=1e-6)
    np.testing.assert_allclose(out.next_state, h, atol=1e-6)


def test_unroll_equals_the_flax_cell_in_float64():
    with jax.enable_x64(True):
        module = GRU(D, H, nnx.Rngs(0))
        xs = jax.random.normal(jax.random.key(0), (T, B, D))
        out = module.unroll(module.initialize_state(B), xs, jnp.zeros((T, B), bool))
        cell = nnx.GRUCell(D, H, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
        carry, hs = jnp.zeros((B, H)), []
        for x in xs:
            carry, h = cell(carry, x)
            hs.append(h)
        assert out.output.dtype == jnp.float64
        np.testing.assert_allclose(out.output, jnp.stack(hs), rtol=1e-12, atol=1e-14)


def test_one_projection_outside_the_scan(sequence):
    xs, dones = sequence
    module = GRU(D, H, nnx.Rngs(0))
    state = module.initialize_state(B)
    jaxpr = jax.make_jaxpr(lambda xs: module.unroll(state, xs, dones).output)(xs)
    [scan] = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    inside = [eqn.primitive.name for eqn in scan.params["jaxpr"].eqns]
    outside = [eqn.primitive.name for eqn in jaxpr.eqns]
    assert (inside.count("dot_general"), outside.count("dot_general")) == (1, 1)


def test_wrong_width():
    module = GRU(D, H, nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"GRU: expected an input \[B, 2\].*got shape \(3, 5\)"):
        module(module.initialize_state(3), jnp.zeros((3, 5)))
