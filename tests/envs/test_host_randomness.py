"""Random numbers that are drawn outside of JAX, and so once for ever: told where they are drawn, and nowhere else."""

import itertools
import random
import re
import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_ppo.envs import host_randomness
from nnx_ppo.envs.check import check_env
from nnx_ppo.envs.probes import PROBES
from nnx_ppo.envs.types import EnvState
from nnx_ppo.wrappers import EpisodeWrapper, RewardScalingWrapper, Wrapper

GENERATOR = np.random.default_rng(0)
TABLE = np.arange(3.0, dtype=np.float32)


class Walk:
    observation_size, action_size = 3, 2

    def noise(self) -> Any:
        return 0.0

    def reset(self, key):
        obs = jax.random.normal(key, (3,)) + TABLE
        return EnvState(obs=obs, reward=jnp.zeros(()), done=jnp.zeros((), bool), info={}, metrics={})

    def step(self, state, action):
        return state.replace(obs=state.obs + action[0])


class AtReset(Walk):
    def __init__(self, draw):
        self.draw = draw

    def reset(self, key):
        state = super().reset(key)
        return state.replace(obs=state.obs + self.draw())


class AtStep(AtReset):
    reset = Walk.reset

    def step(self, state, action):
        return state.replace(obs=state.obs + self.draw())


class Shaky(Wrapper):
    def step(self, state, action):
        state = super().step(state, action)
        return state.replace(obs=state.obs + np.float32(np.random.normal()))


def told(env: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env)
    return [
        re.split(r" is another program each time that it is traced| draws numbers of ", str(warning.message))[0]
        for warning in caught
    ]


DRAWS = {
    "numpy": lambda: np.float32(np.random.normal()),
    "an array of numpy": lambda: np.random.normal(size=3).astype(np.float32),
    "a generator": lambda: np.float32(GENERATOR.uniform()),
    "python": lambda: random.gauss(0.0, 1.0),
    "a key of a seed": lambda: jax.random.normal(jax.random.key(np.random.randint(2**31))),
    "the clock": lambda: time.perf_counter_ns() % 1000 / 1000,
}


@pytest.fixture(autouse=True)
def plenty_of_time(monkeypatch):
    monkeypatch.setattr(host_randomness, "CHEAP_S", 60.0)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_what_is_drawn_on_the_host_is_told(draw):
    assert told(AtReset(draw)) == ["AtReset.reset"]
    assert told(AtStep(draw)) == ["AtStep.step"]


def test_a_number_that_happens_to_be_the_one_before_is_told_too():
    for _ in range(20):
        assert told(AtReset(lambda: float(np.random.choice([-1.0, 1.0])))) == ["AtReset.reset"]
        # Not from a generator, of which every hundredth try would pass: a number that stays as it is for four draws.
        draws = itertools.cycle([0.0] * 4 + [1.0] * 4)
        assert told(AtReset(lambda: next(draws))) == ["AtReset.reset"]  # noqa: B023


def test_a_counter_in_the_environment_is_told():
    class Counter(Walk):
        n = 0

        def step(self, state, action):
            self.n += 1
            return state.replace(obs=state.obs + self.n)

    assert told(Counter()) == ["Counter.step"]


def test_wrapped_environments_are_looked_into():
    wrapped = RewardScalingWrapper(EpisodeWrapper(AtReset(DRAWS["numpy"]), 5), 0.1)
    assert told(wrapped) == ["AtReset.reset"]
    assert told(wrapped) == []  # once is enough
    assert told(EpisodeWrapper(Shaky(Walk()), 5)) == ["Shaky.step"]


def test_what_is_random_by_its_key_passes():
    for env in (Walk(), EpisodeWrapper(Walk(), 5), *(make() for make in PROBES.values())):
        assert told(env) == []


def test_what_is_expensive_is_traced_no_further(monkeypatch):
    class Heavy(AtReset):
        def reset(self, key):
            start = time.thread_time()
            while time.thread_time() - start < 0.02:
                pass
            return super().reset(key)

    monkeypatch.setattr(host_randomness, "CHEAP_S", 0.01)
    assert told(Heavy(DRAWS["numpy"])) == []
