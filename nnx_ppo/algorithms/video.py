"""Films one episode: the policy acts by the same step as in training, and every state is kept to be drawn."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nnx_ppo._compile import quick_jit
from nnx_ppo._pytree import Identity, total
from nnx_ppo._signatures import require_call
from nnx_ppo.algorithms.rollout import in_eval_mode, start_episodes
from nnx_ppo.algorithms.types import RLEnv
from nnx_ppo.envs.vector import vectorize
from nnx_ppo.networks._rng import as_key
from nnx_ppo.networks.types import StatefulModule


@dataclasses.dataclass(frozen=True)
class Film:
    """One episode, before it is drawn.

    Attributes:
        trajectory: states of the single environment, the initial one first, that in which the episode ended last. What
            ``env.render_state`` makes of them, where the environment has that.
        reward: total return, summed over reward keys.
        length: steps taken; one less than there are states.
    """

    trajectory: list[Any]
    reward: float
    length: int


def film_episode(env: RLEnv, networks: StatefulModule, episode_length: int, key: jax.Array) -> Film:
    """Let the deterministic policy act for one episode; ``networks`` stay as they are.

    Device memory: ``episode_length + 1`` states, or what ``env.render_state(state)`` keeps of each.

    Args:
        env: a single environment.
        networks: the network.
        episode_length: steps after which an episode that has not ended is cut.
        key: PRNG key; start state and everything random follow from it.
    """
    run, variables = _prepare(env, networks, episode_length)
    states, reward, length = run(variables, as_key(key))
    n = int(length) + 1
    leaves, treedef = jax.tree.flatten(states)
    # Keys are no NumPy arrays; everything else comes over at once.
    leaves = [x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x) for x in leaves]
    trajectory = [treedef.unflatten([x[t] for x in leaves]) for t in range(n)]
    return Film(trajectory, float(reward), n - 1)


def compile_filming(env: RLEnv, networks: StatefulModule, episode_length: int) -> None:
    """Do all that :func:`film_episode` does once, and nothing else."""
    run, variables = _prepare(env, networks, episode_length)
    run.lower(variables, jax.random.key(0)).compile()


def draw(env: RLEnv, trajectory: list[Any], render_kwargs: Mapping[str, Any]) -> np.ndarray:
    """Frames ``[T, H, W, 3]`` uint8 of a trajectory, by ``env.render``.

    Raises:
        ValueError: what ``env.render`` returned are no frames.
    """
    try:
        frames = env.render(trajectory, **render_kwargs)  # type: ignore[attr-defined]
    except Exception as error:
        error.add_note(f"{type(env).__name__}.render raised this, given {len(trajectory)} states and {render_kwargs}.")
        raise
    return as_frames(frames)


def require_render(env: RLEnv, render_kwargs: Mapping[str, Any]) -> None:
    """Find out before training whether there is anything to film.

    Raises:
        ValueError: the environment has no ``render``.
        TypeError: it does not take ``render_kwargs``.
    """
    if not callable(getattr(env, "render", None)):
        raise ValueError(
            f"videos need an environment with render(trajectory, **kwargs) -> frames, and {env!r} has none: define it, "
            "or ask for no videos."
        )
    require_call("render", env.render, "trajectory", **render_kwargs)  # type: ignore[attr-defined]


def as_frames(frames: Any) -> np.ndarray:
    """Bring images to ``[T, H, W, 3]`` uint8.

    Args:
        frames: array or sequence of images ``[H, W]``, ``[H, W, 1]`` (grey), ``[H, W, 3]`` or ``[H, W, 4]`` (opacity is
            dropped); integers from 0 to 255, floats from 0 to 1, or booleans.

    Raises:
        ValueError: no image, other shapes, or other values.
    """
    try:
        array = np.asarray(frames)
    except ValueError as error:
        raise ValueError(f"frames of one film must have one size: {error}.") from error
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or array.shape[-1] not in (1, 3, 4) or not array.size:
        raise ValueError(
            "render must return at least one image [H, W], [H, W, 1], [H, W, 3] or [H, W, 4], over time; got an "
            f"array of shape {list(array.shape)}."
        )
    array = _to_uint8(array[..., :3])
    return np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:3], 3)))


def _to_uint8(array: np.ndarray) -> np.ndarray:
    top = 255 if np.issubdtype(array.dtype, np.integer) else 1
    if not (array.min() >= 0 and array.max() <= top):
        raise ValueError(
            f"render must return integers from 0 to 255 or floats from 0 to 1; got {array.dtype} from {array.min()} to "
            f"{array.max()}."
        )
    if top == 255:
        return array.astype(np.uint8)
    return np.round(array.astype(np.float32) * 255).astype(np.uint8)


def _prepare(env: RLEnv, networks: StatefulModule, episode_length: int) -> tuple[Any, Any]:
    graphdef, variables = in_eval_mode(networks)
    return _compiled_filming(Identity(env), graphdef, episode_length), variables


@functools.lru_cache(maxsize=64)
def _compiled_filming(env: Identity, graphdef: Any, episode_length: int) -> Any:
    venv = vectorize(env.value)
    keep: Callable[[Any], Any] = getattr(env.value, "render_state", lambda state: state)

    def only(states: Any) -> Any:
        return keep(jax.tree.map(lambda x: x[0], states))

    def run(variables: Any, key: jax.Array) -> Any:
        env_state, carry, net = start_episodes(venv, graphdef, variables, 1, key)
        first = only(env_state)
        states = jax.tree.map(lambda x: jnp.broadcast_to(x, (episode_length + 1, *x.shape)), first)

        def body(loop: Any) -> Any:
            t, env_state, carry, streams, _, states, reward = loop
            step, streams = net.act(venv, env_state, carry, streams)
            states = jax.tree.map(lambda all_, x: all_.at[t + 1].set(x), states, only(step.env_state))
            reward = reward + total(step.after.reward)[0]
            return t + 1, step.env_state, step.out.next_state, streams, step.after.done[0], states, reward

        def unfinished(loop: Any) -> jax.Array:
            return (loop[0] < episode_length) & ~loop[4]

        start = (jnp.zeros((), int), env_state, carry, net.streams, jnp.zeros((), bool), states, jnp.zeros((), float))
        length, *_, states, reward = jax.lax.while_loop(unfinished, body, start)
        return states, reward, length

    return quick_jit(run)
