"""Recording whole episodes: shapes, reproducibility, inertness during training, compilations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig
from nnx_ppo.algorithms.ppo import new_training_state, ppo_step, train_ppo
from nnx_ppo.algorithms.rollout import eval_rollout, record_activations_rollout
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.envs.vector import vectorize
from nnx_ppo.networks.recording import extract_activations, with_recording
from tests.helpers import RandomEnds, assert_same_bits, bits, lstm, mlp, trees
from tests.helpers_compile import compilations

PPO = PPOConfig(n_envs=4, rollout_length=5, total_steps=80, n_epochs=2, n_minibatches=2, learning_rate=1e-2)
CONFIG = TrainConfig(ppo=PPO, eval=EvalConfig(enabled=False))
ENV = RandomEnds(p_end=0.2)
KEY = jax.random.key(0)


def record(network, env=ENV, n_envs=3, length=6, key=KEY, **patterns):
    return record_activations_rollout(env, network, n_envs=n_envs, max_episode_length=length, key=key, **patterns)


def test_shapes_and_mask():
    activations, dones = record(mlp())
    assert all(leaf.shape[:2] == (6, 3) for leaf in jax.tree.leaves(activations))
    assert activations[1]["action"][0].shape == (6, 3, 8)
    assert dones.shape == (6, 3)
    dones = np.asarray(dones)
    assert set(np.unique(1.0 - dones)) <= {0.0, 1.0}
    assert (dones[0] == 0).all()
    assert (np.diff(dones, axis=0) >= 0).all()
    assert dones.any()


def test_equals_a_python_loop_over_single_steps():
    """The same copy, stepped by hand in the same environments from the same start."""
    network = lstm()
    activations, dones = record(network)
    from nnx_ppo.networks._rng import reseed

    twin = with_recording(network)
    twin.eval()
    network_key, env_key = jax.random.split(KEY)
    reseed(twin, network_key)
    carry = twin.initialize_state(3)
    venv = vectorize(ENV)
    state = jax.jit(venv.reset_episode)(jax.random.split(env_key, 3))
    step = jax.jit(venv.step)
    ended = np.zeros(3, bool)
    for t in range(6):
        out = twin(carry, venv.read(state).obs)
        expected = extract_activations(out.metrics)
        here = jax.tree.map(lambda leaf, t=t: leaf[t], activations)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), here, expected)
        np.testing.assert_array_equal(np.asarray(dones[t]) > 0, ended)
        carry, state = out.next_state, step(state, out.output.actions)
        ended |= np.asarray(venv.read(state).done)


@pytest.mark.parametrize("make", [mlp, lstm, trees])
def test_same_key_same_bits_whatever_ran_before(make):
    env = RandomEnds(trees=make is trees, p_end=0.2)
    network = make()
    first = record(network, env)
    network.initialize_state(7)  # draws from the network's own streams
    with_recording(network).initialize_state(2)
    eval_rollout(env, network, 2, 4, jax.random.key(9))
    record(network, env, key=jax.random.key(5))
    assert_same_bits(first, record(network, env))
    other = record(network, env, key=jax.random.key(5))
    assert not np.array_equal(bits(first)[0], bits(other)[0])


def test_the_network_keeps_its_variables_and_its_mode():
    network = lstm()
    before, graph = bits(nnx.state(network)), nnx.graphdef(network)
    record(network)
    assert_same_bits(before, nnx.state(network))
    assert nnx.graphdef(network) == graph


@pytest.mark.parametrize("make", [mlp, lstm])
def test_training_interrupted_by_recordings_equals_training_that_is_not(make):
    plain, watched = make(), make()
    train_ppo(ENV, plain, CONFIG)
    copies = []

    def log_fn(metrics, steps):
        record(watched)
        copies.append(with_recording(watched))
        copies[-1].initialize_state(3)

    train_ppo(ENV, watched, CONFIG, log_fn=log_fn)
    assert len(copies) == 4
    assert_same_bits(nnx.state(plain), nnx.state(watched))


def test_the_copy_lives_on_after_donated_steps_and_follows():
    network = mlp()
    recordable = with_recording(network)
    carry = recordable.initialize_state(2)
    before = recordable(carry, jnp.ones((2, 3))).output
    state = new_training_state(ENV, network, PPO.n_envs, 0, 1e-2)
    for _ in range(2):
        state, _ = ppo_step(ENV, state, PPO)
    after = recordable(carry, jnp.ones((2, 3))).output
    assert_same_bits(after, network(carry, jnp.ones((2, 3))).output)
    assert not np.array_equal(bits(before)[0], bits(after)[0])


def test_a_second_recording_and_a_second_evaluation_compile_nothing():
    network = lstm()
    record(network), eval_rollout(ENV, network, 3, 6, KEY)
    nnx.update(network, jax.tree.map(lambda x: x * 2, nnx.state(network, nnx.Param)))
    other = lstm(seed=1)
    key = jax.random.key(8)
    with compilations() as compiled:
        record(network, key=key), record(other, key=key)
        eval_rollout(ENV, network, 3, 6, key), eval_rollout(ENV, other, 3, 6, key)
    assert [line for line in compiled if "run" in line] == []
    with compilations() as compiled:
        record(network, length=7)
    assert compiled  # the counter counts


def test_patterns_and_recordable_networks():
    activations, _ = record(mlp(), include="*/value/*")
    assert list(activations) == [1]
    assert list(activations[1]) == ["value"]
    assert_same_bits(record(mlp()), record(with_recording(mlp())))
    carries, _ = record(lstm(), include="memory", what=("carry",))
    assert [leaf.shape for leaf in jax.tree.leaves(carries)] == [(6, 3, 8), (6, 3, 8)]
    with pytest.raises(ValueError, match="belong to with_recording"):
        record(with_recording(mlp()), include="0")


def test_evaluation_with_a_recordable_network_reports_episode_means():
    network = mlp()
    activations, dones = record(network)
    mask = 1.0 - np.asarray(dones)[..., None]
    mean = (np.asarray(activations[0]) * mask).sum(0) / mask.sum(0)
    metrics = eval_rollout(ENV, with_recording(network), 3, 6, KEY, (0, 100), LoggingLevel.NETWORK_METRICS)
    np.testing.assert_allclose(metrics["eval/net/0/__activation__/p0"], mean.min(), rtol=1e-4)
    np.testing.assert_allclose(metrics["eval/net/0/__activation__/p100"], mean.max(), rtol=1e-4)
    assert "eval/net/1/action/2/__activation__/action/p100" in metrics


@pytest.mark.parametrize(("sizes", "match"), [((0, 6), "n_envs must be at least 1, got 0"), ((3, 0), "got 0: there")])
def test_nothing_to_record_is_an_error(sizes, match):
    with pytest.raises(ValueError, match=match):
        record(mlp(), n_envs=sizes[0], length=sizes[1])
