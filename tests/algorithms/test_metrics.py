"""Reductions against NumPy and by hand; names of keys."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nnx_ppo.algorithms.metrics import (
    Collector,
    MetricsRow,
    evaluation_row,
    explained_variance,
    flat_names,
    percentile_name,
    reduce,
)


def test_percentiles_by_hand_with_a_nan():
    x = jnp.array([0.0, 10.0, 20.0, np.nan, 30.0, 40.0])
    got = reduce("x", x, (0, 2.5, 25, 50, 97.5, 100))
    assert list(got) == ["x/p0", "x/p2.5", "x/p25", "x/p50", "x/p97.5", "x/p100"]
    np.testing.assert_allclose(list(got.values()), [0, 1, 10, 20, 39, 40], rtol=1e-6)
    collect = Collector((50,))
    collect.reduced("x", x)
    assert collect.row("nonfinite").to_dict() == {"x/p50": 20.0, "nonfinite": 1.0}


values = arrays(
    np.float32, 12, elements=st.one_of(st.floats(-1e3, 1e3, width=32), st.sampled_from([np.nan, np.inf, -np.inf]))
)


@settings(max_examples=100, deadline=None)
@given(values)
def test_reductions_equal_numpy_on_the_finite_entries(x):
    finite = x[np.isfinite(x)].astype(np.float64)
    percentiles = (0, 12.5, 50, 99, 100)
    got = list(reduce("x", jnp.asarray(x), percentiles).values())
    mean_std = list(reduce("x", jnp.asarray(x), None).values())
    if finite.size == 0:
        assert np.isnan([*got, *mean_std]).all()
        return
    np.testing.assert_allclose(got, np.percentile(finite, percentiles), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(mean_std, [finite.mean(), finite.std()], rtol=1e-3, atol=1e-2)


def test_booleans_give_the_fraction_true():
    assert float(reduce("x", jnp.array([True, False, False, False]), None)["x/mean"]) == 0.25


def test_percentile_names_never_collide():
    assert [percentile_name(p) for p in (0, 50.0, 2.5, 99.99999, 100)] == ["p0", "p50", "p2.5", "p99.99999", "p100"]


def test_names_of_mixed_and_nested_keys():
    tree = {1: {"a": jnp.zeros(2)}, "b": [jnp.zeros(1), jnp.zeros(3)], "empty": {}}
    assert {name: leaf.shape for name, leaf in flat_names(tree).items()} == {"1/a": (2,), "b/0": (1,), "b/1": (3,)}
    assert list(flat_names(jnp.zeros(4))) == [""]


def test_a_leaf_without_env_axis_is_a_scalar():
    collect = Collector(None)
    collect.tree("net", {"scalar": jnp.array([1.0, 3.0]), "each": jnp.ones((2, 3))})
    assert collect.row("nonfinite").to_dict() == {
        "net/scalar": 2.0, "net/each/mean": 1.0, "net/each/std": 0.0, "nonfinite": 0.0,
    }  # fmt: skip


def test_row_is_one_array_and_keeps_the_order():
    row = MetricsRow.of({"z": jnp.float32(1.5), "a": jnp.int32(2)})
    assert row.values.shape == (2,)
    assert list(row.to_dict().items()) == [("z", 1.5), ("a", 2.0)]
    assert all(type(value) is float for value in row.to_dict().values())
    assert MetricsRow.of({}).to_dict() == {}


def test_explained_variance():
    targets = jnp.array([1.0, 2.0, 3.0, 4.0])
    assert float(explained_variance(targets, targets)) == 1.0
    assert float(explained_variance(jnp.zeros(4), targets)) == 0.0
    assert float(explained_variance(jnp.zeros(4), jnp.ones(4))) == 0.0


def test_evaluation_row_by_hand():
    row = evaluation_row(
        {"a": jnp.array([1.0, 3.0]), "b": jnp.array([10.0, 10.0])},
        jnp.array([2, 4]),
        {"env": {"speed": jnp.array([2.0, 8.0])}, "net": {"0/mu": jnp.array([[2.0, 4.0], [4.0, 8.0]])}},
        (0, 100),
    ).to_dict()
    assert row["eval/episode_reward/mean"] == 12.0
    assert row["eval/episode_reward/std"] == 1.0
    assert (row["eval/episode_reward/p0"], row["eval/episode_reward/p100"]) == (11.0, 13.0)
    assert (row["eval/episode_reward/a/mean"], row["eval/episode_reward/b/std"]) == (2.0, 0.0)
    assert (row["eval/lifespan/p0"], row["eval/lifespan/p100"]) == (2.0, 4.0)
    assert (row["eval/env/speed/p0"], row["eval/env/speed/p100"]) == (1.0, 2.0)
    assert (row["eval/net/0/mu/p0"], row["eval/net/0/mu/p100"]) == (1.0, 2.0)
    assert "eval/lifespan/mean" not in row


@pytest.mark.parametrize("percentiles", [None, (50,)])
def test_nothing_finite_is_nan_and_counted(percentiles):
    row = evaluation_row(jnp.full(3, jnp.nan), jnp.array([1, 1, 1]), {"env": {}, "net": {}}, percentiles).to_dict()
    assert np.isnan(row["eval/episode_reward/mean"])
    assert row["eval/nonfinite"] == 3.0
