"""Playground and Brax: overrides, time limits and their errors (the contract has the rest)."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_ppo.envs import BraxEnv, MissingExtraError, UnknownEnvError, make_playground, vectorize
from nnx_ppo.wrappers import EpisodeWrapper


@pytest.fixture(scope="module")
def cartpole() -> Any:
    return make_playground("CartpoleBalance", episode_length=3)


def test_playground_takes_the_time_limit_and_the_cpu_implementation_from_its_configuration(cartpole: Any) -> None:
    assert isinstance(cartpole, EpisodeWrapper)
    assert cartpole.max_len == 3
    assert make_playground("CartpoleBalance").max_len == 1000
    if jax.default_backend() == "cpu":
        assert cartpole.mjx_model.impl.value == "jax"


def test_playground_episode_is_truncated_at_its_length(cartpole: Any) -> None:
    vec = vectorize(cartpole)
    states = jax.jit(vec.reset)(jax.random.split(jax.random.key(0), 3))
    age = np.asarray(states.info["time_limit"]["age"])
    step = jax.jit(vec.step)
    for taken in range(1, 4):
        states = step(states, jnp.zeros((3, 1)))
        reading = vec.read(states)
        np.testing.assert_array_equal(reading.truncated, age + taken >= 3)
        np.testing.assert_array_equal(reading.done, reading.truncated)
        # Balanced near its upright start, the pole earns nearly 1.
        assert np.all(np.asarray(reading.reward) > 0.8)


def test_playground_refuses_what_it_does_not_know() -> None:
    with pytest.raises(
        UnknownEnvError, match=r"playground has no environment 'CartPoleBalance'. Did you mean Cartpole"
    ):
        make_playground("CartPoleBalance")
    with pytest.raises(
        ValueError, match=r"CartpoleBalance has no configuration entry 'epsiode_length'. Did you mean ep"
    ):
        make_playground("CartpoleBalance", epsiode_length=3)


def test_playground_overrides_reach_the_configuration_also_nested_ones() -> None:
    env = make_playground("CartpoleBalance", ctrl_dt=0.02, **{"vision_config.nworld": 8})
    assert env.dt == 0.02
    assert env.unwrapped._config.vision_config.nworld == 8
    with pytest.raises(ValueError, match="CartpoleBalance: a configuration entry has the wrong type"):
        make_playground("CartpoleBalance", episode_length="long")


def test_brax_episode_is_truncated_at_its_length_and_its_termination_is_none() -> None:
    env = BraxEnv("fast", episode_length=2)
    state = env.reset_episode(jax.random.key(0))
    ends = []
    for _ in range(2):
        state = env.step(state, jnp.ones(1))
        ends.append((bool(state.done), bool(state.info["truncated"])))
    assert ends == [(False, False), (True, True)]
    # Velocity 0.02 then 0.04 units per second, for 0.02 s each.
    np.testing.assert_allclose(state.reward, 0.02 * 0.02 + 0.04 * 0.02, rtol=1e-6)


def test_brax_refuses_what_it_does_not_know() -> None:
    with pytest.raises(UnknownEnvError, match=r"brax has no environment 'hoper'. Did you mean hopper"):
        BraxEnv("hoper")
    with pytest.raises(ValueError, match=r"brax:inverted_pendulum does not take the options {'gravity': 3}"):
        BraxEnv("inverted_pendulum", gravity=3)


@pytest.mark.parametrize(
    ("module", "extra", "make"),
    [
        ("mujoco_playground", "playground", lambda: make_playground("CartpoleBalance")),
        ("brax.envs", "brax", lambda: BraxEnv("fast")),
    ],
)
def test_missing_extras(monkeypatch: pytest.MonkeyPatch, module: str, extra: str, make: Any) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        MissingExtraError, match=rf"{extra} environments need the extra: pip install 'nnx-ppo\[{extra}\]'"
    ):
        make()


def test_a_playground_film_leaves_the_terminal_alone(monkeypatch, capsys):
    env = make_playground("CartpoleBalance").env

    def render(trajectory, **kwargs):
        print("its progress bar", file=sys.stderr)
        return trajectory, kwargs

    monkeypatch.setattr(env.unwrapped, "render", render)
    assert env.render([1, 2], height=3) == ([1, 2], {"height": 3})
    assert capsys.readouterr().err == ""
