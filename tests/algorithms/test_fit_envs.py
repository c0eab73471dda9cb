"""Environments of the user's that raise, and rollouts that no memory holds: told before anything compiles."""

import pathlib
import re
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from nnx_ppo.algorithms.config import PPOConfig
from nnx_ppo.algorithms.fit import check_fit, memory
from nnx_ppo.algorithms.fit.memory import advice_on_memory, available_bytes
from nnx_ppo.envs.check import EnvSpecError, check_env
from nnx_ppo.envs.types import EnvState
from nnx_ppo.wrappers import EpisodeWrapper, RewardScalingWrapper
from tests.helpers import RandomEnds, lstm, mlp
from tests.helpers_compile import compilations

CONFIG = PPOConfig(n_envs=4, n_minibatches=2)


class Fine:
    observation_size, action_size = 3, 2

    def reset(self, key: Any) -> EnvState:
        obs = jax.random.normal(key, (3,))
        return EnvState(obs=obs, reward=jnp.zeros(()), done=jnp.zeros((), bool), info={}, metrics={})

    def step(self, state: Any, action: Any) -> EnvState:
        return state.replace(obs=state.obs + action[0])


class Branches(Fine):
    def step(self, state, action):
        if state.obs[0] > 0:
            return state
        return state


class Misspelt(Fine):
    def step(self, state, action):
        return state.replace(obs=helper(state.obs))


def helper(obs):
    return obs.smu()


class Indexes(Fine):
    def reset(self, key):
        return super().reset(key["seed"])


class Divides(Fine):
    def step(self, state, action):
        return state.replace(obs=state.obs / (1 // 0))


class UsesNumpy(Fine):
    def step(self, state, action):
        return state.replace(obs=state.obs * float(action[0]))


class WithoutAction(Fine):
    def step(self, state):
        return state


class WithoutKey(Fine):
    def reset(self):
        return super().reset(jax.random.key(0))


class Episodes(Fine):
    def reset_episode(self, key):
        raise NotImplementedError("episodes")


class Unknown(Fine):
    def step(self, state, action):
        return state.replace(observation=state.obs)


@pytest.mark.parametrize(
    ("env", "call", "raised", "where"),
    [
        (Branches(), "Branches.step", "TracerBoolConversionError", r"in step: if state.obs\[0\] > 0"),
        (Misspelt(), "Misspelt.step", "AttributeError", "in helper: return obs.smu"),
        (Indexes(), "Indexes.reset", "TypeError", r"in reset: return super\(\).reset\(key\["),
        (Divides(), "Divides.step", "ZeroDivisionError", "in step: return state.replace"),
        (UsesNumpy(), "UsesNumpy.step", "ConcretizationTypeError", r"in step: return .*float\(action\[0\]\)"),
        (WithoutAction(), "WithoutAction.step", "TypeError", ""),
        (WithoutKey(), "WithoutKey.reset", "TypeError", ""),
        (Episodes(), "Episodes.reset_episode", "NotImplementedError", "in reset_episode: raise NotImpl"),
        (Unknown(), "Unknown.step", "TypeError", "in step: return state.replace"),
        (EpisodeWrapper(Misspelt(), 5), r"EpisodeWrapper\(Misspelt\).step", "AttributeError", "in helper: return obs"),
        (
            RewardScalingWrapper(EpisodeWrapper(Branches(), 5), 0.1),
            r"RewardScalingWrapper\(EpisodeWrapper\(Branches\)\).step", "TracerBoolConversionError", "in step: if",
        ),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)  # fmt: skip
def test_an_error_inside_names_the_class_and_the_line(env, call, raised, where):
    network, match = mlp(), rf"^{call} raised \w*{raised} when called with "
    with compilations() as compiled, pytest.raises(EnvSpecError, match=match) as caught:
        check_fit(env, network, CONFIG)
    assert compiled == []
    *_, last = str(caught.value).splitlines()
    if where:
        assert re.search(rf"^at tests/algorithms/test_fit_envs.py:\d+ {where}", last), last
    assert caught.value.__cause__ is not None


def test_the_environment_that_they_break_is_fine():
    assert check_env(Fine()).obs.shape == (3,)
    check_fit(EpisodeWrapper(Fine(), 5), mlp(), CONFIG)


# Observation 3 floats, reward 1, two flags; the normaliser's snapshot 3 floats, the sampler's 2 + 2, its log-likelihood
# 1; value, advantage, target.
STEP = 4 * (3 + 1 + 3 + 4 + 1 + 3) + 2
# Observation, reward, two flags and a key; and, twice, the sampler's key and what the LSTM remembers.
ENV_MLP, ENV_LSTM = 4 * (3 + 1) + 2 + 8 + 2 * 8, 4 * (3 + 1) + 2 + 8 + 2 * (8 + 4 * (8 + 8))


@pytest.mark.parametrize(("network", "per_env"), [(mlp, ENV_MLP), (lstm, ENV_LSTM)])
def test_a_rollout_that_no_memory_holds_is_told(network, per_env, monkeypatch):
    needed = CONFIG.n_envs * (per_env + CONFIG.rollout_length * STEP)
    for available, says in ((needed, False), (needed - 1, True), (None, False)):
        monkeypatch.setattr(memory, "available_bytes", lambda available=available: available)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_fit(RandomEnds(), network(), CONFIG)
        assert [w.category for w in caught] == [UserWarning] * says


def test_what_is_needed_and_what_there_is(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 2**33)
    config = PPOConfig(n_envs=2**20, rollout_length=2**10)
    gib = (ENV_MLP + 2**10 * STEP) / 2**10
    match = (
        rf"n_envs=1,048,576 times rollout_length=1,024 steps takes about {gib:.1f} GiB, .* has 8.0 GiB. Lower n_envs"
    )
    with pytest.warns(UserWarning, match=match):
        check_fit(RandomEnds(), mlp(), config)


def test_the_memory_of_the_device(monkeypatch):
    class Device:
        platform = "gpu"

        def memory_stats(self):
            return {"bytes_limit": 7}

    there = available_bytes()
    if jax.devices()[0].platform == "cpu":
        lines = dict(line.split(":") for line in pathlib.Path("/proc/meminfo").read_text().splitlines())
        assert there == pytest.approx(int(lines["MemTotal"].split()[0]) * 1024, rel=1e-3)
    monkeypatch.setattr(jax, "devices", lambda: [Device()])
    assert available_bytes() == 7
    monkeypatch.setattr(Device, "memory_stats", lambda self: None)
    assert available_bytes() is None


def test_a_device_that_runs_out_of_memory_says_what_to_lower():
    for text, notes in (("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.", 1), ("INTERNAL: x", 0)):
        with pytest.raises(jax.errors.JaxRuntimeError) as caught, advice_on_memory():
            raise jax.errors.JaxRuntimeError(text)
        assert len(getattr(caught.value, "__notes__", [])) == notes
        assert all("Lower n_envs or rollout_length" in note for note in getattr(caught.value, "__notes__", []))
