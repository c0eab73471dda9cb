"""Up-front check of an environment: all that does not fit the protocol in one readable error, nothing compiled."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from nnx_ppo._blame import raised_at
from nnx_ppo.envs.host_randomness import Budget, warn_of_host_randomness
from nnx_ppo.envs.tracing import traced
from nnx_ppo.envs.types import truncation_flag
from nnx_ppo.envs.wrapper import Wrapper

_FIELDS = ("obs", "reward", "done", "info", "metrics")
_KINDS = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
# What the library itself casts when it reads a state: a Python scalar may meet a narrower array there.
_READ_AND_CAST = ("reward", "done", 'info["truncated"]', 'info["truncation"]')


class EnvSpecError(ValueError):
    """The environment does not fit the protocol of :class:`~nnx_ppo.envs.types.RLEnv`; the message lists how."""


@dataclasses.dataclass(frozen=True)
class EnvSpec:
    """Shapes and dtypes of a single environment, as trees of ``jax.ShapeDtypeStruct`` (strong, canonical dtypes).

    Attributes:
        obs: observation.
        action: action.
        reward: reward as the library reads it, scalars of the default float dtype.
        metrics: what the environment logs.
        state: the whole state, in the environment's own class.
    """

    obs: Any
    action: Any
    reward: Any
    metrics: Any
    state: Any


def check_env(env: Any, action: Any = None) -> EnvSpec:
    """Evaluate the shapes of ``reset`` and ``step`` and check them against the protocol.

    Python scalars, weak types, NumPy arrays, integer rewards and a ``done`` of any real dtype are fine. A leaf that is
    weakly typed on one side (a Python ``0`` in ``reset``) takes the dtype of the other.

    Args:
        env: a single environment.
        action: tree of arrays or ``jax.ShapeDtypeStruct`` for one environment. Default: ``env.action_spec``, else
            floats ``[env.action_size]`` (a dict of sizes: a dict of such arrays).

    Returns:
        Shapes and dtypes of everything the library reads.

    Raises:
        EnvSpecError: with every difference found, each with its path.

    Warns:
        UserWarning: it draws random numbers outside of JAX, as far as that can be seen cheaply.
    """
    name = _title(env)
    if isinstance(env, str):
        raise _report(name, [f"expected an environment, got a name: make_env({env!r}) makes one"])
    if isinstance(env, type):
        raise _report(env.__name__, [f"expected an environment, got its class: make one, {env.__name__}(...)"])
    missing = [method for method in ("reset", "step") if not callable(getattr(env, method, None))]
    if missing:
        raise _report(name, [f"no method {' and no method '.join(missing)}"])
    action, calls, budget = action_struct(env, action), traced(env), Budget()
    reset = _call_reset(f"{name}.reset", calls.reset)
    _require_fields(name, calls.step, reset, action)
    start, problems = reset, []
    if calls.reset_episode is not calls.reset:
        episode = _call_reset(f"{name}.reset_episode", calls.reset_episode)
        start, problems = _join(reset, episode), _differences("reset", reset, "reset_episode", episode)
    state, after = _settle(name, calls.step, start, action)
    problems = _differences("reset", start, "step", after) + problems + _wrong_fields(state) + _wrong_size(env, state)
    if problems:
        raise _report(name, problems)
    warn_of_host_randomness(env, action, budget)
    reward = jax.tree.map(lambda leaf: _struct(leaf.shape, jnp.result_type(float)), state.reward)
    return EnvSpec(obs=state.obs, action=action, reward=reward, metrics=state.metrics, state=state)


def action_struct(env: Any, action: Any = None) -> Any:
    """Return the action of one environment as a tree of ``jax.ShapeDtypeStruct``.

    Args:
        env: a single environment.
        action: see :func:`check_env`.

    Raises:
        EnvSpecError: neither is an action given nor does ``env`` say what its actions are.
    """
    if action is None:
        action = getattr(env, "action_spec", None)
    if action is None:
        action = _from_size(_title(env), getattr(env, "action_size", None))
    return _strong(jax.eval_shape(lambda tree: tree, action))


def _wrong_size(env: Any, state: Any) -> list[str]:
    """Networks are made by ``observation_size``; where it is a number it must be that of a flat observation."""
    size, obs = getattr(env, "observation_size", None), state.obs
    if isinstance(size, bool) or not isinstance(size, int) or not hasattr(obs, "shape") or obs.shape == (size,):
        return []
    return [f"observation_size: {size}, but obs has shape {list(obs.shape)}"]


def _from_size(name: str, size: Any) -> Any:
    if isinstance(size, Mapping):
        return {key: _from_size(name, entry) for key, entry in size.items()}
    try:
        shape = tuple(int(axis) for axis in size) if isinstance(size, tuple) else (int(size),)
    except (TypeError, ValueError):
        raise _report(
            name, [f"action_size: expected an int, or a dict of them, got {size!r}; or define env.action_spec"]
        ) from None
    return _struct(shape, jnp.result_type(float))


def _call(name: str, called_with: str, function: Callable[..., Any], *args: Any) -> Any:
    try:
        return jax.eval_shape(function, *args)
    except Exception as error:
        where = raised_at(error)
        raise EnvSpecError(
            f"{name} raised {type(error).__name__} when called with {called_with}:\n{error}" + (where and f"\n{where}")
        ) from error


def _call_reset(name: str, reset: Callable[..., Any]) -> Any:
    return _call(name, "a PRNG key", reset, jax.eval_shape(lambda: jax.random.key(0)))


def _call_step(name: str, step: Callable[..., Any], state: Any, action: Any) -> Any:
    called_with = (
        f"a state of {_describe(getattr(state, 'obs', state))} as obs and {_describe(action)} as action (actions of "
        "another shape or dtype: define env.action_spec, a tree of jax.ShapeDtypeStruct)"
    )
    return _call(f"{name}.step", called_with, step, _strong(state), action)


def _missing_fields(call: str, state: Any) -> list[str]:
    missing = [field for field in _FIELDS if not hasattr(state, field)]
    if not callable(getattr(state, "replace", None)):
        missing.append(".replace(...)")
    if not missing:
        return []
    return [
        f"{call} returned a {type(state).__name__} without {', '.join(missing)}; return nnx_ppo.envs.EnvState or "
        f"another dataclass with {', '.join(_FIELDS)} and .replace(...)"
    ]


def _require_fields(name: str, step: Callable[..., Any], reset: Any, action: Any) -> None:
    problems = _missing_fields("reset", reset)
    try:
        problems += _missing_fields("step", _call_step(name, step, reset, action))
    except EnvSpecError:
        # A step that fails on an incomplete state says nothing new.
        if not problems:
            raise
    if problems:
        raise _report(name, problems)


def _settle(name: str, step: Callable[..., Any], start: Any, action: Any) -> tuple[Any, Any]:
    """Return the state that ``step`` maps to its own dtypes, found from that of a reset, and what it maps it to."""
    state = _strong(start)
    after = _call_step(name, step, state, action)
    for _ in _KINDS:
        widened = _strong(_join(start, after))
        if jax.tree.leaves(widened) == jax.tree.leaves(state):
            break
        state = widened
        after = _call_step(name, step, state, action)
    return state, after


def _join(first: Any, second: Any) -> Any:
    """Return ``first`` with the dtypes that both trees agree on, unchanged where they do not."""
    if jax.tree.structure(first) != jax.tree.structure(second):
        return first

    def join(path: Any, a: Any, b: Any) -> Any:
        joined = _joined_leaf(_name(path), a, b)
        return a if joined is None else joined

    return jax.tree_util.tree_map_with_path(join, first, second)


def _joined_leaf(name: str, a: Any, b: Any) -> Any:
    """Return shape and dtype that can hold both leaves, or ``None``."""
    if a.shape != b.shape:
        return None
    if a.dtype == b.dtype:
        return _struct(a.shape, a.dtype, weak_type=_is_weak(a) and _is_weak(b))
    narrow, wide = sorted((a, b), key=lambda leaf: (_kind(leaf.dtype), not _is_weak(leaf)))
    read_and_cast = name in _READ_AND_CAST or name.startswith(("reward[", "reward."))
    if _kind(narrow.dtype) < 0 or not (_is_weak(narrow) or (read_and_cast and _is_weak(wide))):
        return None
    return wide


def _differences(first_call: str, first: Any, second_call: str, second: Any) -> list[str]:
    ours, theirs = _by_path(first), _by_path(second)
    problems = []
    for path in dict.fromkeys([*ours, *theirs]):
        a, b = ours.get(path), theirs.get(path)
        if a is None or b is None:
            call, leaf = (second_call, b) if a is None else (first_call, a)
            problems.append(f"{path}: only {call} gives it ({_text(leaf)})")
        elif _joined_leaf(path, a, b) is None:
            problems.append(f"{path}: {first_call} gives {_text(a)}, {second_call} gives {_text(b)}")
    if not problems and jax.tree.structure(first) != jax.tree.structure(second):
        problems.append(
            f"structure: {first_call} gives {jax.tree.structure(first)}, {second_call} gives "
            f"{jax.tree.structure(second)}"
        )
    return problems


def _wrong_fields(state: Any) -> list[str]:
    problems = []
    if not jax.tree.leaves(state.obs):
        problems.append("obs: expected an array or a (nested) dict of arrays, got none")
    for field in ("info", "metrics"):
        if not isinstance(getattr(state, field), Mapping):
            problems.append(f"{field}: expected a dict, got a {type(getattr(state, field)).__name__}")
    if not jax.tree.leaves(state.reward):
        problems.append("reward: expected a scalar or a (nested) dict of scalars, got none")
    for path, leaf in _by_path(state.reward, "reward").items():
        if not _is_real_scalar(leaf):
            problems.append(f"{path}: expected a scalar (for several terms, a dict of scalars), got {_text(leaf)}")
    flags = {"done": state.done}
    if isinstance(state.info, Mapping) and truncation_flag(state.info) is not None:
        flags['info["truncated"]'] = truncation_flag(state.info)
    for path, flag in flags.items():
        if not _is_real_scalar(flag):
            problems.append(f"{path}: expected a scalar, bool or number, got {_describe(flag)}")
    return problems


def _title(env: Any) -> str:
    return f"{type(env).__name__}({_title(env.env)})" if isinstance(env, Wrapper) else type(env).__name__


def _report(name: str, problems: list[str]) -> EnvSpecError:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = "".join(f"\n  - {problem}" for problem in problems)
    return EnvSpecError(
        f"{name} does not fit the environment protocol ({count}):{lines}\nreset and step must return states of one "
        "structure, with one shape and dtype per leaf; see nnx_ppo.envs.RLEnv and nnx_ppo.envs.EnvState."
    )


def _by_path(tree: Any, prefix: str = "") -> dict[str, Any]:
    return {_name(path, prefix): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _name(path: Any, prefix: str = "") -> str:
    """Write a path the way a user would: ``obs["camera"]``."""
    parts = [prefix]
    for entry in path:
        if isinstance(entry, jax.tree_util.GetAttrKey):
            parts.append(f".{entry.name}")
        elif isinstance(entry, jax.tree_util.DictKey) and isinstance(entry.key, str):
            parts.append(f'["{entry.key}"]')
        elif isinstance(entry, jax.tree_util.SequenceKey):
            parts.append(f"[{entry.idx}]")
        else:
            parts.append(f"[{getattr(entry, 'key', entry)}]")
    return "".join(parts).removeprefix(".") or "state"


def _describe(tree: Any) -> str:
    leaves = _by_path(tree)
    if len(leaves) == 1 and "state" in leaves:
        return _text(leaves["state"])
    return "{" + ", ".join(f"{path}: {_text(leaf)}" for path, leaf in leaves.items()) + "}"


def _text(leaf: Any) -> str:
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _struct(shape: tuple[int, ...], dtype: Any, weak_type: bool = False) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, weak_type=weak_type)


def _strong(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: _struct(leaf.shape, leaf.dtype), tree)


def _is_weak(leaf: Any) -> bool:
    return bool(getattr(leaf, "weak_type", False))


def _kind(dtype: Any) -> int:
    """Rank of a dtype from bool to complex; -1 for those that nothing widens to (PRNG keys)."""
    return next((rank for rank, kind in enumerate(_KINDS) if jnp.issubdtype(dtype, kind)), -1)


def _is_real_scalar(leaf: Any) -> bool:
    return getattr(leaf, "shape", None) == () and 0 <= _kind(leaf.dtype) < _KINDS.index(jnp.complexfloating)
