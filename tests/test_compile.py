"""Programs that compile quickly are ordinary functions everywhere."""

import jax
import jax.numpy as jnp
import pytest

from nnx_ppo._compile import quick_jit


def test_alone_and_inside_another_program():
    double = quick_jit(lambda x: 2.0 * x)
    assert float(double(jnp.float32(3.0))) == 6.0
    assert float(jax.jit(lambda x: double(x) + 1.0)(jnp.float32(3.0))) == 7.0
    assert jax.eval_shape(double, jnp.zeros(4)).shape == (4,)
    assert double.lower(jnp.float32(1.0)).compile()(jnp.float32(1.0)) == 2.0


def test_errors_of_the_function_come_through():
    def fails(x):
        raise ValueError("from inside")

    with pytest.raises(ValueError, match="from inside"):
        quick_jit(fails)(jnp.zeros(()))
