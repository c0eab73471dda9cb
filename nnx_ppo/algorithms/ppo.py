"""PPO for stateful networks: one iteration as a pipeline of six stages, and the call that trains with it."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nnx_ppo._compile import full_precision, quick_jit
from nnx_ppo._pytree import Identity, PyTreeNode
from nnx_ppo.algorithms.advantages import advantages_and_targets
from nnx_ppo.algorithms.advantages import gae as gae
from nnx_ppo.algorithms.config import LearningRate, PPOConfig, TrainConfig, TrainResult, VideoData
from nnx_ppo.algorithms.diagnostics import replay_diagnostics
from nnx_ppo.algorithms.fit import check_fit
from nnx_ppo.algorithms.fit.functions import require_functions
from nnx_ppo.algorithms.fit.memory import advice_on_memory
from nnx_ppo.algorithms.leaves import structured
from nnx_ppo.algorithms.losses import Batch, actor_advantages
from nnx_ppo.algorithms.nonfinite import environments_with_nonfinite, require_finite
from nnx_ppo.algorithms.report import IterationReport, iteration_report
from nnx_ppo.algorithms.rollout import restart, unroll_env
from nnx_ppo.algorithms.statistics import fold_statistics
from nnx_ppo.algorithms.tasks import checkpoint_task, evaluation_task, video_task
from nnx_ppo.algorithms.training import Hooks, LoopState, train_loop
from nnx_ppo.algorithms.types import LoggingLevel, RLEnv, TrainingState
from nnx_ppo.algorithms.update import new_optimizer, update
from nnx_ppo.algorithms.values import visited_values
from nnx_ppo.algorithms.video import require_render
from nnx_ppo.envs.vector import vectorize
from nnx_ppo.networks._rng import as_key
from nnx_ppo.networks.types import Carry, StatefulModule


class Rest(PyTreeNode):
    """What a training run holds beside the network's variables; all arrays."""

    optimizer: Any
    network_states: Any
    env_states: Any
    rng_key: Any


def ppo_iteration(
    env: RLEnv, networks: StatefulModule, optimizer: nnx.Optimizer, start: Carry, env_states: Any, key: jax.Array,
    config: PPOConfig,
) -> tuple[Carry, Any, IterationReport]:  # fmt: skip
    """One iteration: rollout, values, advantages, update, statistics, metrics.

    ``networks`` and ``optimizer`` are updated in place; carry and environment states are returned with the report.
    """
    rollout_key, update_key = jax.random.split(key)
    carry, env_states, rollout = unroll_env(env, env_states, networks, start, config.rollout_length, rollout_key)
    next_obs = vectorize(env).read(env_states).obs
    values, last_value = visited_values(networks, start, rollout, carry, next_obs)
    advantages, targets = advantages_and_targets(
        rollout, values, last_value, config.gae_lambda, config.discounting_factor
    )
    log_likelihoods = rollout.network_output.loglikelihoods
    batch = Batch(
        start_state=start,
        obs=rollout.obs,
        done=rollout.done,
        rollout_extras=rollout.rollout_extras,
        log_likelihoods=log_likelihoods,
        advantages=actor_advantages(advantages, log_likelihoods, config.combine_advantages),
        targets=targets,
    )
    phase = update(networks, optimizer, batch, update_key, config)
    diagnosing = LoggingLevel.DIAGNOSTICS in config.logging_level
    diagnostics = replay_diagnostics(networks, batch) if diagnosing else {}
    skipping = config.on_nonfinite == "skip"
    fold_statistics(networks, rollout, only_finite=skipping)
    report = iteration_report(rollout, values, targets, phase, networks, config, diagnostics)
    if skipping:
        spoilt = environments_with_nonfinite(rollout, next_obs)
        carry, env_states = restart(env, networks, carry, env_states, spoilt, jax.random.fold_in(rollout_key, 1))
    return carry, env_states, report


def ppo_step(
    env: RLEnv, training_state: TrainingState, config: PPOConfig | int, *fields: Any, **named: Any
) -> tuple[TrainingState, dict[str, Any]]:
    """Run one iteration and return the next training state and the iteration's metrics.

    The network and the optimizer in ``training_state`` are updated in place; the carry and the environment states of
    the state given in are donated, so that it must not be used again.

    Args:
        env: a single environment.
        training_state: from :func:`new_training_state` or an earlier call.
        config: hyper-parameters. The positional form of nnx-ppo 0.3 is understood too: ``n_envs, rollout_length,
            gae_lambda, discounting_factor, clip_range, normalize_advantages, combine_advantages, n_epochs,
            n_minibatches, critic_loss_weight, logging_level, logging_percentiles``.
    """
    if not isinstance(config, PPOConfig):
        config = PPOConfig(**dict(zip(_POSITIONAL, (config, *fields), strict=False)), **named)
    elif fields or named:
        raise TypeError("ppo_step takes a PPOConfig, or its fields one by one, not both.")
    step, state = _prepare(env, training_state, config)
    state, report = step(state)
    if error := report.error(int(training_state.steps_taken)):
        raise error
    steps = training_state.steps_taken + config.steps_per_iteration
    return _finish(training_state, state, steps), report.to_dict()


_POSITIONAL = (
    "n_envs", "rollout_length", "gae_lambda", "discounting_factor", "clip_range", "normalize_advantages",
    "combine_advantages", "n_epochs", "n_minibatches", "critic_loss_weight", "logging_level", "logging_percentiles",
)  # fmt: skip


def new_training_state(
    env: RLEnv,
    networks: StatefulModule,
    n_envs: int,
    seed: int | jax.Array,
    learning_rate: LearningRate = 1e-4,
    gradient_clipping: float | None = None,
    weight_decay: float | None = None,
) -> TrainingState:
    """Start states of ``n_envs`` environments, the network's carry, a fresh optimizer and the loop's PRNG key.

    Args:
        env: a single environment.
        networks: the network to train; the state holds this very object.
        n_envs: number of environments, ``N``.
        seed: of environments, exploration and minibatches.
        learning_rate: constant, or optax schedule over gradient steps.
        gradient_clipping: largest global gradient norm.
        weight_decay: of AdamW.
    """
    optimizer = new_optimizer(networks, learning_rate, gradient_clipping, weight_decay)
    env_key, rng_key = jax.random.split(as_key(seed))
    return TrainingState(
        networks=networks,
        network_states=networks.initialize_state(n_envs),
        env_states=_compiled_reset(Identity(env))(jax.random.split(env_key, n_envs)),
        optimizer=optimizer,
        rng_key=rng_key,
        steps_taken=0,
    )


def train_ppo(
    env: RLEnv,
    networks: StatefulModule,
    config: TrainConfig | None = None,
    *,
    total_steps: int | None = None,
    seed: int | None = None,
    log_fn: Callable[[dict[str, Any], int], None] | None = None,
    video_fn: Callable[[VideoData], None] | None = None,
    checkpoint_fn: Callable[[TrainingState, int], None] | None = None,
    eval_env: RLEnv | None = None,
    initial_state: TrainingState | None = None,
    on_phase: Callable[[str], None] | None = None,
    stop_fn: Callable[[dict[str, Any], int], bool] | None = None,
    interrupt_fn: Callable[[], bool] | None = None,
) -> TrainResult:
    """Train ``networks`` in place with PPO.

    After any exception, Ctrl-C included, ``networks`` hold the last finished iteration.

    Args:
        env: a single environment (see :class:`~nnx_ppo.envs.types.RLEnv`); it is mapped over ``config.ppo.n_envs``.
        networks: a network that ends in a ``PPOAdapter``.
        config: hyper-parameters, evaluation, videos; all defaults if left out.
        total_steps: instead of ``config.ppo.total_steps``. A total, also on resume.
        seed: instead of ``config.seed``.
        log_fn: ``log_fn(metrics, steps)``, once per iteration, and once at the start with the first evaluation.
        video_fn: receives a :class:`~nnx_ppo.algorithms.config.VideoData` every ``config.video.every_steps`` and at the
            end, where ``config.video.enabled``. The environment needs ``render(trajectory, **render_kwargs)``.
        checkpoint_fn: ``checkpoint_fn(training_state, steps)`` every ``config.checkpoint_every_steps``, and at the end,
            each time after ``log_fn`` had the row of these steps; see
            :func:`~nnx_ppo.algorithms.checkpointing.make_checkpoint_fn`.
        eval_env: environment of evaluations and videos; ``env`` if left out.
        initial_state: continue from here, to the bit; its parameters are copied into ``networks``, and its optimizer's
            learning rate goes on.
        on_phase: told what is going on: ``"compiling"``, ``"training"``, ``"evaluating"``, ``"saving"``.
        stop_fn: ``stop_fn(metrics, steps)`` after each iteration, with what ``log_fn`` is about to get. True ends the
            run as it ends normally: evaluation, checkpoint, report. It costs the overlap of host and device.
        interrupt_fn: asked while each iteration runs, at no cost. True ends the run after that iteration: report and
            checkpoint, no evaluation, so that a resumed run goes on as if nothing had been.

    Raises:
        ValueError: network and environment do not fit each other, a module does not keep its contract, or the
            environment does not keep the protocol; found before anything compiles.
        TypeError: a function among the arguments does not take what it will be called with; found at once too.
        NonFiniteError: something that training learns from was NaN or infinite, and ``config.ppo.on_nonfinite`` is
            ``"raise"``.

    Example:
        >>> from flax import nnx
        >>> from nnx_ppo import EvalConfig, PPOConfig, TrainConfig, make_mlp_actor_critic, train_ppo
        >>> from nnx_ppo.envs import make_env
        >>> env = make_env("probe:constant_reward")
        >>> network = make_mlp_actor_critic(env.observation_size, env.action_size, [8], [8], nnx.Rngs(0))
        >>> ppo = PPOConfig(n_envs=4, rollout_length=4, total_steps=32, n_minibatches=2)
        >>> result = train_ppo(env, network, TrainConfig(ppo=ppo, eval=EvalConfig(enabled=False)))
        >>> result.total_steps, result.total_iterations
        (32, 2)
    """
    config = _with_overrides(config or TrainConfig(), total_steps, seed)
    ppo = config.ppo
    require_functions(
        log_fn=log_fn,
        stop_fn=stop_fn,
        video_fn=video_fn,
        checkpoint_fn=checkpoint_fn,
        on_phase=on_phase,
        interrupt_fn=interrupt_fn,
    )
    check_fit(env, networks, ppo)
    shown_env = env if eval_env is None else eval_env
    if shown_env is not env and (config.eval.enabled or config.video.enabled):
        check_fit(shown_env, networks, ppo)
    if config.video.enabled and video_fn is not None:
        require_render(shown_env, config.video.render_kwargs)
    if initial_state is None:
        initial_state = new_training_state(
            env, networks, ppo.n_envs, config.seed, ppo.learning_rate, ppo.gradient_clipping, ppo.weight_decay
        )
    else:
        initial_state = _adopt(initial_state, networks, ppo)
    if ppo.on_nonfinite == "raise":
        require_finite(networks)
    step, state = _prepare(env, initial_state, ppo)
    state = state.replace(rest=jax.tree.map(jnp.copy, state.rest))  # the caller's arrays are not donated

    eval_history: list[dict[str, Any]] = []
    periodic = []
    if config.eval.enabled:
        periodic.append(evaluation_task(shown_env, networks, config, eval_history))
    if config.video.enabled and video_fn is not None:
        periodic.append(video_task(shown_env, networks, config, video_fn))
    if checkpoint_fn is not None:
        finish = functools.partial(_finish, initial_state)
        periodic.append(checkpoint_task(checkpoint_fn, finish, config.checkpoint_every_steps))
    hooks = Hooks(
        periodic=tuple(periodic),
        log_fn=log_fn,
        on_phase=on_phase,
        stop_fn=stop_fn,
        interrupt_fn=interrupt_fn,
        compile_fn=step.compile,
        check=lambda report, steps: report.error(steps),
    )
    with advice_on_memory(), _written(checkpoint_fn):
        state, progress = train_loop(
            step,
            state,
            networks,
            steps_per_iteration=ppo.steps_per_iteration,
            steps=int(initial_state.steps_taken),
            total_steps=ppo.total_steps,
            throughput=LoggingLevel.THROUGHPUT in ppo.logging_level,
            hooks=hooks,
        )
    return TrainResult(
        training_state=_finish(initial_state, state, progress.steps),
        final_metrics=progress.metrics,
        eval_history=eval_history,
        total_steps=progress.steps,
        total_iterations=progress.iterations,
    )


def _with_overrides(config: TrainConfig, total_steps: int | None, seed: int | None) -> TrainConfig:
    if not isinstance(config, TrainConfig):
        raise TypeError(
            f"config must be a TrainConfig, got {type(config).__name__}; put a PPOConfig in TrainConfig(ppo=...)."
        )
    if total_steps is not None:
        config = dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, total_steps=total_steps))
    return config if seed is None else dataclasses.replace(config, seed=seed)


def _adopt(state: TrainingState, networks: StatefulModule, ppo: PPOConfig) -> TrainingState:
    """Bring a state to resume from into ``networks``; the state given in can be used again."""
    n_envs = {leaf.shape[0] for leaf in jax.tree.leaves((state.network_states, state.env_states))}
    if n_envs != {ppo.n_envs}:
        raise ValueError(f"initial_state holds {sorted(n_envs)} environments, the config asks for n_envs={ppo.n_envs}.")
    if state.networks is not networks:
        nnx.update(networks, jax.tree.map(jnp.copy, nnx.state(state.networks)))
    return state.replace(networks=networks, optimizer=nnx.merge(*nnx.split(state.optimizer), copy=True))


@contextlib.contextmanager
def _written(checkpoint_fn: Any) -> Iterator[None]:
    """Wait for the checkpoints that are still being written, however training ends."""
    wait = getattr(checkpoint_fn, "wait", lambda: None)
    try:
        yield
    except BaseException as error:
        try:
            wait()
        except ValueError as failure:
            error.add_note(f"Also: {failure}")
        raise
    wait()


def _prepare(env: RLEnv, state: TrainingState, config: PPOConfig) -> tuple[Any, LoopState]:
    """The compiled iteration for this state's structure, and the state as arrays."""
    graphdef, variables = nnx.split(state.networks)
    optimizer_def, optimizer = nnx.split(state.optimizer)
    # What is no part of the computation must not cause another compilation.
    config = dataclasses.replace(config, total_steps=1, learning_rate=0.0, gradient_clipping=None, weight_decay=None)
    step = _compiled_step(Identity(env), graphdef, optimizer_def, config)
    n_envs = config.n_envs
    env_states = structured(state.env_states, lambda: _reset_shapes(env, n_envs), "the environment's states")
    rest = Rest(optimizer, state.network_states, env_states, as_key(state.rng_key))
    return step, LoopState(networks=jax.tree.map(lambda x: x, variables), rest=rest)


def _finish(initial: TrainingState, state: LoopState, steps: int) -> TrainingState:
    """Arrays back into the network and the optimizer objects of the run."""
    nnx.update(initial.networks, state.networks)
    nnx.update(initial.optimizer, state.rest.optimizer)
    return initial.replace(
        network_states=state.rest.network_states,
        env_states=state.rest.env_states,
        rng_key=state.rest.rng_key,
        steps_taken=steps,
    )


def _reset_shapes(env: RLEnv, n_envs: int) -> Any:
    """Shapes of the states of ``n_envs`` environments."""
    return jax.eval_shape(vectorize(env).reset, jax.random.split(jax.random.key(0), n_envs))


@functools.lru_cache(maxsize=64)
def _compiled_reset(env: Identity) -> Callable[[jax.Array], Any]:
    return quick_jit(vectorize(env.value).reset)


@functools.lru_cache(maxsize=64)
def _compiled_step(
    env: Identity, graphdef: Any, optimizer_def: Any, config: PPOConfig
) -> Callable[[LoopState], tuple[LoopState, IterationReport]]:
    def step(variables: Any, rest: Rest) -> tuple[Any, Rest, IterationReport]:
        networks, optimizer = nnx.merge(graphdef, variables), nnx.merge(optimizer_def, rest.optimizer)
        next_key, key = jax.random.split(rest.rng_key)
        carry, env_states, report = ppo_iteration(
            env.value, networks, optimizer, rest.network_states, rest.env_states, key, config
        )
        return nnx.state(networks), Rest(nnx.state(optimizer), carry, env_states, next_key), report

    compiled = jax.jit(full_precision(step), donate_argnums=1)

    def call(state: LoopState) -> tuple[LoopState, IterationReport]:
        variables, rest, report = compiled(state.networks, state.rest)
        return LoopState(networks=variables, rest=rest), report

    call.lower = lambda state: compiled.lower(state.networks, state.rest)  # type: ignore[attr-defined]
    call.compile = lambda state: compiled.lower(state.networks, state.rest).compile()  # type: ignore[attr-defined]
    call.jitted = compiled  # type: ignore[attr-defined]
    return call
