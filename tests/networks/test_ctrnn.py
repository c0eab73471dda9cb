"""CTRNN against a NumPy loop; time constants by an exponential decay; Dale's law; the size of the noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks.recurrent import CTRNN

T, B, D, H = 6, 3, 2, 4


def test_unroll_follows_the_equation():
    rng = np.random.default_rng(0)
    xs, dones = rng.normal(size=(T, B, D)), rng.random((T, B)) < 0.4
    dones[1, 0], dones[:, 1] = True, False
    tau = np.array([0.02, 0.05, 0.1, 0.5])
    with jax.enable_x64(True):
        module = CTRNN(
            D, H, nnx.Rngs(0), tau=tau.tolist(), dt=0.01, activation="tanh", recurrent_noise=0.3, input_noise=0.2,
            bias_init=nnx.initializers.normal(),
        )  # fmt: skip
        out = module.unroll(module.initialize_state(B), jnp.asarray(xs), jnp.asarray(dones))
        w, w_in, b = (np.asarray(p[...]) for p in (module.recurrent_kernel, module.input_kernel, module.bias))
    noise = jax.tree.map(np.asarray, out.rollout_extras)
    v, rates = np.zeros((B, H)), []
    for t in range(T):
        dv = -v + np.tanh(v) @ w + (xs[t] + 0.2 * noise["input"][t]) @ w_in + b
        v = v + 0.01 / tau * dv + np.sqrt(2 * 0.01 / tau) * 0.3 * noise["recurrent"][t]
        rates.append(np.tanh(v))
        v = np.where(dones[t][:, None], 0, v)
    np.testing.assert_allclose(out.output, np.stack(rates), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(out.next_state["v"], v, rtol=1e-10, atol=1e-12)


def test_without_input_and_recurrence_a_unit_decays_with_its_time_constant():
    zeros = nnx.initializers.zeros_init()
    module = CTRNN(1, 2, nnx.Rngs(0), tau=(0.1, 0.5), dt=1e-3, recurrent_kernel_init=zeros, kernel_init=zeros)
    state = {"v": jnp.ones((1, 2))}
    out = module.unroll(state, jnp.zeros((100, 1, 1)), jnp.zeros((100, 1), bool))
    np.testing.assert_allclose(out.output[-1, 0], np.exp([-0.1 / 0.1, -0.1 / 0.5]), rtol=1e-2)


def test_trainable_time_constants_start_where_they_were_set_and_learn():
    module = CTRNN(D, H, nnx.Rngs(0), tau=(0.03, 0.1, 0.2, 1.0), trainable_tau=True)
    np.testing.assert_allclose(module.tau, [0.03, 0.1, 0.2, 1.0], rtol=1e-4)
    graphdef, variables = nnx.split(module)
    state = module.initialize_state(B)

    def loss(variables):
        return jnp.sum(nnx.merge(graphdef, variables).unroll(state, jnp.ones((T, B, D)), jnp.zeros((T, B))).output)

    assert np.abs(jax.grad(loss)(variables)["raw_tau"][...]).max() > 0


def test_dales_law():
    module = CTRNN(D, 10, nnx.Rngs(0), excitatory_fraction=0.8)
    module.recurrent_kernel[...] = module.recurrent_kernel[...] - 0.1  # whatever the optimizer does
    signs = np.sign(module.signed_kernel())
    assert (signs[:8] == 1).all()
    assert (signs[8:] == -1).all()


def test_excitation_and_inhibition_balance_at_first():
    module = CTRNN(1, 200, nnx.Rngs(0), excitatory_fraction=0.8, recurrent_kernel_init=nnx.initializers.lecun_normal())
    kernel = np.asarray(module.signed_kernel())
    assert abs(kernel.sum()) < 0.1 * np.abs(kernel).sum()


def test_noise_alone_has_the_standard_deviation_asked_for_and_none_in_eval_mode():
    zeros = nnx.initializers.zeros_init()
    module = CTRNN(1, 50, nnx.Rngs(0), tau=0.1, dt=0.01, activation=lambda v: v, recurrent_noise=0.5,
                   recurrent_kernel_init=zeros)  # fmt: skip
    xs, dones = jnp.zeros((400, 2, 1)), jnp.zeros((400, 2), bool)
    late = np.asarray(module.unroll(module.initialize_state(2), xs, dones).output)[100:]
    # Of the discrete process: sigma^2 2 a / (1 - (1 - a)^2) = sigma^2 / (1 - a / 2).
    np.testing.assert_allclose(late.std(), 0.5 / np.sqrt(1 - 0.1 / 2), rtol=0.05)
    module.eval()
    out = module(module.initialize_state(2), jnp.zeros((2, 1)))
    np.testing.assert_array_equal(out.output, np.zeros((2, 50)))


@pytest.mark.parametrize(("options", "message"), [
    ({"tau": (0.1, 0.2)}, r"one number or one per unit \(4\), got shape \(2,\)"),
    ({"tau": 0.01}, "0 < dt <= tau .*dt=0.02, smallest tau=0.01"),
    ({"tau": 0.02, "trainable_tau": True}, "trainable tau must start above dt=0.02, got 0.02"),
    ({"recurrent_noise": -1.0}, "noise must be at least 0, got recurrent_noise=-1.0"),
    ({"excitatory_fraction": 1.0}, "leaves 4 excitatory and 0 inhibitory"),
])  # fmt: skip
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        CTRNN(D, H, nnx.Rngs(0), **options)
