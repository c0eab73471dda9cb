"""How containers feed their children and join the outputs; keys; messages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks.containers import Concat, Map, Merge, Parallel, Sequential, Splitter
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput
from nnx_ppo.networks.utils import Scale

X = jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


class Counts(StatefulModule):
    """Adds the number of calls since the last reset; loss and snapshot tell that it ran."""

    def __init__(self, loss=1.0):
        self.loss = loss
        self.seen = nnx.Variable(jnp.zeros(()))

    def initialize_state(self, batch_size):
        return {"n": jnp.zeros(batch_size)}

    def reset_state(self, state):
        return {"n": jnp.zeros_like(state["n"])}

    def __call__(self, state, x, rollout_extras=None):
        n = state["n"] + 1
        return StatefulModuleOutput({"n": n}, x + n[:, None], jnp.full(n.shape, self.loss), {"n": n}, n)

    def update_statistics(self, rollout_extras):
        if rollout_extras is not None:
            self.seen[...] = jnp.sum(rollout_extras)


def run(module, x):
    return module(module.initialize_state(2), x)


def test_sequential_threads_everything_under_its_keys():
    for layers, keys in (([Counts(), Counts(2.0)], (0, 1)), ({"z": Counts(), "a": Counts(2.0)}, ("z", "a"))):
        module = Sequential(layers)
        out = run(module, X)
        np.testing.assert_array_equal(out.output, X + 2)
        np.testing.assert_array_equal(out.regularization_loss, [3.0, 3.0])
        for part in (out.next_state, out.metrics, out.rollout_extras, module.named_children()):
            assert tuple(part) == keys
        module.update_statistics(jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), out.rollout_extras))
        assert [child.seen[...] for child in module.named_children().values()] == [6.0, 6.0]


def test_sequential_by_position_and_by_name():
    first, second = Scale(1.0), Scale(2.0)
    module = Sequential([("encoder", first), ("decoder", second)])
    assert module["encoder"] is module[0] is first
    assert module[-1] is second
    assert list(module) == [first, second]
    with pytest.raises(IndexError, match=r"has 2 layers, so no layer 2; its keys are \['encoder', 'decoder'\]"):
        module[2]
    with pytest.raises(KeyError, match="no child 'head'; its children are"):
        module["head"]


def test_losses_of_mixed_dtypes_and_shapes_add():
    class Loss(StatefulModule):
        def __init__(self, loss):
            self.loss = nnx.data(loss)

        def __call__(self, state, x, rollout_extras=None):
            return StatefulModuleOutput(state, x, self.loss, {})

    losses = [0.5, jnp.ones(2, jnp.float16), jnp.array([1.0, 2.0]), jnp.array(3, jnp.int32)]
    np.testing.assert_allclose(run(Sequential([Loss(loss) for loss in losses]), X).regularization_loss, [5.5, 6.5])
    # Under x64 a float32 network keeps float32 losses.
    with jax.enable_x64(True):
        out = run(Sequential([Loss(jnp.ones(2, jnp.float32))]), jnp.asarray(X, jnp.float32))
        assert out.regularization_loss.dtype == jnp.float32


def test_parallel_concat_map_merge():
    a, b = Scale(10.0), Scale(100.0)
    out = run(Parallel(a=a, b=b), X).output
    np.testing.assert_array_equal(out["a"], X * 10)
    np.testing.assert_array_equal(out["b"], X * 100)
    entries = {"a": X, "b": -X, "unused": X}
    # In the children's order, not the input's.
    np.testing.assert_array_equal(run(Concat(b=b, a=a), entries).output, np.concatenate([-100 * X, 10 * X], axis=-1))
    mapped = run(Map({"b": b}), entries).output
    assert set(mapped) == {"b"}
    np.testing.assert_array_equal(mapped["b"], -100 * X)
    merged = run(Merge(one=Parallel(p=a), two=Parallel(q=b)), X).output
    assert set(merged) == {"p", "q"}


def test_splitter_cuts_in_the_order_given():
    out = run(Splitter(z=1, a=2), X).output
    np.testing.assert_array_equal(out["z"], X[:, :1])
    np.testing.assert_array_equal(out["a"], X[:, 1:])
    np.testing.assert_array_equal(run(Splitter({"z": 1, "a": 2}), X).output["a"], out["a"])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: run(Splitter(a=1, b=1), X), ValueError, r"array \[B, 2\] for \{'a': 1, 'b': 1\}, got shape \(2, 3\)"),
        (lambda: run(Splitter(a=1), {"a": X}), ValueError, r"array \[B, 1\].*got a dict"),
        (lambda: Splitter(a=0), ValueError, "size of 'a' must be an integer of at least 1, got 0"),
        (lambda: Splitter({"a": 1}, b=1), TypeError, "keywords or one dict of children, not both"),
        (lambda: run(Concat(a=Scale(1.0)), {"b": X}), ValueError, r"entry 'a', got a dict with \['b'\]"),
        (lambda: run(Map(a=Scale(1.0)), X), ValueError, "Map: expected a dict input with an entry 'a'"),
        (lambda: run(Merge(a=Scale(1.0)), X), TypeError, "child 'a' must return a dict"),
        (
            lambda: run(Merge(a=Parallel(p=Scale(1.0)), b=Parallel(p=Scale(1.0))), X),
            ValueError,
            "children 'a' and 'b' both return 'p'",
        ),
        (lambda: Parallel(), ValueError, "at least one child"),
        (lambda: Parallel(a=nnx.Linear(1, 1, rngs=nnx.Rngs(0))), TypeError, "child 'a' must be a StatefulModule"),
        (lambda: Sequential([]), ValueError, "at least one layer"),
        (lambda: Sequential(Scale(1.0)), TypeError, "takes a list of layers, got one Scale"),
        (lambda: Sequential([Scale(1.0), ("a", Scale(1.0))]), TypeError, "not a mix of both"),
        (lambda: Sequential([("a", Scale(1.0)), ("a", Scale(1.0))]), ValueError, r"unique, but \['a'\] appear twice"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_messages(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_unroll_of_a_container_scans_only_what_recurs():
    module = Sequential([Dense(3, 3, nnx.Rngs(0)), Dense(3, 3, nnx.Rngs(1))])
    dones = jnp.zeros((4, 2), bool)
    jaxpr = jax.make_jaxpr(lambda xs: module.unroll(module.initialize_state(2), xs, dones).output)(jnp.ones((4, 2, 3)))
    assert "scan" not in str(jaxpr)
