"""Loss replay reproduces the rollout: ratio 1 at every step, across episode boundaries, in minibatches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.algorithms.losses import Batch
from nnx_ppo.algorithms.rollout import unroll_env
from nnx_ppo.algorithms.update import take_environments
from nnx_ppo.envs.vector import vectorize
from tests.helpers import RandomEnds, lstm, mlp, trees

N, T = 6, 9
CASES = {
    "mlp": (mlp, RandomEnds()),
    "lstm": (lstm, RandomEnds()),
    "mlp, trees": (lambda: trees(recurrent=False), RandomEnds(trees=True)),
    "lstm, trees": (trees, RandomEnds(trees=True)),
}


def two_rollouts(network, env):
    """Two consecutive rollouts; replays of the second, whole and in minibatches."""
    graphdef, variables = nnx.split(network)

    @jax.jit
    def run(variables, key):
        net = nnx.merge(graphdef, variables)
        keys = jax.random.split(key, N + 2)
        carry = net.initialize_state(N)
        env_state = vectorize(env).reset(keys[:N])
        start, env_state, first = unroll_env(env, env_state, net, carry, T, keys[N])
        _, _, second = unroll_env(env, env_state, net, start, T, keys[N + 1])
        return carry, first, start, second

    @jax.jit
    def replay(variables, carry, rollout):
        net = nnx.merge(graphdef, variables)
        return net.unroll(carry, rollout.obs, rollout.done, rollout.rollout_extras).output

    carry, first, start, second = run(variables, jax.random.key(1))
    return lambda c, r: replay(variables, c, r), [(carry, first), (start, second)]


def check(network, env, tolerance):
    """Check two rollouts, and return them."""
    replay, rollouts = two_rollouts(network, env)
    for carry, rollout in rollouts:
        assert bool(rollout.truncated.any())
        assert bool((rollout.done & ~rollout.truncated).any())
        old = rollout.network_output.loglikelihoods
        whole = replay(carry, rollout)
        ratio = jax.tree.map(lambda new, before: jnp.exp(new - before), whole.loglikelihoods, old)
        for leaf in jax.tree.leaves(ratio):
            np.testing.assert_allclose(leaf, 1.0, atol=tolerance, rtol=0)
        batch = Batch(carry, rollout.obs, rollout.done, rollout.rollout_extras, old, old, old)
        for index in (jnp.array([4, 1, 3]), jnp.array([0, 5, 2])):
            part = take_environments(batch, index)
            got = replay(part.start_state, part).loglikelihoods
            for new, before in zip(jax.tree.leaves(got), jax.tree.leaves(part.log_likelihoods), strict=True):
                np.testing.assert_allclose(jnp.exp(new - before), 1.0, atol=tolerance, rtol=0)
        # Replay evaluates the rollout's own values, too.
        for new, before in zip(
            jax.tree.leaves(whole.value_estimates), jax.tree.leaves(rollout.network_output.value_estimates), strict=True
        ):
            np.testing.assert_allclose(new, before, atol=max(tolerance, 1e-6) if new.dtype == jnp.float32 else 1e-10)
    return [rollout for _, rollout in rollouts]


@pytest.mark.parametrize("case", CASES)
def test_ratio_is_one_in_float32(case):
    make, env = CASES[case]
    check(make(), env, 1e-5)


@pytest.mark.parametrize("case", CASES)
def test_ratio_is_one_in_float64(case):
    make, env = CASES[case]
    with jax.enable_x64(True):
        network = make()
        state = nnx.state(network)
        nnx.update(
            network,
            jax.tree.map(lambda x: x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x, state),
        )
        check(network, env, 1e-10)


def test_a_wrong_carry_would_be_noticed():
    """The check above can fail: replayed from a fresh carry, the second rollout has other ratios."""
    network, env = lstm(), RandomEnds(p_end=0.0)
    replay, [(fresh, _), (_, second)] = two_rollouts(network, env)
    ratio = jnp.exp(replay(fresh, second).loglikelihoods - second.network_output.loglikelihoods)
    assert float(jnp.abs(ratio - 1.0).max()) > 1e-3
