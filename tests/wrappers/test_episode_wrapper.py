"""The time limit: exact life spans, staggered starts, and nothing changed that was given."""

import copy
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_ppo.envs import CountingEnv, EnvState, GymnaxEnv, RLEnv, check_env, vectorize
from nnx_ppo.wrappers import EpisodeWrapper, RewardScalingWrapper, episode_wrapper

FOREVER = CountingEnv(length=10**6)


def _ends(env: Any, start: str, n_envs: int, n_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ``done`` and ``truncated``, ``[n_steps, n_envs]``, without any reset in between."""
    vec = vectorize(env)

    @jax.jit
    def run(keys: jax.Array) -> Any:
        def step(states: Any, _: None) -> Any:
            states = vec.step(states, jnp.zeros((n_envs, 1)))
            return states, vec.read(states)

        return jax.lax.scan(step, getattr(vec, start)(keys), None, length=n_steps)[1]

    reading = run(jax.random.split(jax.random.key(0), n_envs))
    return np.asarray(reading.done), np.asarray(reading.truncated)


def _lifespan(done: np.ndarray) -> np.ndarray:
    assert done.any(axis=0).all()
    return done.argmax(axis=0) + 1


@pytest.mark.parametrize("max_len", [1, 2, 7, 1000])
def test_lifespan_from_reset_episode_is_exactly_the_limit(max_len: int) -> None:
    done, truncated = _ends(EpisodeWrapper(FOREVER, max_len), "reset_episode", 2, max_len)
    np.testing.assert_array_equal(_lifespan(done), [max_len, max_len])
    np.testing.assert_array_equal(truncated, done)


@pytest.mark.parametrize("max_len", [1, 2, 7])
def test_first_episodes_end_at_all_times_up_to_the_limit(max_len: int) -> None:
    env = EpisodeWrapper(FOREVER, max_len)
    done, truncated = _ends(env, "reset", 64, max_len)
    age = vectorize(env).reset(jax.random.split(jax.random.key(0), 64)).info["time_limit"]["age"]
    np.testing.assert_array_equal(_lifespan(done), max_len - np.asarray(age))
    assert set(_lifespan(done).tolist()) == set(range(1, max_len + 1))
    np.testing.assert_array_equal(truncated, done)


def test_ages_are_uniform() -> None:
    env = EpisodeWrapper(FOREVER, 4)
    ages = jax.vmap(env.reset)(jax.random.split(jax.random.key(2), 4096)).info["time_limit"]["age"]
    # Five standard deviations of a binomial count with n = 4096 and p = 1/4.
    assert np.all(np.abs(np.bincount(ages, minlength=4) - 1024) < 5 * np.sqrt(4096 * 0.25 * 0.75))


@pytest.mark.parametrize(
    ("inner", "max_len", "lifespan", "truncated"),
    [
        (CountingEnv(length=3, ends="terminate"), 3, 3, False),
        (CountingEnv(length=3, ends="terminate"), 2, 2, True),
        (CountingEnv(length=3, ends="terminate"), 9, 3, False),
        (CountingEnv(length=3, ends="truncate"), 9, 3, True),
        (CountingEnv(length=3, ends="truncate"), 3, 3, True),
        (EpisodeWrapper(FOREVER, 2), 5, 2, True),
        (EpisodeWrapper(FOREVER, 5), 2, 2, True),
    ],
)
def test_termination_comes_before_truncation_and_inner_truncation_is_kept(
    inner: Any, max_len: int, lifespan: int, truncated: bool
) -> None:
    done, cut = _ends(EpisodeWrapper(inner, max_len), "reset_episode", 1, lifespan)
    assert _lifespan(done).tolist() == [lifespan]
    assert bool(cut[lifespan - 1, 0]) is truncated
    assert not cut[: lifespan - 1].any()


class Careless:
    """Writes into the dicts it is given, as some simulators do, and keeps a float ``done`` that it reads itself."""

    observation_size = 1
    action_size = 1
    label = "careless"

    def reset(self, key: jax.Array) -> EnvState:
        return EnvState(jnp.zeros(1), 0.0, jnp.zeros(()), {"truncation": 0.0, "n": 0}, {"speed": 0.0})

    def step(self, state: EnvState, action: Any) -> EnvState:
        state.metrics["speed"] = action[0]
        state.info["n"] = state.info["n"] + 1
        return state.replace(obs=state.obs + 1.0, done=state.done * 1.0)

    def render(self, trajectory: list[Any], scale: int = 1) -> list[int]:
        return [scale] * len(trajectory)


@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize("wrap", [lambda env: EpisodeWrapper(env, 3), lambda env: RewardScalingWrapper(env, 2.0)])
def test_a_careless_environment_gets_copies(wrap: Any, jit: bool) -> None:
    env = wrap(Careless())
    with jax.disable_jit(not jit):
        state = env.reset(jax.random.key(0))
        after = env.step(state, jnp.ones(1))
        assert float(state.metrics["speed"]) == 0.0
        assert int(state.info["n"]) == 0
        assert float(after.metrics["speed"]) == 1.0
        assert int(after.info["n"]) == 1


def test_the_environment_inside_sees_its_own_state_again() -> None:
    seen = []

    class Looking(Careless):
        def step(self, state: EnvState, action: Any) -> EnvState:
            seen.append((sorted(state.info), state.done.dtype))
            return super().step(state, action)

    check_env(EpisodeWrapper(EpisodeWrapper(Looking(), 3), 5))
    assert set(map(str, seen)) == {str((["n", "truncation"], jnp.dtype("float32")))}


def test_brax_style_truncation_inside_is_kept() -> None:
    class Cut(Careless):
        def step(self, state: EnvState, action: Any) -> EnvState:
            return super().step(state, action).replace(info={"truncation": 1.0, "n": 0})

    env = EpisodeWrapper(Cut(), 9)
    state = env.step(env.reset_episode(jax.random.key(0)), jnp.ones(1))
    assert bool(state.done)
    assert bool(state.info["truncated"])


def test_other_attributes_are_those_of_the_environment_inside() -> None:
    env = EpisodeWrapper(Careless(), 3)
    assert (env.observation_size, env.action_size, env.label) == (1, 1, "careless")
    assert env.render([1, 2], scale=4) == [4, 4]
    assert isinstance(env, RLEnv)
    assert isinstance(env.unwrapped, Careless)
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        env.colour  # noqa: B018
    assert EpisodeWrapper(GymnaxEnv("CartPole-v1"), 3).discrete_actions


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_can_be_copied_and_pickled(duplicate: Any) -> None:
    env = duplicate(RewardScalingWrapper(EpisodeWrapper(CountingEnv(length=3), 2), 0.5))
    assert (env.reward_scale, env.max_len, env.length) == (0.5, 2, 3)
    assert env.env.env == CountingEnv(length=3)


@pytest.mark.parametrize("max_len", [0, -3])
def test_limits_that_make_no_sense(max_len: int) -> None:
    with pytest.raises(ValueError, match=f"max_len: expected an integer number of steps of at least 1, got {max_len}"):
        EpisodeWrapper(FOREVER, max_len)


def test_a_state_of_the_environment_inside_is_not_taken_for_a_wrapped_one() -> None:
    state = FOREVER.reset(jax.random.key(0))
    with pytest.raises(ValueError, match=r"with info\['time_limit'\]; got one with info entries \['truncated'\]"):
        EpisodeWrapper(FOREVER, 3).step(state, jnp.zeros(1))


def test_the_published_import_path() -> None:
    assert episode_wrapper.EpisodeWrapper is EpisodeWrapper
