"""LSTM against a NumPy loop, across resets; gradients into the initial state; one projection outside the scan."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks.recurrent import LSTM, fused_kernels

T, B, D, H = 6, 3, 2, 4


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def numpy_lstm(kernels, xs, dones, c0, h0):
    """The textbook equations, in float64, one step at a time."""
    w, u, b = (np.asarray(kernel, np.float64) for kernel in kernels)
    c, h = np.tile(c0, (B, 1)), np.tile(h0, (B, 1))
    hs = []
    for x, done in zip(np.asarray(xs, np.float64), np.asarray(dones), strict=True):
        i, f, g, o = np.split(x @ w + h @ u + b, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        hs.append(h)
        c, h = np.where(done[:, None], c0, c), np.where(done[:, None], h0, h)
    return np.stack(hs), (c, h)


@pytest.fixture
def sequence():
    rng = np.random.default_rng(0)
    dones = rng.random((T, B)) < 0.4
    dones[1, 0], dones[:, 1] = True, False
    return jnp.asarray(rng.normal(size=(T, B, D)), jnp.float32), jnp.asarray(dones)


@pytest.mark.parametrize("use_optimized", [True, False])
@pytest.mark.parametrize("trainable", [True, False])
def test_unroll_follows_the_textbook(sequence, use_optimized, trainable):
    xs, dones = sequence
    module = LSTM(
        D,
        H,
        nnx.Rngs(0),
        bias_init=nnx.initializers.normal(),
        use_optimized=use_optimized,
        trainable_initial_state=trainable,
    )
    c0, h0 = np.zeros(H), np.zeros(H)
    if trainable:
        c0, h0 = np.linspace(-1, 1, H), np.linspace(0.5, -0.5, H)
        module.c0[...], module.h0[...] = jnp.asarray(c0, jnp.float32), jnp.asarray(h0, jnp.float32)
    out = module.unroll(module.initialize_state(B), xs, dones)
    hs, carry = numpy_lstm(fused_kernels(module.cell), xs, dones, c0, h0)
    np.testing.assert_allclose(out.output, hs, atol=1e-6)
    for got, expected in zip(out.next_state, carry, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("use_optimized", [True, False])
def test_unroll_equals_the_flax_cell_in_float64(use_optimized):
    with jax.enable_x64(True):
        module = LSTM(D, H, nnx.Rngs(0), use_optimized=use_optimized)
        xs = jax.random.normal(jax.random.key(0), (T, B, D))
        out = module.unroll(module.initialize_state(B), xs, jnp.zeros((T, B), bool))
        carry, hs = module.initialize_state(B), []
        for x in xs:
            carry, h = module.cell(carry, x)
            hs.append(h)
        assert out.output.dtype == jnp.float64
        np.testing.assert_allclose(out.output, jnp.stack(hs), rtol=1e-12, atol=1e-14)


def test_gradient_reaches_the_initial_state_through_resets_alone(sequence):
    xs, dones = sequence
    module = LSTM(D, H, nnx.Rngs(0), trainable_initial_state=True)
    # The carry the rollout stored is data: only the episodes that begin inside the rollout teach the initial state.
    stored = jax.tree.map(jnp.zeros_like, module.initialize_state(B))
    graphdef, variables = nnx.split(module)

    def loss(variables, dones):
        out = nnx.merge(graphdef, variables).unroll(stored, xs, dones)
        return jnp.sum(jnp.square(out.output))

    with_resets = jax.grad(loss)(variables, dones)
    without = jax.grad(loss)(variables, jnp.zeros_like(dones))
    for name in ("c0", "h0"):
        assert np.abs(with_resets[name][...]).min() > 0
        np.testing.assert_array_equal(without[name][...], np.zeros(H))


@pytest.mark.parametrize("use_optimized", [True, False])
def test_one_projection_outside_a_scan_that_carries_two_arrays(sequence, use_optimized):
    xs, dones = sequence
    module = LSTM(D, H, nnx.Rngs(0), use_optimized=use_optimized)
    state = module.initialize_state(B)
    jaxpr = jax.make_jaxpr(lambda xs: module.unroll(state, xs, dones).output)(xs)
    scans = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    assert len(scans) == 1
    step = scans[0].params["jaxpr"]
    # A carry leaves the scan as it leaves a step; an output has time in front.
    carries = [
        after for after, one in zip(scans[0].outvars, step.out_avals, strict=True) if after.aval.shape == one.shape
    ]
    assert len(carries) == 2
    inside = [eqn.primitive.name for eqn in step.eqns]
    outside = [eqn.primitive.name for eqn in jaxpr.eqns]
    assert inside.count("dot_general") == 1
    assert outside.count("dot_general") == 1


def test_activation_by_name_and_wrong_width():
    module = LSTM(D, H, nnx.Rngs(0), gate_fn="sigmoid", activation_fn="tanh")
    with pytest.raises(ValueError, match=r"LSTM: expected an input \[B, 2\].*got shape \(3, 5\)"):
        module(module.initialize_state(3), jnp.zeros((3, 5)))
    with pytest.raises(ValueError, match="LSTM: expected an input"):
        module.unroll(module.initialize_state(3), jnp.zeros((4, 3, 5)), jnp.zeros((4, 3), bool))
