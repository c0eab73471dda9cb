"""Programs that compile quickly are ordinary functions everywhere."""

import jax
import jax.numpy as jnp
import pytest

from nnx_ppo._compile import full_precision, quick_jit


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


def product(x):
    return x @ x


@pytest.mark.parametrize("wrap", [quick_jit, lambda function: jax.jit(full_precision(function))])
def test_matrix_products_keep_the_precision_of_their_inputs_unless_the_user_chose(wrap):
    x = jnp.ones((2, 2))
    with jax.default_matmul_precision(None):
        assert "precision = [HIGHEST, HIGHEST]" in wrap(product).lower(x).as_text()
    with jax.default_matmul_precision("tensorfloat32"):
        assert "HIGHEST" not in wrap(product).lower(x).as_text()
