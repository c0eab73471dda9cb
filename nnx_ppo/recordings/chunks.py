"""The compiled part of a recording: advance all environments by a chunk of steps, and keep what is to be stored.

How many steps a chunk has never changes the numbers: the loop does not know its length, every step draws its key from
the one before, and where an episode ends environments and memory restart as they do in training.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nnx_ppo._compile import quick_jit
from nnx_ppo._pytree import Identity, PyTreeNode
from nnx_ppo.algorithms.metrics import flat_names
from nnx_ppo.algorithms.rollout import Scannable, Step, in_eval_mode, restart, start_episodes
from nnx_ppo.envs.vector import vectorize
from nnx_ppo.networks.naming import flatten_activations
from nnx_ppo.networks.recording import extract_activations
from nnx_ppo.networks.types import StatefulModule
from nnx_ppo.recordings.extra_fields import Extras

NEVER = np.iinfo(np.int32).max
"""A number of episodes that no environment reaches."""


class Progress(PyTreeNode):
    """Where a recording stands between two chunks; leaves ``[N, ...]`` unless said otherwise.

    Attributes:
        env_state: environment states.
        carry: the network's carry.
        streams: the network's random streams.
        key: key ``[]`` of the restarts to come.
        episode: episodes that ended so far, int32.
        step: steps taken in the running episode, int32.
        rounding: largest rounding error ``[]`` per layer so far; empty where nothing is rounded.
    """

    env_state: Any
    carry: Any
    streams: Any
    key: Any
    episode: Any
    step: Any
    rounding: Any


class Program:
    """The two compiled functions of a recording, shared by all recordings of the same shapes.

    Args:
        env: a single environment.
        network: a recordable network.
        n_envs: environments in parallel, ``N``.
        chunk_steps: steps that a chunk has room for.
        restarts: whether an episode that ends is followed by another.
        dtype: what layers of floats are rounded to, ``None`` to keep them.
        extras: by name, what else to keep of a batch of states.
    """

    def __init__(
        self,
        env: Any,
        network: StatefulModule,
        *,
        n_envs: int,
        chunk_steps: int,
        restarts: bool,
        dtype: Any,
        extras: Extras,
    ):
        graphdef, self._variables = in_eval_mode(network)
        self._start, self._chunk, self.rows = _compiled(
            Identity(env), graphdef, n_envs, chunk_steps, restarts, dtype, extras
        )

    def start(self, key: jax.Array) -> Progress:
        """First states of all environments."""
        return self._start(self._variables, key)

    def chunk(self, progress: Progress, n_steps: int, valid_below: int, stop_at: int) -> tuple[Progress, Any, Any]:
        """Dispatch up to ``n_steps`` steps, and do not wait for them.

        Args:
            progress: where the recording stands.
            n_steps: steps to take, at most ``chunk_steps``.
            valid_below: episodes of an environment that count.
            stop_at: stop when every environment has ended as many episodes.

        Returns:
            The new progress, rows ``{name: [chunk_steps, N, ...]}``, and how many of them are filled, int32 ``[]``.
        """
        numbers = (np.int32(n_steps), np.int32(valid_below), np.int32(stop_at))
        return self._chunk(self._variables, progress, *numbers)

    def shapes(self, key: jax.Array) -> dict[str, Any]:
        """Shape and dtype of one row by name, ``[N, ...]``; nothing is computed."""
        return self.rows(self._variables, key)


@functools.lru_cache(maxsize=32)
def _compiled(
    env: Identity, graphdef: Any, n_envs: int, chunk_steps: int, restarts: bool, dtype: Any, extras: Extras
) -> tuple[Any, Any, Any]:
    venv = vectorize(env.value)

    def start(variables: Any, key: jax.Array) -> Progress:
        restart_key = jax.random.fold_in(key, 0x72656373)
        env_state, carry, net = start_episodes(venv, graphdef, variables, n_envs, key)
        count = jnp.zeros(n_envs, jnp.int32)
        progress = Progress(env_state, carry, net.streams, restart_key, count, count, {})
        layers = jax.eval_shape(lambda: advance(variables, progress, jnp.int32(NEVER))[1])["layers"]
        rounded = {name: jnp.zeros((), jnp.float32) for name, leaf in layers.items() if _rounds(leaf.dtype, dtype)}
        return progress.replace(rounding=rounded)

    def advance(variables: Any, progress: Progress, valid_below: jax.Array) -> tuple[Progress, Any]:
        net = scannable(variables)
        step, streams = net.act(venv, progress.env_state, progress.carry, progress.streams)
        done, carry, env_state = step.after.done, step.out.next_state, step.env_state
        row = _row(step, progress, valid_below, extras)
        key, step_key = jax.random.split(progress.key)
        episode = progress.episode + done.astype(jnp.int32)
        if restarts:
            carry, env_state = restart(env.value, net.at(streams), carry, env_state, done, step_key)
            clock = jnp.where(done, jnp.int32(0), progress.step + jnp.int32(1))
        else:
            episode, clock = jnp.minimum(episode, jnp.int32(1)), progress.step + jnp.int32(1)
        return Progress(env_state, carry, streams, key, episode, clock, progress.rounding), row

    def scannable(variables: Any) -> Scannable:
        return Scannable(nnx.merge(graphdef, variables, copy=True))

    def chunk(variables: Any, progress: Progress, n_steps: Any, valid_below: Any, stop_at: Any) -> Any:
        def unfinished(loop: Any) -> jax.Array:
            t, progress, _ = loop
            return (t < n_steps) & jnp.any(progress.episode < stop_at)

        def body(loop: Any) -> Any:
            t, progress, rows = loop
            progress, row = advance(variables, progress, valid_below)
            row, rounding = _round(row, progress.rounding, dtype)
            rows = jax.tree.map(lambda all_, x: jax.lax.dynamic_update_index_in_dim(all_, x, t, 0), rows, row)
            return t + jnp.int32(1), progress.replace(rounding=rounding), rows

        shapes = jax.eval_shape(lambda: _round(advance(variables, progress, valid_below)[1], {}, dtype)[0])
        empty = jax.tree.map(lambda leaf: jnp.zeros((chunk_steps, *leaf.shape), leaf.dtype), shapes)
        t, progress, rows = jax.lax.while_loop(unfinished, body, (jnp.int32(0), progress, empty))
        return progress, rows, t

    def first_row(variables: Any, key: jax.Array) -> Any:
        return _round(advance(variables, start(variables, key), jnp.int32(NEVER))[1], {}, dtype)[0]

    # A second recording finds the shapes in the cache of traced functions, where jax.eval_shape would trace again.
    return quick_jit(start), quick_jit(chunk), jax.jit(first_row).eval_shape


def _row(step: Step, progress: Progress, valid_below: jax.Array, extras: Extras) -> dict[str, Any]:
    """What one step leaves in the store: by group, flat ``{path: [N, ...]}``."""
    output = step.out.output
    return {
        "layers": flatten_activations(extract_activations(step.out.metrics)),
        "observation": flat_names(step.before.obs),
        "action": flat_names(output.actions),
        "log_likelihood": flat_names(output.loglikelihoods),
        "value": flat_names(output.value_estimates),
        "reward": flat_names(step.after.reward),
        "done": flat_names(step.after.done),
        "truncated": flat_names(step.after.truncated),
        "valid": flat_names(progress.episode < valid_below),
        "episode": flat_names(progress.episode),
        "step": flat_names(progress.step),
        "extras": {
            "/".join(part for part in (name, path) if part): leaf
            for name, tree in extras.read(progress.env_state, step.env_state).items()
            for path, leaf in flat_names(tree).items()
        },
    }


def _rounds(dtype: Any, to: Any) -> bool:
    return to is not None and jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits > jnp.finfo(to).bits


def _round(row: dict[str, Any], worst: Any, dtype: Any) -> tuple[dict[str, Any], Any]:
    """Round the layers, and follow the largest error where there is one so far."""
    worst, layers = dict(worst), {}
    for name, x in row["layers"].items():
        layers[name] = x.astype(dtype) if _rounds(x.dtype, dtype) else x
        if name in worst:
            error = jnp.abs(x - layers[name].astype(x.dtype))
            # A NaN stays a NaN and is no error; what was finite and has become infinite is an infinite one.
            error = jnp.where(jnp.isfinite(x), error, jnp.zeros((), x.dtype))
            worst[name] = jnp.maximum(worst[name], jnp.max(error, initial=0.0).astype(jnp.float32))
    return {**row, "layers": layers}, worst
