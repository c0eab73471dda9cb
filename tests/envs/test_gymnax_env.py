"""Gymnax: true ends, the final observation, actions in the units of the environment, hidden entries."""

import sys
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_ppo.envs import GymnaxEnv, MissingExtraError, UnknownEnvError, check_env

NEVER_FALLS = {"theta_threshold_radians": 1e9, "x_threshold": 1e9}


def _run(env: GymnaxEnv, action: Any, n_steps: int, seed: int = 0) -> Any:
    """Return the stacked states after each of ``n_steps`` equal actions."""

    @jax.jit
    def run(key: jax.Array) -> Any:
        def step(state: Any, _: None) -> Any:
            state = jax.tree.map(jnp.asarray, env.step(state, action))
            return state, state

        start = jax.tree.map(jnp.asarray, env.step(env.reset(key), action))
        return start, jax.lax.scan(step, start, None, length=n_steps - 1)[1]

    first, rest = run(jax.random.key(seed))
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest)


def test_cartpole_that_stands_is_truncated_at_its_500th_step_and_not_before() -> None:
    states = _run(GymnaxEnv("CartPole-v1", **NEVER_FALLS), jnp.int32(1), 500)
    np.testing.assert_array_equal(states.done, np.arange(1, 501) == 500)
    np.testing.assert_array_equal(states.info["truncated"], np.arange(1, 501) == 500)


def _fall() -> tuple[Any, int]:
    states = _run(GymnaxEnv("CartPole-v1"), jnp.int32(1), 30)
    return states, int(np.argmax(np.asarray(states.done))) + 1


def test_cartpole_that_falls_is_terminated() -> None:
    states, n_steps = _fall()
    assert 5 < n_steps < 20
    assert bool(states.done[n_steps - 1])
    assert not np.asarray(states.info["truncated"])[:n_steps].any()
    # The pole's own rule, written down once more.
    assert abs(float(states.obs[n_steps - 1, 2])) > 12 * np.pi / 180
    assert abs(float(states.obs[n_steps - 2, 2])) <= 12 * np.pi / 180


def test_falling_in_the_very_step_of_the_time_limit_is_terminated() -> None:
    _, n_steps = _fall()
    states = _run(GymnaxEnv("CartPole-v1", max_steps_in_episode=n_steps), jnp.int32(1), n_steps)
    assert bool(states.done[-1])
    assert not bool(states.info["truncated"][-1])
    shorter = _run(GymnaxEnv("CartPole-v1", max_steps_in_episode=n_steps - 1), jnp.int32(1), n_steps - 1)
    assert bool(shorter.info["truncated"][-1])


def test_the_final_observation_is_that_of_the_episode_and_not_of_the_next() -> None:
    env = GymnaxEnv("Pendulum-v1", max_steps_in_episode=3)
    theirs, params = gymnax.make("Pendulum-v1")
    state = env.reset(jax.random.key(3))
    for _ in range(3):
        inner = state.data["state"]
        state = env.step(state, jnp.array([0.25]))
        # Pendulum's dynamics draw nothing, so that any key will do.
        obs, _, reward, _, _ = theirs.step_env(jax.random.key(9), inner, jnp.array([0.5]), params)
        np.testing.assert_array_equal(state.obs, obs)
        np.testing.assert_array_equal(state.reward, reward)
    assert bool(state.done)
    assert bool(state.info["truncated"])


@pytest.mark.parametrize(("rescale", "torque"), [(True, [-2.0, 0.0, 1.0, 2.0]), (False, [-1.0, 0.0, 0.5, 1.0])])
def test_policy_actions_are_mapped_to_the_bounds(rescale: bool, torque: list[float]) -> None:
    env = GymnaxEnv("Pendulum-v1", rescale_actions=rescale)
    state = env.reset(jax.random.key(0))
    step = jax.jit(env.step)
    used = [float(step(state, jnp.array([a])).data["state"].last_u) for a in (-1.0, 0.0, 0.5, 1.0)]
    assert used == torque


def test_discrete_actions_are_integer_scalars() -> None:
    env = GymnaxEnv("Acrobot-v1")
    assert env.discrete_actions
    assert env.action_size == 3
    assert env.action_spec == jax.ShapeDtypeStruct((), jnp.int32)
    assert not GymnaxEnv("Pendulum-v1").discrete_actions


def test_hidden_entries_are_left_out_in_reset_and_step() -> None:
    full, hidden = GymnaxEnv("CartPole-v1"), GymnaxEnv("CartPole-v1", hide=(1, -1))
    assert hidden.observation_size == 2
    a, b = full.reset(jax.random.key(5)), hidden.reset(jax.random.key(5))
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(a.obs)[[0, 2]], b.obs)
        a, b = full.step(a, jnp.int32(0)), hidden.step(b, jnp.int32(0))
    assert check_env(hidden).obs.shape == (2,)


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"hide": 2}, r"hide: expected a tuple of indices such as \(2,\), got 2"),
        ({"hide": "two"}, r"hide: expected a tuple of indices such as \(2,\), got 'two'"),
        ({"hide": (1.5,)}, r"hide: expected a tuple of indices such as \(2,\), got \(1.5,\)"),
        ({"hide": (4,)}, r"hide: expected indices of the 4 observation entries of CartPole-v1, got \[4\]"),
        ({"hide": (0, 1, 2, 3)}, "leaves nothing of the 4 observation entries"),
        ({"rescale_actions": "maybe"}, "rescale_actions: expected true or false, got 'maybe'"),
        ({"max_steps": 3}, "CartPole-v1 has no parameter 'max_steps'. Did you mean max_steps_in_episode"),
    ],
)
def test_wrong_options(kwargs: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        GymnaxEnv("CartPole-v1", **kwargs)


def test_hide_needs_a_flat_observation() -> None:
    with pytest.raises(ValueError, match=r"hide: expected an environment with a flat observation.*\(10, 5\)"):
        GymnaxEnv("Catch-bsuite", hide=(0,))


def test_an_unsupported_action_space_is_refused() -> None:
    class Odd(type(gymnax.make("CartPole-v1")[0])):
        def action_space(self, params: Any = None) -> Any:
            return gymnax.environments.spaces.Dict({})

    with pytest.raises(ValueError, match="CartPole-v1: expected a Discrete or Box action space, got Dict"):
        GymnaxEnv(Odd())


def test_under_x64_rewards_and_observations_are_double_in_reset_and_step() -> None:
    with jax.enable_x64(True):
        for name in ("Pendulum-v1", "FourRooms-misc"):
            spec = check_env(GymnaxEnv(name))
            assert spec.state.reward.dtype == spec.obs.dtype == jnp.float64


def test_environment_objects_and_params_are_taken_as_they_are() -> None:
    theirs, params = gymnax.make("CartPole-v1")
    env = GymnaxEnv(theirs, params.replace(max_steps_in_episode=7))
    assert env.params.max_steps_in_episode == 7
    assert GymnaxEnv(theirs, params, max_steps_in_episode=9).params.max_steps_in_episode == 9


def test_unknown_name_and_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownEnvError, match=r"gymnax has no environment 'cartpole'. Did you mean CartPole-v1"):
        GymnaxEnv("cartpole")
    monkeypatch.setitem(sys.modules, "gymnax", None)
    with pytest.raises(MissingExtraError, match=r"gymnax environments need the extra: pip install 'nnx-ppo\[gymnax\]'"):
        GymnaxEnv("CartPole-v1")
