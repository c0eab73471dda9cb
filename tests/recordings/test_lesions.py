"""Lesions against hand arithmetic, on a policy whose units do known things."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.algorithms import rollout
from nnx_ppo.envs import make_env
from nnx_ppo.networks import make_lstm_actor_critic, make_mlp_actor_critic
from nnx_ppo.recordings.lesions import compare, lesion_study
from tests.helpers import assert_same_bits, bits

WEIGHTS = [0.5, -0.25, 0.0]
HIDDEN = [0.8, 0.4, 0.9]


def reward(mean):
    """Three steps of -(action - 0.5)^2, the action being tanh of the mean."""
    return -3 * (math.tanh(mean) - 0.5) ** 2


def known_policy():
    """Hidden units are constants, tanh(bias), as the observation is always 0; the mean is their weighted sum."""
    network = make_mlp_actor_critic(1, 1, [3], [3], nnx.Rngs(0), activation="tanh")
    hidden, head = network[1]["action"][0].linear, network[1]["action"][1].linear
    hidden.bias[...] = jnp.arctanh(jnp.array(HIDDEN))
    head.kernel[...] = jnp.stack([jnp.array(WEIGHTS), jnp.zeros(3)], axis=1)
    return network


@pytest.fixture(scope="module")
def env():
    return make_env("probe:action_reward", length=3)


OPTIONS = {"n_episodes": 2, "max_episode_length": 4, "key": 0}


def test_units(env):
    network = known_policy()
    before, structure = bits(nnx.state(network)), nnx.graphdef(network)
    study = lesion_study(env, network, units_of="1/action/0", **OPTIONS)
    assert_same_bits(before, nnx.state(network))
    assert nnx.graphdef(network) == structure
    intact = 0.5 * 0.8 - 0.25 * 0.4
    assert study.episode_reward == pytest.approx(reward(intact), abs=1e-5)
    drops = {0: reward(intact) - reward(-0.1), 1: reward(intact) - reward(0.4), 2: 0.0}
    # Without the second unit the policy is better: its drop is negative, and it comes last.
    assert [lesion.unit for lesion in study.lesions] == [0, 2, 1]
    for lesion in study.lesions:
        assert lesion.drop == pytest.approx(drops[lesion.unit], abs=1e-5)
        assert lesion.episode_reward == pytest.approx(reward(intact) - drops[lesion.unit], abs=1e-5)
        assert lesion.standard_error == 0.0


def test_layers(env):
    study = lesion_study(env, known_policy(), **OPTIONS)
    drops = {lesion.path: lesion.drop for lesion in study.lesions}
    gone = reward(0.3) - reward(0.0)
    expected = {"1/action/0": gone, "1/action/1": gone, "0": 0.0, "1/value/0": 0.0, "1/value/1": 0.0}
    assert drops == pytest.approx(expected, abs=1e-5)


def test_other_units_trace_nothing(monkeypatch):
    """The policy is traced as often for one unit as for all of them; and not at all for a second study."""
    env, network = make_env("probe:memory_cue", delay=1), make_lstm_actor_critic(2, 1, 4, [3], [3], nnx.Rngs(0))
    step, traced = rollout.policy_step, []
    monkeypatch.setattr(rollout, "policy_step", lambda *args: traced.append(1) or step(*args))
    at_each = []
    options = {"units_of": "memory", "n_episodes": 3, "max_episode_length": 6, "key": 0}
    study = lesion_study(env, network, **options, on_progress=lambda done, total: at_each.append(len(traced)))
    assert {lesion.unit for lesion in study.lesions} == {0, 1, 2, 3}
    assert traced
    assert len(at_each) == 4
    assert len(set(at_each)) == 1
    assert lesion_study(env, network, **options) == study
    assert len(traced) == at_each[0]


def test_drop_and_standard_error_are_of_the_same_episodes():
    lesion = compare("a", 3, [1.0, 2.0, 6.0], [0.0, 2.0, 1.0])
    assert (lesion.episode_reward, lesion.drop) == (1.0, 2.0)
    assert lesion.standard_error == pytest.approx(np.sqrt(((1 - 2) ** 2 + (0 - 2) ** 2 + (5 - 2) ** 2) / 2 / 3))
    assert np.isnan(compare("a", None, [1.0], [0.0]).standard_error)


def test_errors(env):
    network = known_policy()
    with pytest.raises(ValueError, match=r"units_of='1/action/9' is no layer .*; near names: \['1/action/"):
        lesion_study(env, network, units_of="1/action/9", **OPTIONS)
    with pytest.raises(ValueError, match=r"include='trunk\*' matches no layer"):
        lesion_study(env, network, include="trunk*", **OPTIONS)
    with pytest.raises(ValueError, match="n_episodes must be at least 1, got 0"):
        lesion_study(env, network, **{**OPTIONS, "n_episodes": 0})
    with pytest.raises(ValueError, match="give one or the other"):
        lesion_study(env, network, units_of="0", include="0", **OPTIONS)
