"""The up-front check: every message, and what is accepted without one."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from nnx_ppo.envs import CountingEnv, EnvSpecError, TreeEnv, check_env, vectorize
from nnx_ppo.wrappers import EpisodeWrapper


@struct.dataclass
class State:
    """A state class of the user's own, without checks of its own."""

    obs: Any
    reward: Any
    done: Any
    info: Any
    metrics: Any
    data: Any


ACTION = jax.ShapeDtypeStruct((2,), jnp.float32)


@dataclasses.dataclass(eq=False)
class Scripted:
    """Environment whose reset and step give a good state, but for the fields that a test replaces."""

    at_reset: dict[str, Any] = dataclasses.field(default_factory=dict)
    at_step: dict[str, Any] = dataclasses.field(default_factory=dict)
    action_size: Any = 2
    observation_size: int = 3

    def reset(self, key: jax.Array) -> State:
        return self._good().replace(**self.at_reset)

    def step(self, state: State, action: Any) -> State:
        return self._good().replace(**self.at_step)

    def _good(self) -> State:
        return State(obs=jnp.zeros(3), reward=jnp.zeros(()), done=jnp.zeros((), bool), info={}, metrics={}, data={})


def _both(**fields: Any) -> Scripted:
    return Scripted(at_reset=fields, at_step=fields)


def _refuses(env: Any, match: str, action: Any = None) -> str:
    with pytest.raises(EnvSpecError, match=match) as error:
        check_env(env, action)
    return str(error.value)


def test_a_good_environment_gives_its_spec() -> None:
    spec = check_env(Scripted())
    assert (spec.obs.shape, spec.obs.dtype) == ((3,), jnp.float32)
    assert (spec.action.shape, spec.action.dtype) == ((2,), jnp.float32)
    assert isinstance(spec.state, State)
    assert spec.metrics == {}


def test_error_is_a_value_error_that_names_the_environment_and_counts_the_problems() -> None:
    message = _refuses(
        Scripted(at_step={"obs": jnp.zeros(4), "reward": jnp.zeros(1)}),
        r"Scripted does not fit the environment protocol \(2 problems\)",
    )
    assert issubclass(EnvSpecError, ValueError)
    assert "  - obs: reset gives float32[3], step gives float32[4]" in message
    assert "  - reward: reset gives float32[], step gives float32[1]" in message
    assert "see nnx_ppo.envs.RLEnv" in message


@pytest.mark.parametrize(
    ("at_reset", "at_step", "line"),
    [
        (
            {"obs": {"camera": jnp.zeros((4, 4)), "joints": jnp.zeros(2)}},
            {"obs": {"camera": jnp.zeros((2, 4)), "joints": jnp.zeros(2)}},
            'obs["camera"]: reset gives float32[4,4], step gives float32[2,4]',
        ),
        (
            {"obs": jnp.zeros(3, jnp.int32)},
            {"obs": jnp.zeros(3)},
            "obs: reset gives int32[3], step gives float32[3]",
        ),
        (
            {"reward": jnp.zeros((), jnp.int32)},
            {"reward": jnp.zeros(())},
            "reward: reset gives int32[], step gives float32[]",
        ),
        (
            {"metrics": {}},
            {"metrics": {"speed": jnp.zeros(())}},
            'metrics["speed"]: only step gives it (float32[])',
        ),
        (
            {"info": {"goal": jnp.zeros(2)}},
            {"info": {}},
            'info["goal"]: only reset gives it (float32[2])',
        ),
        (
            {"data": (jnp.zeros(2), {"deep": [jnp.zeros(1)]})},
            {"data": (jnp.zeros(2), {"deep": [jnp.zeros(3)]})},
            'data[1]["deep"][0]: reset gives float32[1], step gives float32[3]',
        ),
        (
            {"data": jax.random.key(0)},
            {"data": jnp.zeros((), jnp.uint32)},
            "data: reset gives key<fry>[], step gives uint32[]",
        ),
        ({"data": 1.0}, {"data": jnp.zeros((), jnp.int32)}, "data: reset gives float32[], step gives int32[]"),
        ({"data": [jnp.zeros(1)]}, {"data": (jnp.zeros(1),)}, "structure: reset gives PyTreeDef"),
    ],
)
def test_what_differs_between_reset_and_step_is_named_by_its_path(
    at_reset: dict[str, Any], at_step: dict[str, Any], line: str
) -> None:
    message = _refuses(Scripted(at_reset, at_step), r"\(1 problem\)")
    assert f"  - {line}" in message


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"reward": jnp.zeros(1)}, "reward: expected a scalar (for several terms, a dict of scalars), got float32[1]"),
        ({"reward": {"move": jnp.zeros(()), "look": jnp.zeros(2)}}, 'reward["look"]: expected a scalar'),
        ({"reward": jnp.zeros((), jnp.complex64)}, "reward: expected a scalar"),
        ({"reward": {}}, "reward: expected a scalar or a (nested) dict of scalars, got none"),
        ({"obs": {}}, "obs: expected an array or a (nested) dict of arrays, got none"),
        ({"done": jnp.zeros(1, bool)}, "done: expected a scalar, bool or number, got bool[1]"),
        ({"done": {"a": True}}, 'done: expected a scalar, bool or number, got {["a"]: bool[]}'),
        ({"info": {"truncated": jnp.zeros(2)}}, 'info["truncated"]: expected a scalar, bool or number, got float32[2]'),
        ({"info": ()}, "info: expected a dict, got a tuple"),
        ({"metrics": None}, "metrics: expected a dict, got a NoneType"),
    ],
)
def test_what_the_library_reads_must_have_its_form(fields: dict[str, Any], line: str) -> None:
    assert f"  - {line}" in _refuses(_both(**fields), r"\(1 problem\)")


def test_a_wrapped_environment_is_named_with_its_wrappers() -> None:
    class Wrong(Scripted):
        def step(self, state: State, action: Any) -> State:
            return super().step(state, action).replace(obs=jnp.zeros(4))

    _refuses(EpisodeWrapper(Wrong(), 3), r"^EpisodeWrapper\(Wrong\) does not fit")


def test_a_class_or_a_name_in_the_place_of_an_environment() -> None:
    _refuses(Scripted, r"expected an environment, got its class: make one, Scripted\(\.\.\.\)")
    _refuses("gymnax:Pendulum-v1", r"got a name: make_env\('gymnax:Pendulum-v1'\) makes one")


def test_a_size_that_is_not_that_of_the_observation() -> None:
    _refuses(Scripted(observation_size=4), r"observation_size: 4, but obs has shape \[3\]")


def test_missing_methods() -> None:
    class Nothing:
        action_size = 1

    _refuses(Nothing(), "Nothing does not fit .*\n.*no method reset and no method step")


def test_a_gym_style_reset_is_told_what_to_return() -> None:
    class Gym(Scripted):
        def reset(self, key: jax.Array) -> Any:
            return jnp.zeros(3), {}

    _refuses(Gym(), r"reset returned a tuple without obs, reward, done, info, metrics, \.replace")


def test_fields_that_reset_and_step_lack_are_reported_together() -> None:
    @struct.dataclass
    class Partial:
        obs: Any
        reward: Any
        done: Any
        info: Any

    class Lacking(Scripted):
        def reset(self, key: jax.Array) -> Any:
            return Partial(jnp.zeros(3), 0.0, False, {})

        step = lambda self, state, action: state  # noqa: E731

    message = _refuses(Lacking(), r"\(2 problems\)")
    assert "reset returned a Partial without metrics; return nnx_ppo.envs.EnvState" in message
    assert "step returned a Partial without metrics" in message


def test_a_state_that_jax_does_not_know_is_refused() -> None:
    class Opaque(Scripted):
        def reset(self, key: jax.Array) -> Any:
            return object()

    _refuses(Opaque(), "Opaque.reset raised TypeError when called with a PRNG key")


def test_exceptions_inside_say_what_was_called_with_which_shapes_and_keep_the_original() -> None:
    class Broken(Scripted):
        def step(self, state: State, action: Any) -> State:
            raise KeyError("no such joint")

    with pytest.raises(
        EnvSpecError, match=r"Broken\.step raised KeyError when called with a state of float32\[3\]"
    ) as e:
        check_env(Broken())
    assert isinstance(e.value.__cause__, KeyError)
    assert "float32[2] as action" in str(e.value)
    assert "no such joint" in str(e.value)
    assert "define env.action_spec" in str(e.value)


def test_an_action_of_the_wrong_shape_is_readable() -> None:
    class Matrix(Scripted):
        def step(self, state: State, action: Any) -> State:
            return state.replace(obs=jnp.ones((3, 2)) @ action)

    _refuses(Matrix(), r"float32\[5\] as action", action=jax.ShapeDtypeStruct((5,), jnp.float32))


@pytest.mark.parametrize("size", [None, "two", {"arm": None}])
def test_an_environment_has_to_say_what_its_actions_are(size: Any) -> None:
    _refuses(Scripted(action_size=size), "action_size: expected an int, or a dict of them, got .*env.action_spec")


def test_default_actions_follow_spec_then_sizes() -> None:
    assert check_env(Scripted(action_size={"a": 2, "b": {"c": np.int64(1)}})).action == {
        "a": ACTION,
        "b": {"c": jax.ShapeDtypeStruct((1,), jnp.float32)},
    }
    env = Scripted()
    env.action_spec = jax.ShapeDtypeStruct((), jnp.int32)  # type: ignore[attr-defined]
    assert check_env(env).action == jax.ShapeDtypeStruct((), jnp.int32)
    assert check_env(env, np.zeros(2)).action == ACTION


def test_reset_episode_is_checked_too() -> None:
    class Two(Scripted):
        def reset_episode(self, key: jax.Array) -> State:
            return self._good().replace(obs=jnp.zeros(5))

    _refuses(Two(), r"obs: reset gives float32\[3\], reset_episode gives float32\[5\]")


@pytest.mark.parametrize(
    ("at_reset", "at_step", "field", "dtype"),
    [
        ({"reward": 0}, {"reward": 1.5}, "reward", jnp.float32),
        ({"reward": 0}, {"reward": jnp.ones(())}, "reward", jnp.float32),
        ({"reward": 0.0}, {"reward": jnp.ones((), jnp.int32)}, "reward", jnp.float32),
        ({"reward": 1}, {"reward": jnp.ones((), jnp.int32)}, "reward", jnp.int32),
        ({"reward": np.int64(0)}, {"reward": jnp.ones((), jnp.int32)}, "reward", jnp.int32),
        ({"reward": True}, {"reward": True}, "reward", jnp.bool_),
        ({"done": False}, {"done": jnp.zeros((), bool)}, "done", jnp.bool_),
        ({"done": False}, {"done": 0.0}, "done", jnp.float32),
        ({"done": 0.0}, {"done": jnp.zeros((), bool)}, "done", jnp.float32),
        ({"done": 0}, {"done": 1}, "done", jnp.int32),
        ({"done": np.zeros(())}, {"done": jnp.zeros(())}, "done", jnp.float32),
        ({"data": 0}, {"data": jnp.zeros((), jnp.float16)}, "data", jnp.float16),
        ({"data": jnp.zeros((), jnp.int8)}, {"data": 3}, "data", jnp.int8),
        ({"data": np.zeros(2)}, {"data": jnp.zeros(2)}, "data", jnp.float32),
    ],
)
def test_python_scalars_weak_types_and_numpy_are_accepted(
    at_reset: dict[str, Any], at_step: dict[str, Any], field: str, dtype: Any
) -> None:
    env = Scripted(at_reset, at_step)
    spec = check_env(env)
    assert getattr(spec.state, field).dtype == dtype
    assert spec.reward.dtype == jnp.float32
    vec = vectorize(env)
    states = vec.reset(jax.random.split(jax.random.key(0), 2))
    after = vec.step(states, jnp.zeros((2, 2)))
    for batch in (states, after):
        assert getattr(batch, field).dtype == dtype
        assert not getattr(batch, field).weak_type


def test_dtypes_that_widen_one_after_the_other_settle() -> None:
    class Chain(Scripted):
        def reset(self, key: jax.Array) -> State:
            return self._good().replace(data={"count": 0, "last": 0, "last but one": 0})

        def step(self, state: State, action: Any) -> State:
            last = state.data["last"]
            data = {"count": state.data["count"] + 1, "last": jnp.float32(1.0), "last but one": last}
            return self._good().replace(data=data)

    data = check_env(Chain()).state.data
    assert [data[name].dtype for name in ("count", "last", "last but one")] == [jnp.int32, jnp.float32, jnp.float32]


def test_nothing_is_compiled_or_run() -> None:
    def refuse(value: Any) -> Any:
        raise AssertionError("the environment ran")

    class Running(Scripted):
        def step(self, state: State, action: Any) -> State:
            out = jax.pure_callback(refuse, jax.ShapeDtypeStruct((3,), jnp.float32), state.obs)
            return self._good().replace(obs=out)

    assert check_env(Running()).obs.shape == (3,)


def test_under_x64_floats_are_double() -> None:
    with jax.enable_x64(True):
        spec = check_env(TreeEnv())
        assert {leaf.dtype.name for leaf in jax.tree.leaves((spec.reward, spec.obs, spec.action))} == {"float64"}
    assert check_env(CountingEnv()).reward.dtype == jnp.float32
