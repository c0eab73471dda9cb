"""The batch of environments: readings, casts at the border, one trace, one object per environment."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_ppo.envs import CountingEnv, EnvSpecError, EnvState, ObservationReward, VectorEnv, host_randomness, vectorize
from nnx_ppo.wrappers import EpisodeWrapper


@dataclasses.dataclass(eq=False)
class Traced:
    """Counts how often Python runs through reset and step; done and truncated as the action says."""

    observation_size: int = 1
    action_size: int | None = 2
    n_resets: int = 0
    n_steps: int = 0
    flag: str = "truncated"

    def reset(self, key: jax.Array) -> EnvState:
        self.n_resets += 1
        return EnvState(obs=jnp.zeros(1), reward=0, done=0, info={self.flag: 0.0}, metrics={}, data={"key": key})

    def step(self, state: EnvState, action: jax.Array) -> EnvState:
        self.n_steps += 1
        key, _ = jax.random.split(state.data["key"])
        info = {self.flag: action[1]}
        return EnvState(
            obs=state.obs + 1.0, reward=3, done=action[0].astype(jnp.int32), info=info, metrics={}, data={"key": key}
        )


def _keys(n: int) -> jax.Array:
    return jax.random.split(jax.random.key(0), n)


@pytest.fixture
def no_further_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the traces that only look for random numbers of the host."""
    monkeypatch.setattr(host_randomness, "CHEAP_S", -1.0)


@pytest.mark.usefixtures("no_further_traces")
def test_python_of_the_environment_is_traced_once_for_check_eager_jit_and_scan() -> None:
    env = Traced()
    vec = vectorize(env)
    vec.spec()
    states = vec.reset(_keys(2))
    states = vec.step(states, jnp.zeros((2, 2)))
    jax.jit(vec.step)(states, jnp.zeros((2, 2)))
    jax.jit(vec.reset)(_keys(5))
    jax.jit(lambda s: jax.lax.scan(lambda c, _: (vec.step(c, jnp.zeros((2, 2))), None), s, None, length=3))(states)
    assert (env.n_resets, env.n_steps) == (1, 1)


@pytest.mark.usefixtures("no_further_traces")
def test_an_episode_wrapper_does_not_trace_the_environment_again() -> None:
    env = Traced()
    vec = vectorize(EpisodeWrapper(env, 4))
    vec.spec()
    vec.reset(_keys(2))
    states = vec.reset_episode(_keys(2))
    vec.step(states, jnp.zeros((2, 2)))
    assert (env.n_resets, env.n_steps) == (1, 1)


def test_one_vector_env_per_object() -> None:
    first, second = CountingEnv(), CountingEnv()
    assert first == second
    assert vectorize(first) is vectorize(first)
    assert vectorize(first) is not vectorize(second)
    assert vectorize(vectorize(first)) is vectorize(first)
    assert isinstance(vectorize(first), VectorEnv)
    assert vectorize(first).env is first


@pytest.mark.parametrize("flag", ["truncated", "truncation"])
def test_reading(flag: str) -> None:
    env = Traced(flag=flag)
    vec = vectorize(env)
    actions = jnp.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    reading = vec.read(vec.step(vec.reset(_keys(4)), actions))
    # The last one: truncated without done is done.
    np.testing.assert_array_equal(reading.done, [False, True, True, True])
    np.testing.assert_array_equal(reading.truncated, [False, False, True, True])
    np.testing.assert_array_equal(reading.reward, np.full(4, 3.0, np.float32))
    assert reading.reward.dtype == jnp.float32
    assert reading.done.dtype == reading.truncated.dtype == jnp.bool_


def test_a_flag_of_another_name_is_no_truncation() -> None:
    vec = vectorize(Traced(flag="time_out"))
    reading = vec.read(vec.step(vec.reset(_keys(1)), jnp.ones((1, 2))))
    np.testing.assert_array_equal(reading.truncated, [False])
    np.testing.assert_array_equal(reading.done, [True])


def test_reward_trees_are_cast_leaf_by_leaf() -> None:
    class Tree(Traced):
        def reset(self, key: jax.Array) -> EnvState:
            return super().reset(key).replace(reward={"a": 0, "b": {"c": False}})

        def step(self, state: EnvState, action: jax.Array) -> EnvState:
            return super().step(state, action).replace(reward={"a": 2, "b": {"c": True}})

    vec = vectorize(Tree())
    reading = vec.read(vec.step(vec.reset(_keys(2)), jnp.zeros((2, 2))))
    assert jax.tree.structure(reading.reward) == jax.tree.structure({"a": 0, "b": {"c": 0}})
    np.testing.assert_array_equal(reading.reward["a"], np.float32([2, 2]))
    np.testing.assert_array_equal(reading.reward["b"]["c"], np.float32([1, 1]))
    assert reading.reward["b"]["c"].dtype == jnp.float32


def test_typed_keys_in_the_state_survive_and_move_on() -> None:
    vec = vectorize(ObservationReward())
    keys = _keys(3)
    states = vec.reset(keys)
    after = jax.jit(vec.step)(states, jnp.zeros((3, 1)))
    assert jnp.issubdtype(after.data["key"].dtype, jax.dtypes.prng_key)
    assert not np.array_equal(jax.random.key_data(states.data["key"]), jax.random.key_data(after.data["key"]))


def test_states_made_elsewhere_are_cast_before_and_inside_step() -> None:
    env = Traced()
    vec = vectorize(env)
    made = jax.vmap(env.reset)(_keys(2))
    assert made.reward.weak_type
    cast = vec.cast(made)
    assert not cast.reward.weak_type
    run = jax.jit(lambda s: jax.lax.scan(lambda c, _: (vec.step(c, jnp.zeros((2, 2))), None), s, None, length=2)[0])
    np.testing.assert_array_equal(run(cast).obs, [[2.0], [2.0]])
    np.testing.assert_array_equal(vec.step(made, jnp.zeros((2, 2))).obs, [[1.0], [1.0]])


def test_spec_is_checked_once_per_structure_of_the_action() -> None:
    vec = vectorize(Traced())
    assert vec.spec() is vec.spec()
    assert vec.spec() is vec.spec(jax.ShapeDtypeStruct((2,), jnp.float32))
    assert vec.spec(jnp.zeros(3)) is not vec.spec()
    assert vec.spec(jnp.zeros(3)).action.shape == (3,)


def test_the_policys_own_actions_serve_an_environment_that_declares_none() -> None:
    class Undeclared(Traced):
        def step(self, state: EnvState, action: Any) -> EnvState:
            return super().step(state, action["go"])

    vec = vectorize(Undeclared(action_size=None))
    with pytest.raises(EnvSpecError, match="action_size: expected an int"):
        vec.reset(_keys(2))
    vec.spec({"go": jax.ShapeDtypeStruct((2,), jnp.float32)})
    states = vec.step(vec.reset(_keys(2)), {"go": jnp.zeros((2, 2))})
    np.testing.assert_array_equal(states.obs, [[1.0], [1.0]])


def test_step_with_actions_that_do_not_fit_is_the_readable_error() -> None:
    vec = vectorize(Traced())
    states = vec.reset(_keys(2))
    with pytest.raises(EnvSpecError, match=r"Traced\.step raised .* \{\[\"a\"\]: float32\[2\]\} as action"):
        vec.step(states, {"a": jnp.zeros((2, 2))})


def test_reset_episode_is_reset_where_the_environment_knows_no_difference() -> None:
    vec = vectorize(ObservationReward())
    a, b = vec.reset(_keys(8)), vec.reset_episode(_keys(8))
    np.testing.assert_array_equal(a.obs, b.obs)


def test_under_x64_the_same_object_gives_double_rewards_and_back() -> None:
    vec = vectorize(CountingEnv())
    assert vec.read(vec.reset(_keys(1))).reward.dtype == jnp.float32
    with jax.enable_x64(True):
        states = vec.step(vec.reset(_keys(1)), jnp.zeros((1, 1)))
        assert vec.read(states).reward.dtype == jnp.float64
        assert vec.read(states).obs.dtype == jnp.float64
    assert vec.read(vec.reset(_keys(1))).reward.dtype == jnp.float32
