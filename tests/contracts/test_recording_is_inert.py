"""Recording has no effect on any module: same numbers with it, and not a bit of the network moved by it."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from nnx_ppo.networks import extract_activations, with_recording
from tests.contracts.test_modules import LEAVES, MODULES
from tests.helpers import assert_same_bits

B, T = 2, 3


def parts(out):
    return out.output, out.next_state, out.regularization_loss


@pytest.mark.parametrize("name", MODULES)
def test_recording_is_inert(name):
    make_module, make_example = MODULES[name]
    network, x = make_module(), make_example()
    xs = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None, None], (T, B, *leaf.shape)), x)
    dones = jnp.zeros((T, B), bool).at[1, 0].set(True)
    state = network.initialize_state(B)
    before, structure = jax.tree.map(jnp.copy, nnx.state(network)), nnx.graphdef(network)
    recordable = with_recording(network)

    def run(module):
        first = jax.tree.map(lambda leaf: leaf[0], xs)
        step = module(state, first)
        outs = [step, module(step.next_state, first)]
        # Containers unroll child by child, so that their sequence mode is that of their leaves.
        return [*outs, module.unroll(state, xs, dones)] if name in LEAVES else outs

    plain, recorded = run(network), run(recordable)
    assert_same_bits([parts(out) for out in plain], [parts(out) for out in recorded])
    assert jax.tree.leaves(extract_activations(recorded[0].metrics))
    assert extract_activations(plain[0].metrics) is None
    recordable.eval()
    assert_same_bits(before, nnx.state(network))
    assert nnx.graphdef(network) == structure
