"""LRU against a NumPy loop in complex128; ring of initial eigenvalues; no loop over time; units stay stable."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks.recurrent import LRU

T, B, D, H = 6, 3, 2, 4


def numpy_lru(module, xs, dones, start):
    """The paper's equations, one step at a time."""
    p = {name: np.asarray(getattr(module, name)[...], np.float64) for name in PARAMETERS}
    lam = np.exp(-np.exp(p["log_decay"]) + 1j * np.exp(p["log_phase"]))
    gamma = np.sqrt(1 - np.abs(lam) ** 2)
    b, c = p["input_real"] + 1j * p["input_imag"], p["output_real"] + 1j * p["output_imag"]
    h, ys = start, []
    for x, done in zip(np.asarray(xs, np.float64), np.asarray(dones), strict=True):
        h = lam * h + gamma * (x @ b)
        ys.append((h @ c).real + x @ p["skip"])
        h = np.where(done[:, None], 0, h)
    return np.stack(ys), h


PARAMETERS = ("log_decay", "log_phase", "input_real", "input_imag", "output_real", "output_imag", "skip")


def test_unroll_follows_the_paper():
    rng = np.random.default_rng(0)
    xs, dones = rng.normal(size=(T, B, D)), rng.random((T, B)) < 0.4
    dones[1, 0], dones[:, 1] = True, False
    start = rng.normal(size=(B, H)) + 1j * rng.normal(size=(B, H))
    with jax.enable_x64(True):
        module = LRU(D, H, nnx.Rngs(0))
        state = jnp.asarray(start.real), jnp.asarray(start.imag)
        out = module.unroll(state, jnp.asarray(xs), jnp.asarray(dones))
        ys, h = numpy_lru(module, xs, dones, start)
        assert out.output.dtype == jnp.float64
    np.testing.assert_allclose(out.output, ys, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(
        np.asarray(out.next_state[0]) + 1j * np.asarray(out.next_state[1]), h, rtol=1e-10, atol=1e-12
    )


def test_initial_eigenvalues_lie_on_the_ring():
    module = LRU(1, 64, nnx.Rngs(0), min_radius=0.5, max_radius=0.8, max_phase=1.0)
    eigenvalues = np.exp(-np.exp(module.log_decay[...]) + 1j * np.exp(module.log_phase[...]))
    radius, phase = np.abs(eigenvalues), np.angle(eigenvalues)
    assert 0.5 <= radius.min() < 0.6
    assert 0.7 < radius.max() <= 0.8
    assert phase.min() > 0
    assert phase.max() <= 1.0


def test_no_loop_over_time_and_gradients_reach_every_parameter():
    module = LRU(D, H, nnx.Rngs(0))
    state = module.initialize_state(B)
    xs, dones = jnp.ones((T, B, D)), jnp.zeros((T, B), bool)
    graphdef, variables = nnx.split(module)

    def loss(variables):
        return jnp.sum(jnp.square(nnx.merge(graphdef, variables).unroll(state, xs, dones).output))

    assert "scan" not in str(jax.make_jaxpr(jax.grad(loss))(variables))
    gradients = jax.grad(loss)(variables)
    for name in PARAMETERS:
        gradient = gradients[name][...]
        assert np.isfinite(gradient).all()
        assert np.abs(gradient).max() > 0


@pytest.mark.parametrize(("options", "message"), [
    ({"min_radius": 0.9, "max_radius": 0.5}, "0 <= min_radius < max_radius <= 1, got min_radius=0.9, max_radius=0.5"),
    ({"max_phase": 0.0}, "max_phase must be above 0, got 0.0"),
])  # fmt: skip
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        LRU(D, H, nnx.Rngs(0), **options)


def test_wrong_width():
    module = LRU(D, H, nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"LRU: expected an input \[B, 2\]"):
        module(module.initialize_state(3), jnp.zeros((3, 5)))
