"""Dense against NumPy, activation functions by name, and the messages for a wrong input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks.activations import ACTIVATIONS, resolve_activation, resolve_function
from nnx_ppo.networks.feedforward import Dense

X = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, -1.0]], np.float32)


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        (None, lambda y: y),
        ("relu", lambda y: np.maximum(y, 0)),
        ("tanh", np.tanh),
        ("swish", lambda y: y / (1 + np.exp(-y))),
        (jnp.square, np.square),
    ],
)
def test_affine_map_and_activation(activation, function):
    layer = Dense(3, 4, nnx.Rngs(0), activation, bias_init=nnx.initializers.normal())
    expected = function(X @ np.asarray(layer.linear.kernel[...]) + np.asarray(layer.linear.bias[...]))
    np.testing.assert_allclose(layer((), jnp.asarray(X)).output, expected, rtol=1e-5, atol=1e-6)


def test_linear_options_are_passed_on():
    layer = Dense(3, 4, nnx.Rngs(0), use_bias=False, kernel_init=nnx.initializers.ones_init())
    np.testing.assert_allclose(layer((), jnp.asarray(X)).output, np.tile(X.sum(axis=1, keepdims=True), 4), rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8, bool])
def test_integers_are_cast(dtype):
    x = jnp.array([[1, 0, 1]], dtype)
    layer = Dense(3, 2, nnx.Rngs(0))
    np.testing.assert_allclose(layer((), x).output, layer((), x.astype(jnp.float32)).output)


def test_parameters_follow_the_default_float():
    assert Dense(3, 2, nnx.Rngs(0)).linear.kernel[...].dtype == jnp.float32
    with jax.enable_x64(True):
        layer = Dense(3, 2, nnx.Rngs(0))
        assert layer.linear.kernel[...].dtype == jnp.float64
        assert layer((), jnp.asarray(X)).output.dtype == jnp.float64


def test_every_named_activation_is_elementwise():
    for name in ACTIVATIONS:
        assert resolve_activation(name)(jnp.zeros((2, 3))).shape == (2, 3)


@pytest.mark.usefixtures("without_type_checks")
def test_unknown_activation():
    with pytest.raises(ValueError, match=r"Unknown activation 'rleu'; use one of \[.*'relu'.*\], or pass a function"):
        Dense(3, 2, nnx.Rngs(0), "rleu")
    with pytest.raises(TypeError, match=r"activation must be a function or one of the names .*, got a int"):
        Dense(3, 2, nnx.Rngs(0), 3)
    with pytest.raises(TypeError, match="got a NoneType"):
        resolve_function(None)


def test_wrong_width_names_both_numbers():
    with pytest.raises(ValueError, match=r"in_features=3\), got shape \(2, 5\)"):
        Dense(3, 2, nnx.Rngs(0))((), jnp.zeros((2, 5)))
    with pytest.raises(TypeError, match=r"expected an array \[B, 3\], got a dict. Put a Flattener or Filter"):
        Dense(3, 2, nnx.Rngs(0))((), {"a": jnp.zeros((2, 3))})
