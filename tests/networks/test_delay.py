"""Delay against a list of past inputs per environment; what a sequence leaves in the buffer; errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_ppo.networks import _ring_buffer
from nnx_ppo.networks.delay import Delay

T, B = 7, 3


@pytest.fixture
def sequence():
    rng = np.random.default_rng(0)
    dones = rng.random((T, B)) < 0.3
    dones[1, 0], dones[:, 1] = True, False
    return rng.normal(size=(T, B, 2)).astype(np.float32), dones


def by_lists(xs, dones, k, initial, past):
    """Keep what each environment has seen in a list, which a ``done`` empties."""
    outputs = np.full_like(xs, initial)
    for b in range(B):
        seen = list(past[b])
        for t in range(len(xs)):
            if len(seen) >= k:
                outputs[t, b] = seen[-k]
            seen.append(xs[t, b])
            if dones[t, b]:
                seen = []
        past[b] = seen
    return outputs


@pytest.mark.parametrize("k", [1, 2, 5, 9])
@pytest.mark.parametrize("initial", [0.0, 0.5])
def test_output_is_the_input_k_steps_ago_over_two_rollouts(sequence, k, initial):
    xs, dones = sequence
    module = Delay(jnp.zeros(2), k, initial)
    state, past = module.initialize_state(B), [[] for _ in range(B)]
    for scale in (1.0, 2.0):
        out = module.unroll(state, jnp.asarray(scale * xs), jnp.asarray(dones))
        np.testing.assert_array_equal(out.output, by_lists(scale * xs, dones, k, initial, past))
        state = out.next_state


@pytest.mark.parametrize("n", [1, 3, 8])
def test_a_sequence_leaves_the_buffer_that_single_steps_leave(sequence, n):
    xs, dones = sequence
    start = _ring_buffer.create(jax.ShapeDtypeStruct((2,), jnp.float32), n, B)
    for x in xs[:2]:
        start = _ring_buffer.push(start, jnp.asarray(x))
    stepped = start
    for x, done in zip(xs, dones, strict=True):
        stepped = _ring_buffer.push(stepped, jnp.asarray(x))
        keep = jnp.asarray(~done)
        stepped = {
            "buffer": jnp.where(keep[:, None, None], stepped["buffer"], 0),
            "idx": jnp.where(keep, stepped["idx"], 0),
        }
    at_once = _ring_buffer.push_sequence(start, jnp.asarray(xs), jnp.asarray(dones))
    for name in ("buffer", "idx"):
        np.testing.assert_array_equal(at_once[name], stepped[name])
        assert at_once[name].dtype == stepped[name].dtype
    for k in range(1, n + 1):
        np.testing.assert_array_equal(_ring_buffer.read(at_once, k), _ring_buffer.read(stepped, k))


def test_carry_has_the_documented_form():
    state = Delay({"a": jnp.zeros(2), "b": jnp.zeros((), jnp.int32)}, 4).initialize_state(3)
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype.name), state)
    assert shapes == {
        "buffer": {"a": ((3, 4, 2), "float32"), "b": ((3, 4), "int32")},
        "idx": ((3,), "int32"),
    }


def test_no_loop_over_time_and_gradients_pass():
    module = Delay(jnp.zeros(2), 2)
    state, dones = module.initialize_state(B), jnp.zeros((T, B), bool)

    def loss(xs):
        return jnp.sum(module.unroll(state, xs, dones).output)

    xs = jnp.ones((T, B, 2))
    assert "scan" not in str(jax.make_jaxpr(loss)(xs))
    np.testing.assert_array_equal(jax.grad(loss)(xs)[:, 0, 0], [1, 1, 1, 1, 1, 0, 0])


def test_errors():
    for k in (0, -1, True):
        with pytest.raises(ValueError, match="k_steps must be an integer of at least 1, got"):
            Delay(jnp.zeros(2), k)
    with pytest.raises(ValueError, match="at least one array in sample_input"):
        Delay({}, 1)
    module = Delay(jnp.zeros(2), 1)
    state = module.initialize_state(3)
    with pytest.raises(ValueError, match=r"samples of shape \(2,\).*\[B, ...\].*got shape \(3, 4\)"):
        module(state, jnp.zeros((3, 4)))
    with pytest.raises(ValueError, match=r"\[T, B, ...\].*got shape \{'a': \(5, 3, 2\)\}"):
        module.unroll(state, {"a": jnp.zeros((5, 3, 2))}, jnp.zeros((5, 3), bool))
    whole = Delay(jnp.zeros(2, jnp.int32), 1)
    with pytest.raises(TypeError, match="samples of dtype int32, got float32"):
        whole(whole.initialize_state(3), jnp.zeros((3, 2)))
