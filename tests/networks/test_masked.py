"""MaskedDense: gaps stay gaps and signs stay signs whatever the kernel is; errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks.masked import MaskedDense

MASK = np.array([[1, 0, 1], [0, 1, 1]])


def test_output_by_hand():
    module = MaskedDense(2, 3, nnx.Rngs(0), "tanh", mask=MASK, sign=[1, -1])
    module.kernel[...] = jnp.array([[-1.0, 2.0, 3.0], [4.0, -5.0, 6.0]])
    module.bias[...] = jnp.array([0.1, 0.2, 0.3])
    x = np.array([[0.5, 0.25]])
    kernel = np.array([[1.0, 0.0, 3.0], [0.0, -5.0, -6.0]])
    np.testing.assert_allclose(
        module((), jnp.asarray(x, jnp.float32)).output, np.tanh(x @ kernel + [[0.1, 0.2, 0.3]]), rtol=1e-6
    )


def test_missing_weights_do_not_learn():
    module = MaskedDense(2, 3, nnx.Rngs(0), mask=MASK)
    graphdef, params, rest = nnx.split(module, nnx.Param, ...)
    gradients = jax.grad(lambda p: jnp.sum(nnx.merge(graphdef, p, rest)((), jnp.ones((1, 2))).output))(params)
    np.testing.assert_array_equal(gradients["kernel"][...], MASK)


def test_density_and_size_of_the_output():
    x = jax.random.normal(jax.random.key(0), (50, 400))
    stds = []
    for density in (1.0, 0.1):
        module = MaskedDense(400, 200, nnx.Rngs(0), density=density, use_bias=False)
        np.testing.assert_allclose(np.mean(module.effective_kernel() != 0), density, atol=0.01)
        stds.append(float(jnp.std(module((), x).output)))
    np.testing.assert_allclose(stds[1], stds[0], rtol=0.05)


def test_only_kernel_and_bias_are_parameters():
    module = MaskedDense(2, 3, nnx.Rngs(0), mask=MASK, sign=-1)
    assert set(nnx.state(module, nnx.Param)) == {"kernel", "bias"}
    assert (module.effective_kernel() <= 0).all()


@pytest.mark.parametrize(("options", "message"), [
    ({"mask": MASK, "density": 0.5}, "either mask or density"),
    ({"mask": MASK.T}, r"expected a mask \[2, 3\] .* got shape \(3, 2\) with values from 0 to 1"),
    ({"mask": 2 * MASK}, "of zeros and ones, .* values from 0 to 2"),
    ({"density": 0.0}, "density must be above 0 and at most 1, got 0.0"),
    ({"sign": 0}, r"sign must be 1, -1 or an array \[2\] of them, one per input, got 0"),
    ({"sign": [1, -1, 1]}, r"got \[1, -1, 1\]"),
])  # fmt: skip
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        MaskedDense(2, 3, nnx.Rngs(0), **options)


def test_wrong_width():
    with pytest.raises(ValueError, match=r"MaskedDense: expected an input \[B, 2\]"):
        MaskedDense(2, 3, nnx.Rngs(0))((), jnp.zeros((3, 5)))
