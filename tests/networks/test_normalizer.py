"""Running statistics against NumPy, whatever the split, and what a normaliser does with awkward inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from nnx_ppo.networks.normalizer import Normalizer, NormalizerStatistics


def fed(shape, *batches):
    module = Normalizer(shape)
    for batch in batches:
        module.update_statistics(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), batch))
    return module


def apply(module, x):
    return module((), x).output


def test_before_the_first_data_the_standard_deviation_is_ten():
    np.testing.assert_allclose(apply(Normalizer(2), jnp.array([[5.0, -20.0]])), [[0.5, -2.0]])


@given(st.permutations([0.0, 2.0, 4.0, 6.0, 8.0]), st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_mean_variance_and_count_whatever_the_split_or_order(samples, cut):
    parts = [np.reshape(part, (-1, 1, 1)) for part in (samples[:cut], samples[cut:])]
    module = fed(1, *parts)
    np.testing.assert_allclose(module.mean[...], [4.0], rtol=1e-6)
    np.testing.assert_allclose(module.M2[...] / module.counter[...], [8.0], rtol=1e-6)
    assert module.counter[...] == 5


@given(st.integers(0, 2**32 - 1), st.integers(1, 11))
@settings(max_examples=25, deadline=None)
def test_agrees_with_numpy_over_all_samples(seed, cut):
    data = np.random.default_rng(seed).normal(3.0, 2.0, size=(12, 2, 3)).astype(np.float32)
    module = fed(3, data[:cut], data[cut:])
    flat = data.reshape(-1, 3).astype(np.float64)
    x = data[0]
    expected = (x - flat.mean(axis=0)) / np.sqrt(flat.var(axis=0) + 1e-6)
    np.testing.assert_allclose(apply(module, jnp.asarray(x)), expected, rtol=1e-4, atol=1e-5)


def test_large_offset_costs_no_variance():
    # The textbook E[x^2] - E[x]^2 would give noise here.
    data = (10_000 + np.array([-1.0, 1.0] * 8)).reshape(16, 1, 1)
    module = fed(1, data[:8], data[8:])
    np.testing.assert_allclose(module.M2[...] / module.counter[...], [1.0], rtol=1e-3)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1000.1, -1e6])
def test_constant_feature_does_not_explode(constant):
    module = fed(1, np.full((7, 3, 1), constant), np.full((4, 3, 1), constant))
    x = jnp.array([[constant], [constant + 1.0]], jnp.float32)
    out = np.asarray(apply(module, x))
    np.testing.assert_allclose(out, [[0.0], [0.1]], atol=0.01)


def test_samples_with_nonfinite_entries_are_left_out():
    clean = np.array([[1.0, 2.0], [3.0, 5.0], [8.0, 1.0]]).reshape(3, 1, 2)
    dirty = np.concatenate([clean, [[[np.nan, 100.0]]], [[[100.0, np.inf]]]])
    with_dirty, without = fed(2, dirty), fed(2, clean)
    assert with_dirty.counter[...] == 3
    np.testing.assert_array_equal(with_dirty.mean[...], without.mean[...])
    np.testing.assert_array_equal(with_dirty.M2[...], without.M2[...])


def test_a_batch_without_finite_sample_changes_nothing():
    module = fed(1, np.full((2, 1, 1), np.nan))
    assert module.counter[...] == 0
    np.testing.assert_array_equal(apply(module, jnp.array([[10.0]])), [[1.0]])


def test_integer_inputs_are_cast():
    module = Normalizer(1)
    module.update_statistics(jnp.arange(4, dtype=jnp.int32).reshape(4, 1, 1))
    out = apply(module, jnp.array([[0], [3]], jnp.int32))
    np.testing.assert_allclose(out, np.array([[-1.5], [1.5]]) / np.sqrt(1.25), rtol=1e-5)
    assert out.dtype == jnp.float32


def test_tree_of_shapes_keeps_a_counter_per_entry():
    module = Normalizer({"a": 1, "b": {"c": (2, 2)}})
    data = {"a": jnp.array([1.0, jnp.nan, 3.0]).reshape(3, 1, 1), "b": {"c": jnp.ones((3, 1, 2, 2))}}
    module.update_statistics(data)
    assert module.counter["a"][...] == 2
    assert module.counter["b"]["c"][...] == 3
    np.testing.assert_allclose(module.mean["a"][...], [2.0])
    assert module.shape == {"a": (1,), "b": {"c": (2, 2)}}


def test_statistics_are_no_parameters_and_none_is_no_data():
    module = Normalizer(2)
    assert not jax.tree.leaves(nnx.state(module, nnx.Param))
    assert len(jax.tree.leaves(nnx.state(module, NormalizerStatistics))) == 3
    module.update_statistics(None)
    assert module.counter[...] == 0


def test_emits_its_input_and_ignores_the_snapshot_in_replay():
    module, x = Normalizer(2), jnp.array([[1.0, 2.0]])
    out = module((), x)
    np.testing.assert_array_equal(out.rollout_extras, x)
    np.testing.assert_array_equal(module((), x, 7 * x).output, out.output)


def test_updates_under_jit():
    graphdef, variables = nnx.split(Normalizer(1))

    @jax.jit
    def update(variables, data):
        module = nnx.merge(graphdef, variables)
        module.update_statistics(data)
        return nnx.state(module)

    module = nnx.merge(graphdef, update(variables, jnp.array([[[1.0]], [[3.0]]])))
    np.testing.assert_allclose(module.mean[...], [2.0])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (jnp.zeros((4, 3)), r"samples of shape \(2,\), got an array of shape \(4, 3\)"),
        ({"a": jnp.zeros((4, 2))}, r"inputs of shape \(2,\), got \{'a': \(2,\)\}"),
    ],
)
def test_wrong_input_names_both_shapes(x, message):
    with pytest.raises(ValueError, match=message):
        apply(Normalizer(2), x)


@pytest.mark.parametrize("shape", [0, -1, True, 2.5, "3", {}, {"a": (2, 0)}])
@pytest.mark.usefixtures("without_type_checks")
def test_wrong_shape_is_refused(shape):
    with pytest.raises(ValueError, match="Normalizer"):
        Normalizer(shape)
