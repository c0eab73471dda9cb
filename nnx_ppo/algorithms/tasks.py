"""What training does now and then: evaluate, film, save. Each is a :class:`~nnx_ppo.algorithms.training.Periodic`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from nnx_ppo.algorithms.config import TrainConfig, VideoData
from nnx_ppo.algorithms.rollout import make_evaluation
from nnx_ppo.algorithms.training import LoopState, Periodic, Stopwatch
from nnx_ppo.algorithms.types import LoggingLevel, RLEnv, TrainingState
from nnx_ppo.algorithms.video import compile_filming, draw, film_episode
from nnx_ppo.networks.types import StatefulModule

_EVALUATION, _VIDEO = 0x6576616C, 0x76696465
"""Set the keys of evaluations and videos apart from those of training."""


def evaluation_task(
    env: RLEnv, networks: StatefulModule, config: TrainConfig, history: list[dict[str, Any]]
) -> Periodic:
    """Evaluate ``networks`` by ``config.eval``, and append each result to ``history``."""
    options = config.eval
    evaluate = make_evaluation(
        env, networks, options.n_envs, options.max_episode_length, options.logging_percentiles, options.logging_level
    )
    key = jax.random.fold_in(jax.random.key(config.seed), _EVALUATION)

    def call(state: LoopState, steps: int) -> dict[str, Any]:
        del state  # the loop has brought it into networks
        watch = Stopwatch()
        evaluation = evaluate(networks, key)
        metrics = evaluation.row.to_dict()
        seconds = watch.lap()
        history.append(metrics | {"step": steps})
        if LoggingLevel.THROUGHPUT not in config.ppo.logging_level:
            return metrics
        return metrics | {"throughput/eval_sps": int(evaluation.n_steps) / seconds}

    return Periodic(
        options.every_steps, call, compile=lambda: evaluate.compile(networks, key), at_start=options.initial
    )


def video_task(
    env: RLEnv, networks: StatefulModule, config: TrainConfig, video_fn: Callable[[VideoData], None]
) -> Periodic:
    """Film one episode by ``config.video``, and hand it to ``video_fn``."""
    options = config.video
    key = jax.random.fold_in(jax.random.key(config.seed), _VIDEO)

    def call(state: LoopState, steps: int) -> dict[str, Any]:
        del state  # the loop has brought it into networks
        watch = Stopwatch()
        film = film_episode(env, networks, options.episode_length, key)
        frames = draw(env, film.trajectory, options.render_kwargs)
        seconds = watch.lap()
        video_fn(VideoData(frames, steps, film.reward, film.length))
        if LoggingLevel.THROUGHPUT not in config.ppo.logging_level:
            return {}
        return {"throughput/video_sps": film.length / seconds}

    compile_it = lambda: compile_filming(env, networks, options.episode_length)  # noqa: E731
    return Periodic(options.every_steps, call, phase="filming", compile=compile_it)


def checkpoint_task(
    checkpoint_fn: Callable[[TrainingState, int], None],
    finish: Callable[[LoopState, int], TrainingState],
    every_steps: int,
) -> Periodic:
    """Hand the training state to ``checkpoint_fn``; ``finish(state, steps)`` makes it of the loop's arrays."""

    def call(state: LoopState, steps: int) -> dict[str, Any]:
        # Copies, since the next iteration is given the originals to overwrite.
        checkpoint_fn(finish(state.replace(rest=jax.tree.map(jnp.copy, state.rest)), steps), steps)
        return {}

    return Periodic(every_steps, call, phase="saving", saves=True)
