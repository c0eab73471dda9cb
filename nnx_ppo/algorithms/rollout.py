"""Stage 1, rollout: networks act in environments. One step function serves training, evaluation and recording."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nnx_ppo._compile import quick_jit
from nnx_ppo._pytree import Identity, PyTreeNode, tree_where
from nnx_ppo.algorithms import metrics as metrics_lib
from nnx_ppo.algorithms.types import LoggingLevel, RLEnv, Transition
from nnx_ppo.envs.vector import Reading, VectorEnv, vectorize
from nnx_ppo.networks._rng import as_key, reseed
from nnx_ppo.networks.recording import Patterns, extract_activations, is_recordable, with_recording
from nnx_ppo.networks.types import Carry, StatefulModule, StatefulModuleOutput, reset_where


class Step(PyTreeNode):
    """One step of all environments, before anything is reset; leaves ``[N, ...]``.

    Attributes:
        before: what the environments showed before the step.
        after: what they showed after it; its ``obs`` is the final one where an episode ended.
        env_state: environment states after the step.
        out: the network's output; ``out.next_state`` is the carry after the step.
    """

    before: Reading
    after: Reading
    env_state: Any
    out: StatefulModuleOutput


def policy_step(env: VectorEnv, networks: StatefulModule, env_state: Any, network_state: Carry) -> Step:
    """Let the network act once in every environment."""
    before = env.read(env_state)
    out = networks(network_state, before.obs)
    env_state = env.step(env_state, out.output.actions)
    return Step(before=before, after=env.read(env_state), env_state=env_state, out=out)


class Scannable:
    """A network inside ``jax.lax`` loops: its variables are constants there, its random streams loop state.

    NNX forbids to write a variable from inside another trace, so every loop body works on its own merged copy.
    """

    def __init__(self, networks: StatefulModule):
        self.graphdef, self.streams, self.rest = nnx.split(networks, nnx.RngState, ...)

    def at(self, streams: Any) -> StatefulModule:
        """The network with its random streams at the given state."""
        return nnx.merge(self.graphdef, streams, self.rest, copy=True)

    def act(self, env: VectorEnv, env_state: Any, network_state: Carry, streams: Any) -> tuple[Step, Any]:
        """Act once in every environment; returns the step, and the random streams after it."""
        acting = self.at(streams)
        step = policy_step(env, acting, env_state, network_state)
        return step, nnx.state(acting, nnx.RngState)


def unroll_env(
    env: RLEnv, env_state: Any, networks: StatefulModule, network_state: Carry, unroll_length: int, key: jax.Array
) -> tuple[Carry, Any, Transition]:
    """Act ``unroll_length`` steps in every environment; environments and carry restart where an episode ends.

    Args:
        env: a single environment; its states are batched here.
        env_state: states of ``N`` environments, leaves ``[N, ...]``.
        networks: acting network; its random streams advance if its layers draw from them.
        network_state: its carry, leaves ``[N, ...]``.
        unroll_length: number of steps ``T``.
        key: PRNG key for the environments' restarts.

    Returns:
        The carry and the environment states after the last step (restarted where it ended an episode), and the
        rollout with leaves ``[T, N, ...]``.
    """
    venv = vectorize(env)
    net = Scannable(networks)

    def body(loop: Any, step_key: jax.Array) -> Any:
        env_state, network_state, streams = loop
        step, streams = net.act(venv, env_state, network_state, streams)
        after, carry = step.after, step.out.next_state
        final_values = _final_values(net.at, streams, after, carry, step.out.output.value_estimates)
        env_state = _restart(venv, step.env_state, after.done, step_key)
        transition = Transition(
            obs=step.before.obs,
            network_output=step.out.output,
            rewards=after.reward,
            done=after.done,
            truncated=after.truncated,
            next_obs=after.obs,
            metrics={
                "net": metrics_lib.flat_names(step.out.metrics),
                "env": metrics_lib.flat_names(after.metrics),
            },
            rollout_extras=step.out.rollout_extras,
            final_values=final_values,
        )
        return (env_state, reset_where(net.at(streams), after.done, carry), streams), transition

    keys = jax.random.split(as_key(key), unroll_length)
    start = (venv.cast(env_state), network_state, net.streams)
    (env_state, network_state, streams), rollout = jax.lax.scan(body, start, keys)
    nnx.update(networks, streams)
    return network_state, env_state, rollout


def eval_rollout(
    env: RLEnv,
    networks: StatefulModule,
    n_envs: int,
    max_episode_length: int,
    key: jax.Array,
    logging_percentiles: tuple[int | float, ...] | None = None,
    logging_level: LoggingLevel = LoggingLevel.NONE,
) -> dict[str, float]:
    """Run one episode per environment with the deterministic policy and summarise them.

    The network's variables, random streams and train/eval mode stay as they are. A second call of the same shapes
    compiles nothing.

    Args:
        env: a single environment.
        networks: the network.
        n_envs: number of episodes, run in parallel.
        max_episode_length: steps after which an episode that has not ended is cut.
        key: PRNG key; start states and everything random follow from it.
        logging_percentiles: percentiles over episodes to report in addition.
        logging_level: ``NETWORK_METRICS`` and ``ENV_METRICS`` add ``eval/net/*`` and ``eval/env/*``: per episode the
            mean over its steps, then reduced over episodes (and units). With a recordable network this is a typical
            magnitude of each layer, not a detector of peaks.

    Returns:
        Flat dict: ``eval/episode_reward/mean``, ``/std``, ``eval/lifespan/...`` and what the level asks for.
    """
    evaluate = make_evaluation(env, networks, n_envs, max_episode_length, logging_percentiles, logging_level)
    return evaluate(networks, key).row.to_dict()


class Evaluation(PyTreeNode):
    """What one evaluation found.

    Attributes:
        row: the metrics.
        n_steps: environment steps of all its episodes, int ``[]``.
        rewards: sum of rewards of each episode, ``[N]``, or a dict of them by reward key.
    """

    row: metrics_lib.MetricsRow
    n_steps: Any
    rewards: Any


def make_evaluation(
    env: RLEnv,
    networks: StatefulModule,
    n_envs: int,
    max_episode_length: int,
    logging_percentiles: tuple[int | float, ...] | None,
    logging_level: LoggingLevel,
) -> Callable[[StatefulModule, Any], Evaluation]:
    """Return ``evaluate(networks, key)``; it dispatches the work and does not wait for the device.

    ``evaluate.compile(networks, key)`` does all that an evaluation does once, and nothing else.
    """
    asked = logging_level & (LoggingLevel.NETWORK_METRICS | LoggingLevel.ENV_METRICS)

    def prepare(networks: StatefulModule) -> Any:
        graphdef, variables = in_eval_mode(networks)
        run = _compiled_evaluation(Identity(env), graphdef, n_envs, max_episode_length, logging_percentiles, asked)
        return run, variables

    def evaluate(networks: StatefulModule, key: Any) -> Evaluation:
        run, variables = prepare(networks)
        return run(variables, as_key(key))

    def compile_it(networks: StatefulModule, key: Any) -> None:
        run, variables = prepare(networks)
        run.lower(variables, as_key(key)).compile()

    evaluate.compile = compile_it  # type: ignore[attr-defined]
    return evaluate


def record_activations_rollout(
    env: RLEnv,
    network: StatefulModule,
    n_envs: int,
    max_episode_length: int,
    key: jax.Array,
    *,
    include: Patterns = None,
    exclude: Patterns = None,
    what: Sequence[str] = ("output",),
) -> tuple[Any, jax.Array]:
    """Record the output of every layer over one episode per environment, policy in eval mode.

    Environments are not restarted: after its end an environment is stepped on, and what it does there is to be masked.
    ``network`` stays as it is, whatever mode it is in. The result depends on the arguments alone; a second call of the
    same shapes compiles nothing.

    Device memory: ``max_episode_length * n_envs * (sum of recorded units)`` numbers. For more, record fewer layers
    (``include``, ``exclude``), fewer environments, or several shorter rollouts.

    Args:
        env: a single environment.
        network: the network, ordinary or already recordable.
        n_envs: environments in parallel, ``N``.
        max_episode_length: steps, ``T``.
        key: PRNG key; start states and every random layer follow from it.
        include: glob patterns on the canonical layer path; only these layers.
        exclude: glob patterns; not these layers.
        what: ``"output"``, ``"carry"``, ``"pre_activation"``; see
            :func:`~nnx_ppo.networks.recording.with_recording`.

    Returns:
        ``(activations, dones)``: nested dict that mirrors the network, leaves ``[T, N, ...]``; and float ``[T, N]``,
        1.0 where the environment had already ended *before* the step, so that ``1.0 - dones`` masks.

    Raises:
        ValueError: ``n_envs`` or ``max_episode_length`` is not positive.
    """
    for name, number in (("n_envs", n_envs), ("max_episode_length", max_episode_length)):
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}: there would be nothing to record.")
    graphdef, variables = in_eval_mode(recordable_copy(network, include=include, exclude=exclude, what=what))
    run = _compiled_recording(Identity(env), graphdef, n_envs, max_episode_length)
    return run(variables, as_key(key))


def recordable_copy(
    network: StatefulModule, *, include: Patterns = None, exclude: Patterns = None, what: Sequence[str] = ("output",)
) -> StatefulModule:
    """Return ``with_recording(network, ...)``, or the network itself where it is recordable already.

    Raises:
        ValueError: it is recordable already, and still a choice of layers is asked for.
    """
    if not is_recordable(network):
        return with_recording(network, include=include, exclude=exclude, what=what)
    if include is not None or exclude is not None or tuple(what) != ("output",):
        raise ValueError(
            "include, exclude and what belong to with_recording(...) when the network is already recordable."
        )
    return network


def restart(
    env: RLEnv, networks: StatefulModule, network_state: Carry, env_state: Any, which: jax.Array, key: jax.Array
) -> tuple[Carry, Any]:
    """Start new episodes, memory of the network included, in the environments of ``which``, bool ``[N]``."""
    return reset_where(networks, which, network_state), _restart(vectorize(env), env_state, which, key)


def _final_values(at: Callable[[Any], StatefulModule], streams: Any, after: Reading, carry: Carry, like: Any) -> Any:
    """Value ``[N]`` of the final observation, with the carry it had, of the environments that were truncated; else 0.

    The carry is not advanced. The network runs only for as many environments as were truncated.
    """

    def value(loop: Any, index: jax.Array) -> Any:
        chunk_carry, obs = jax.tree.map(lambda x: x.at[index].get(mode="clip"), (carry, after.obs))
        estimates = at(streams)(chunk_carry, obs).output.value_estimates
        return _put(loop, index, estimates)

    return _for_each_chunk(after.truncated, value, jax.tree.map(jnp.zeros_like, like))


def _restart(env: VectorEnv, env_state: Any, done: jax.Array, key: jax.Array) -> Any:
    """Start a new episode, from a fresh key, in the environments that are done; resets run only for those."""

    def reset(loop: Any, index: jax.Array) -> Any:
        keys = jax.vmap(functools.partial(jax.random.fold_in, key))(index)
        return _put(loop, index, env.reset_episode(keys))

    return _for_each_chunk(done, reset, env_state)


def _put(everything: Any, index: jax.Array, some: Any) -> Any:
    """Replace the entries at ``index`` of every leaf; an index out of range is left out."""
    return jax.tree.map(lambda all_, new: all_.at[index].set(new, mode="drop"), everything, some)


def _for_each_chunk(mask: jax.Array, body: Callable[[Any, jax.Array], Any], start: Any) -> Any:
    """Fold ``body(loop, index)`` over the true entries of ``mask`` (``[N]``), a fixed number of indices at a time.

    The work follows the number of true entries, not N. An index of N (out of range) fills up the last chunk.
    """
    n = mask.shape[0]
    size = min(n, max(8, n // 16))

    def step(loop: Any) -> Any:
        pending, result = loop
        (index,) = jnp.nonzero(pending, size=size, fill_value=n)
        return pending.at[index].set(False, mode="drop"), body(result, index)

    return jax.lax.while_loop(lambda loop: jnp.any(loop[0]), step, (mask, start))[1]


def in_eval_mode(networks: StatefulModule) -> tuple[Any, Any]:
    """Graph definition and variables of the network in eval mode; the network itself is not touched."""
    twin = nnx.merge(*nnx.split(networks), copy=True)
    twin.eval()
    return nnx.split(twin)


def start_episodes(
    env: VectorEnv, graphdef: Any, variables: Any, n_envs: int, key: jax.Array
) -> tuple[Any, Any, Scannable]:
    """Start states, carry and network of a rollout in which everything random follows from ``key``."""
    network_key, env_key = jax.random.split(key)
    networks = nnx.merge(graphdef, variables)
    reseed(networks, network_key)
    carry = networks.initialize_state(n_envs)
    return env.reset_episode(jax.random.split(env_key, n_envs)), carry, Scannable(networks)


@functools.lru_cache(maxsize=64)
def _compiled_evaluation(
    env: Identity,
    graphdef: Any,
    n_envs: int,
    max_episode_length: int,
    percentiles: tuple[int | float, ...] | None,
    level: LoggingLevel,
) -> Any:
    venv = vectorize(env.value)

    def watched(step: Step) -> Any:
        return {
            "net": metrics_lib.flat_names(step.out.metrics) if LoggingLevel.NETWORK_METRICS in level else {},
            "env": metrics_lib.flat_names(step.after.metrics) if LoggingLevel.ENV_METRICS in level else {},
        }

    def run(variables: Any, key: jax.Array) -> Evaluation:
        env_state, carry, net = start_episodes(venv, graphdef, variables, n_envs, key)

        def first_step() -> Any:
            step = policy_step(venv, net.at(net.streams), env_state, carry)
            return step.after.reward, watched(step)

        zeros = jax.tree.map(
            lambda leaf: jnp.zeros(jnp.broadcast_shapes(leaf.shape, (n_envs,) if not leaf.shape else ()), float),
            jax.eval_shape(first_step),
        )

        def body(loop: Any) -> Any:
            t, env_state, carry, streams, alive, lifespan, totals = loop
            step, streams = net.act(venv, env_state, carry, streams)
            totals = jax.tree.map(
                lambda total, x: tree_where(alive, total + x.astype(total.dtype), total),
                totals,
                (step.after.reward, watched(step)),
            )
            lifespan = lifespan + alive.astype(lifespan.dtype)
            return t + 1, step.env_state, step.out.next_state, streams, alive & ~step.after.done, lifespan, totals

        def unfinished(loop: Any) -> jax.Array:
            return (loop[0] < max_episode_length) & jnp.any(loop[4])

        alive = jnp.ones(n_envs, bool)
        start = (jnp.zeros((), int), env_state, carry, net.streams, alive, jnp.zeros(n_envs, int), zeros)
        *_, lifespan, (rewards, seen) = jax.lax.while_loop(unfinished, body, start)
        return Evaluation(metrics_lib.evaluation_row(rewards, lifespan, seen, percentiles), lifespan.sum(), rewards)

    return quick_jit(run)


@functools.lru_cache(maxsize=64)
def _compiled_recording(
    env: Identity, graphdef: Any, n_envs: int, max_episode_length: int
) -> Callable[[Any, jax.Array], tuple[Any, jax.Array]]:
    venv = vectorize(env.value)

    def run(variables: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        env_state, carry, net = start_episodes(venv, graphdef, variables, n_envs, key)

        def body(loop: Any, _: None) -> Any:
            env_state, carry, streams, ended = loop
            step, streams = net.act(venv, env_state, carry, streams)
            loop = (step.env_state, step.out.next_state, streams, ended | step.after.done)
            return loop, (extract_activations(step.out.metrics), ended.astype(float))

        start = (env_state, carry, net.streams, jnp.zeros(n_envs, bool))
        return jax.lax.scan(body, start, length=max_episode_length)[1]

    return quick_jit(run)
