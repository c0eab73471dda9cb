"""The strict settings of the suite are really on, and the marker takes them off."""

import warnings

import jax
import jax.numpy as jnp
import pytest

from nnx_ppo._pytree import expand_to


def test_dtype_promotion_is_refused():
    with pytest.raises(jax.dtypes.TypePromotionError):
        jnp.zeros(2, jnp.int32) + jnp.zeros(2, jnp.float32)


def test_rank_promotion_is_refused():
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.zeros((3, 2)) + jnp.zeros(2)


@pytest.mark.relaxed_promotion
def test_the_marker_allows_promotion():
    total = jnp.zeros((3, 2), jnp.int32) + jnp.ones(2, jnp.float32)
    assert total.tolist() == [[1.0, 1.0]] * 3


def test_a_warning_is_an_error():
    with pytest.raises(UserWarning, match="a warning"):
        warnings.warn("a warning", UserWarning, stacklevel=1)


def test_annotations_of_the_package_are_checked():
    with pytest.raises(Exception, match="expand_to") as caught:
        expand_to("no array", 2)
    assert "beartype" in type(caught.value).__module__ or "jaxtyping" in type(caught.value).__module__
