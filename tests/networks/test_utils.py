"""Flattener, Filter and Scale on hand-made trees."""

import jax.numpy as jnp
import numpy as np
import pytest

from nnx_ppo.networks import utils
from nnx_ppo.networks.containers import Map, Merge
from nnx_ppo.networks.utils import Filter, Flattener, Scale

TREE = {
    "b": {"x": jnp.array([[[1.0], [2.0]], [[3.0], [4.0]]]), "w": jnp.array([5.0, 6.0])},
    "a": jnp.array([[7.0, 8.0], [9.0, 10.0]]),
}


def run(module, x):
    return module((), x).output


def test_flattener_takes_leaves_by_sorted_key():
    np.testing.assert_array_equal(run(Flattener(), TREE), [[7, 8, 5, 1, 2], [9, 10, 6, 3, 4]])
    reordered = {"a": TREE["a"], "b": {"w": TREE["b"]["w"], "x": TREE["b"]["x"]}}
    np.testing.assert_array_equal(run(Flattener(), reordered), run(Flattener(), TREE))


def test_flattener_keeps_levels():
    out = run(Flattener(preserve_levels=1), TREE)
    assert set(out) == {"a", "b"}
    np.testing.assert_array_equal(out["b"], [[5, 1, 2], [6, 3, 4]])
    deep = run(Flattener(preserve_levels=2), TREE)
    np.testing.assert_array_equal(deep["b"]["x"], [[1, 2], [3, 4]])
    np.testing.assert_array_equal(deep["a"], TREE["a"])


def test_flattener_dtypes():
    assert run(Flattener(), {"a": jnp.ones((2, 1), jnp.int32)}).dtype == jnp.int32
    mixed = run(Flattener(), {"a": jnp.ones((2, 1), jnp.int32), "b": jnp.array([True, False])})
    assert mixed.dtype == jnp.float32
    np.testing.assert_array_equal(mixed, [[1, 1], [1, 0]])


def test_flattener_errors():
    with pytest.raises(ValueError, match="preserve_levels must be an integer of at least 0, got -1"):
        Flattener(-1)
    with pytest.raises(ValueError, match="at least one array to flatten"):
        run(Flattener(), {})


def test_filter_by_key_path_and_function():
    np.testing.assert_array_equal(run(Filter("a"), TREE), TREE["a"])
    np.testing.assert_array_equal(run(Filter(("b", "w")), TREE), TREE["b"]["w"])
    np.testing.assert_array_equal(run(Filter(lambda x: x["a"] * 2), TREE), TREE["a"] * 2)
    out = run(Filter({"first": "a", "second": ("b", "w"), "third": lambda x: x["a"][:, :1]}), TREE)
    assert set(out) == {"first", "second", "third"}
    np.testing.assert_array_equal(out["first"], TREE["a"])
    np.testing.assert_array_equal(out["second"], TREE["b"]["w"])
    np.testing.assert_array_equal(out["third"], [[7], [9]])


@pytest.mark.usefixtures("without_type_checks")
def test_filter_errors():
    with pytest.raises(ValueError, match=r"no entry 'q' at \(\) on the way to \('q',\); there is a dict with \['a'"):
        run(Filter("q"), TREE)
    with pytest.raises(ValueError, match=r"no entry 'z' at \('b',\).*\['w', 'x'\]"):
        run(Filter(("b", "z")), TREE)
    with pytest.raises(TypeError, match="expected a key, a tuple of keys or a function for 'out', got a int"):
        Filter({"out": 3})
    with pytest.raises(ValueError, match="an empty dict chooses nothing"):
        Filter({})


def test_scale():
    out = run(Scale(0.5), {"a": jnp.array([2, 4], jnp.int32), "b": jnp.array([[1.0], [3.0]])})
    np.testing.assert_array_equal(out["a"], [1.0, 2.0])
    np.testing.assert_array_equal(out["b"], [[0.5], [1.5]])


@pytest.mark.usefixtures("without_type_checks")
def test_scale_error():
    with pytest.raises(TypeError, match="factor must be a number, got a str"):
        Scale("half")


def test_map_and_merge_are_here_too():
    assert (utils.Map, utils.Merge) == (Map, Merge)
