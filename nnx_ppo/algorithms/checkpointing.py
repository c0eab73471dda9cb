"""Checkpoints are saved while training goes on, by a ``checkpoint_fn`` that a thread stands behind.

What a checkpoint holds: all variables of the network (parameters, statistics, random streams), the optimizer with its
place in the learning rate schedule, the network's carry, the environment states, the key of the training loop and the
number of steps; the configuration, a description, versions, and where the training log stood.
"""

import concurrent.futures
import os
import pathlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np

from nnx_ppo._versions import versions
from nnx_ppo.algorithms.checkpoint_files import (
    CheckpointError,
    complete_checkpoints,
    read_about,
    remove_checkpoint,
    remove_leftovers,
    steps_of,
    write_checkpoint,
)
from nnx_ppo.algorithms.config_json import config_to_json
from nnx_ppo.algorithms.leaves import Leaves
from nnx_ppo.algorithms.retention import Retention
from nnx_ppo.algorithms.snapshots import n_envs_of, random_settings, snapshot
from nnx_ppo.algorithms.types import TrainingState

REWARD = "eval/episode_reward/mean"
PACKAGES = ("nnx-ppo", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


class CheckpointWriter:
    """A ``checkpoint_fn`` that writes in the background; made by :func:`make_checkpoint_fn`.

    Attributes:
        directory: where the checkpoints are.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        config: Any,
        retention: Retention,
        metric: str,
        logger: Any,
        description: Any = None,
    ):
        self.directory = directory
        self._config = config_to_json(config)
        self._description = config_to_json(description)
        self._retention = retention
        self._metric = metric
        self._logger = logger
        self._score: tuple[int, float] | None = None
        self._scores: dict[int, float | None] | None = None
        self._pending: tuple[int, concurrent.futures.Future[pathlib.Path]] | None = None
        # One thread for the whole run, so that one checkpoint is written at a time.
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint")

    def __call__(self, training_state: TrainingState, steps: int) -> None:
        """Save: copies the state, then returns while a thread writes it. Waits for the checkpoint before to be written.

        Args:
            training_state: may change or be donated as soon as this returns.
            steps: environment steps so far.

        Raises:
            CheckpointError: the checkpoint before could not be written.
        """
        self.wait()
        leaves = snapshot(training_state)
        about = {
            "n_envs": n_envs_of(training_state),
            "score": self._score[1] if self._score is not None and self._score[0] == steps else None,
            "config": self._config,
            "description": self._description,
            "log": self._logger.position() if self._logger is not None else {},
            "settings": random_settings(),
            "versions": versions(PACKAGES),
        }
        self._pending = steps, self._thread.submit(self._write, int(steps), leaves, about)

    def log(self, metrics: Mapping[str, Any], steps: int) -> None:
        """Note an evaluation, by which ``keep_best`` ranks the checkpoint of the same step; a ``log_fn``."""
        if metrics.get(self._metric) is not None:
            score = float(metrics[self._metric])
            self._score = (int(steps), score) if np.isfinite(score) else None

    def wait(self) -> None:
        """Wait until the last checkpoint is written.

        Raises:
            CheckpointError: it could not be; earlier ones are as they were.
        """
        if self._pending is None:
            return
        (steps, future), self._pending = self._pending, None
        try:
            future.result()
        except Exception as error:
            raise CheckpointError(
                f"the checkpoint after {steps:,} steps could not be written in {self.directory}: {_reason(error)}. "
                "Earlier checkpoints are as they were."
            ) from error

    def close(self) -> None:
        """Wait, and let go of the thread; a second call does nothing.

        Raises:
            CheckpointError: the last checkpoint could not be written.
        """
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except CheckpointError as failure:
            if error is None:
                raise
            error.add_note(f"Also: {failure}")

    def _write(self, steps: int, leaves: Leaves, about: dict[str, Any]) -> pathlib.Path:
        path = write_checkpoint(self.directory, steps, leaves, about)
        if self._scores is None:
            complete = [p for p in complete_checkpoints(self.directory) if p != path]
            self._scores = {steps_of(p) or 0: read_about(p).get("score") for p in complete}
        self._scores[steps] = about["score"]
        for old in self._retention.to_remove(self._scores):
            del self._scores[old]
            remove_checkpoint(path.with_name(f"step_{old:010d}"))
        remove_leftovers(self.directory)
        return path


def make_checkpoint_fn(
    directory: str | os.PathLike[str],
    config: Any = None,
    *,
    keep_last: int | None = None,
    keep_best: int | None = None,
    keep_every: int | None = None,
    best_metric: str = REWARD,
    logger: Any = None,
    description: Any = None,
) -> CheckpointWriter:
    """Make a ``checkpoint_fn`` for :func:`~nnx_ppo.algorithms.ppo.train_ppo` that saves complete training states.

    Each save makes ``directory/step_{step:010d}/``, written aside and renamed, so that it is complete or not there.
    Training goes on meanwhile; an error of the writer is raised by the next save, and by ``close()``, which leaving a
    ``with`` block calls too. ``train_ppo`` waits for the last checkpoint before it returns.

    Args:
        directory: made where there is none.
        config: saved along: a ``TrainConfig``, or anything that JSON can hold.
        keep_last: keep the newest so many. Without any ``keep_*`` all are kept; with several, what any of them wants.
        keep_best: keep the so many with the highest ``best_metric``, of those saved at an evaluation. For this the
            writer has to see the log: ``log_fn=log_to(logger, checkpoint_fn.log)``.
        keep_every: keep the first of every so many environment steps.
        best_metric: name in the training log.
        logger: a :class:`~nnx_ppo.algorithms.loggers.Logger` (several by ``log_to``) whose position is saved along.
        description: saved along too, anything that JSON can hold: how network and environment were made, say.

    Raises:
        ValueError: a ``keep_*`` below 1.

    Example:
        >>> import tempfile
        >>> from flax import nnx
        >>> from nnx_ppo import EvalConfig, PPOConfig, TrainConfig, make_mlp_actor_critic, train_ppo
        >>> from nnx_ppo.envs import make_env
        >>> env = make_env("probe:constant_reward")
        >>> network = make_mlp_actor_critic(env.observation_size, env.action_size, [8], [8], nnx.Rngs(0))
        >>> ppo = PPOConfig(n_envs=4, rollout_length=4, total_steps=32, n_minibatches=2)
        >>> config = TrainConfig(ppo=ppo, eval=EvalConfig(enabled=False))
        >>> with tempfile.TemporaryDirectory() as folder, make_checkpoint_fn(folder, config) as checkpoint_fn:
        ...     result = train_ppo(env, network, config, checkpoint_fn=checkpoint_fn)
        ...     checkpoint_fn.wait()
        ...     latest_checkpoint(folder).name
        'step_0000000032'
    """
    retention = Retention(keep_last, keep_best, keep_every)
    return CheckpointWriter(pathlib.Path(directory), config, retention, best_metric, logger, description)


def latest_checkpoint(directory: str | os.PathLike[str]) -> pathlib.Path | None:
    """Newest complete checkpoint in a folder; ``None`` if there is none.

    Complete means that every file is there in full size; what is damaged otherwise shows when it is loaded.
    """
    return next(iter(complete_checkpoints(directory)), None)


def _reason(error: BaseException) -> str:
    """The deepest cause, which is the one that says something."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).strip() or type(error).__name__
    # What TensorStore appends is the whole description of its database.
    return text.splitlines()[0].partition(" [tensorstore_spec")[0].rstrip(".")
