"""What every environment must keep: one structure, fixed dtypes, purity, under jit, vmap and scan."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_ppo.envs import (
    ActionReward,
    ConstantReward,
    CountingEnv,
    DelayedReward,
    DiscreteActionReward,
    MemoryCue,
    ObservationReward,
    RepeatPrevious,
    RLEnv,
    TreeEnv,
    check_env,
    make_env,
    vectorize,
)
from nnx_ppo.wrappers import EpisodeWrapper, RewardScalingWrapper

N = 3

ENVS: dict[str, Callable[[], Any]] = {
    "constant": ConstantReward,
    "observation": lambda: ObservationReward(length=3),
    "delayed": lambda: DelayedReward(delay=2),
    "action": ActionReward,
    "discrete action": DiscreteActionReward,
    "memory cue": MemoryCue,
    "discrete memory cue": lambda: MemoryCue(delay=0, discrete=True),
    "repeat previous": lambda: RepeatPrevious(k=2, n_symbols=3, length=4),
    "counting": CountingEnv,
    "counting, truncated": lambda: CountingEnv(length=2, ends="truncate"),
    "tree": TreeEnv,
    "time limit": lambda: EpisodeWrapper(CountingEnv(length=5), max_len=3),
    "time limit over a tree": lambda: EpisodeWrapper(TreeEnv(), max_len=3),
    "time limit in a time limit": lambda: EpisodeWrapper(EpisodeWrapper(CountingEnv(length=9), max_len=5), max_len=3),
    "scaled": lambda: RewardScalingWrapper(CountingEnv(), 0.5),
    "scaled tree": lambda: RewardScalingWrapper(TreeEnv(), {"move": 2.0, "look": 0.1}),
    "scaled time limit": lambda: RewardScalingWrapper(EpisodeWrapper(MemoryCue(), 4), 3),
    "time limit over scaled": lambda: EpisodeWrapper(RewardScalingWrapper(CountingEnv(), 3), 4),
    "playground:CartpoleBalance": lambda: make_env("playground:CartpoleBalance", episode_length=3),
    **{
        name: functools.partial(make_env, name)
        for name in (
            "gymnax:Pendulum-v1",
            "gymnax:CartPole-v1",
            "gymnax:Acrobot-v1",
            "gymnax:MountainCarContinuous-v0",
            "gymnax:Catch-bsuite",
            "gymnax:FourRooms-misc",
            "gymnax:FrozenLake-misc",
            "brax:fast",
            "brax:inverted_pendulum",
        )
    },
}


@functools.cache
def _made(name: str) -> Any:
    return ENVS[name]()


@pytest.fixture(params=list(ENVS))
def env(request: pytest.FixtureRequest) -> Any:
    return _made(request.param)


def _keys(seed: int = 0) -> jax.Array:
    return jax.random.split(jax.random.key(seed), N)


def _actions(env: Any) -> Any:
    """Actions that differ between environments, valid for continuous and discrete ones."""

    def leaf(struct: jax.ShapeDtypeStruct) -> jax.Array:
        ramp = jnp.arange(N, dtype=jnp.float32).reshape((N,) + (1,) * len(struct.shape)) / jnp.float32(N)
        if jnp.issubdtype(struct.dtype, jnp.integer):
            ramp = ramp * jnp.float32(env.action_size)
        return jnp.broadcast_to(ramp, (N, *struct.shape)).astype(struct.dtype)

    return jax.tree.map(leaf, vectorize(env).spec().action)


def _types(tree: Any) -> list[tuple[Any, ...]]:
    return [(leaf.shape, str(leaf.dtype), getattr(leaf, "weak_type", False)) for leaf in jax.tree.leaves(tree)]


def _bits(tree: Any) -> list[bytes]:
    def raw(leaf: jax.Array) -> np.ndarray:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    return [raw(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def _compiled(env: Any) -> tuple[Any, Any]:
    """Return the jitted reset and step of a batch, compiled once for all tests of this file."""
    if id(env) not in _COMPILED:
        _COMPILED[id(env)] = (jax.jit(vectorize(env).reset), jax.jit(vectorize(env).step))
    return _COMPILED[id(env)]


_COMPILED: dict[int, tuple[Any, Any]] = {}


def test_has_the_protocol(env: Any) -> None:
    assert isinstance(env, RLEnv)


def test_reset_and_step_return_one_structure_with_strong_fixed_dtypes(env: Any) -> None:
    vec = vectorize(env)
    start = jax.eval_shape(vec.reset, _keys())
    anew = jax.eval_shape(vec.reset_episode, _keys())
    after = jax.eval_shape(vec.step, start, _actions(env))
    assert jax.tree.structure(start) == jax.tree.structure(after) == jax.tree.structure(anew)
    assert _types(start) == _types(after) == _types(anew)
    assert not any(weak for _, _, weak in _types(start))


def test_spec_says_what_the_batch_holds(env: Any) -> None:
    vec, spec = vectorize(env), check_env(env)
    reset, step = _compiled(env)
    states = step(reset(_keys()), _actions(env))
    reading = vec.read(states)

    def batched(tree: Any) -> list[tuple[Any, ...]]:
        return [((N, *leaf.shape), str(leaf.dtype), False) for leaf in jax.tree.leaves(tree)]

    assert _types(states) == batched(spec.state)
    assert _types(reading.obs) == batched(spec.obs)
    assert _types(reading.reward) == batched(spec.reward)
    assert _types(reading.metrics) == batched(spec.metrics)
    assert _types(reading.done) == _types(reading.truncated) == [((N,), "bool", False)]
    assert not bool(jnp.any(reading.truncated & ~reading.done))


def test_sizes_agree_with_the_spec(env: Any) -> None:
    spec = check_env(env)
    sizes = jax.tree.leaves(env.observation_size, is_leaf=lambda size: isinstance(size, tuple))
    shapes = [leaf.shape for leaf in jax.tree.leaves(spec.obs)]
    assert [size if isinstance(size, tuple) else (size,) for size in sizes] == shapes
    actions = jax.tree.leaves(spec.action)
    if getattr(env, "discrete_actions", False):
        assert [(leaf.shape, leaf.dtype) for leaf in actions] == [((), jnp.int32)]
        assert isinstance(env.action_size, int)
    else:
        assert [leaf.shape for leaf in actions] == [(size,) for size in jax.tree.leaves(env.action_size)]


def test_same_inputs_give_the_same_bits_and_leave_the_given_state_alone(env: Any) -> None:
    reset, step = _compiled(env)
    states, actions = reset(_keys()), _actions(env)
    before = _bits(states)
    first = _bits(step(states, actions))
    step(step(states, actions), actions)
    assert _bits(states) == before
    assert _bits(step(states, actions)) == first
    assert _bits(reset(_keys())) == before


def test_step_writes_into_no_container_that_it_is_given(env: Any) -> None:
    def contents(state: Any) -> list[Any]:
        return [id(leaf) for leaf in jax.tree.leaves(state)] + [sorted(state.info), sorted(state.metrics)]

    def step_once(key: jax.Array, action: Any) -> Any:
        state = env.reset(key)
        before = contents(state)
        env.step(state, action)
        assert contents(state) == before
        return state

    # Tracing runs the environment's Python, which is all that could write into a dict.
    jax.eval_shape(step_once, jax.random.key(0), vectorize(env).spec().action)


def test_states_can_be_the_carry_of_a_scan(env: Any) -> None:
    vec = vectorize(env)

    def run(keys: jax.Array, actions: Any) -> Any:
        return jax.lax.scan(lambda states, _: (vec.step(states, actions), vec.read(states)), vec.reset(keys), length=2)

    states, readings = jax.eval_shape(run, _keys(), _actions(env))
    assert _types(states) == _types(jax.eval_shape(vec.reset, _keys()))
    assert readings.done.shape == (2, N)


def test_environments_of_a_batch_do_not_see_each_other(env: Any) -> None:
    vec = vectorize(env)
    reset, step = _compiled(env)
    keys, actions = _keys(), _actions(env)
    mixed = vec.read(step(reset(keys), actions))
    second = jax.tree.map(lambda leaf: jnp.stack([leaf[1]] * N), (keys, actions))
    alone = vec.read(step(reset(second[0]), second[1]))
    for a, b in zip(jax.tree.leaves(mixed), jax.tree.leaves(alone), strict=True):
        np.testing.assert_array_equal(a[1], b[1])


def test_single_environment_runs_under_jit_and_equals_its_place_in_the_batch() -> None:
    for env in (CountingEnv(), EpisodeWrapper(TreeEnv(), 3), _made("gymnax:Pendulum-v1")):
        vec, actions = vectorize(env), _actions(env)
        reset, step = _compiled(env)
        together = vec.read(step(reset(_keys()), actions))
        state = jax.jit(env.step)(jax.jit(env.reset)(_keys()[1]), jax.tree.map(lambda leaf: leaf[1], actions))
        alone = vec.read(state)
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[1], b, rtol=1e-6)
