"""2,000 iterations with every logger, evaluation, video and checkpoint on: nothing grows after the first fifty."""

import gc
import os
import pathlib
import threading
from typing import Any

import numpy as np

from nnx_ppo.algorithms.callbacks import video_file_fn
from nnx_ppo.algorithms.checkpoint_files import complete_checkpoints
from nnx_ppo.algorithms.checkpointing import make_checkpoint_fn
from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig, VideoConfig
from nnx_ppo.algorithms.loggers import (
    JsonLinesLogger,
    TableLogger,
    TensorBoardLogger,
    WandbLogger,
    log_to,
    read_metrics,
)
from nnx_ppo.algorithms.ppo import train_ppo
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.envs import make_env
from nnx_ppo.networks.factories import make_mlp_actor_critic
from nnx_ppo.wrappers import Wrapper
from tests.helpers_compile import compilations

ITERATIONS, WARM, STEPS = 2000, 50, 8


class Drawn(Wrapper):
    """An environment with a picture."""

    def render(self, trajectory: Any, height: int, width: int) -> list[Any]:
        return [np.full((height, width, 3), 0.5) for _ in trajectory]


def resident_bytes() -> int:
    """Memory of this process that lies in RAM."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Watch:
    """Notes what the process holds, every fifty iterations."""

    def __init__(self) -> None:
        self.memory: list[int] = []
        self.files: list[int] = []
        self.threads: list[int] = []

    def __call__(self, metrics: Any, steps: int) -> None:
        if steps and steps % (WARM * STEPS) == 0:
            gc.collect()
            self.memory.append(resident_bytes())
            self.files.append(len(os.listdir("/proc/self/fd")))
            self.threads.append(threading.active_count())


def test_nothing_grows(tmp_path: pathlib.Path) -> None:
    import rich.console
    from flax import nnx

    env = Drawn(make_env("probe:constant_reward"))
    network = make_mlp_actor_critic(env.observation_size, env.action_size, [2], [2], nnx.Rngs(0))
    every = WARM * STEPS // 2
    config = TrainConfig(
        ppo=PPOConfig(
            n_envs=2, rollout_length=4, total_steps=ITERATIONS * STEPS, n_epochs=1, n_minibatches=1,
            logging_level=LoggingLevel.LOSSES | LoggingLevel.THROUGHPUT,
        ),
        eval=EvalConfig(every_steps=every, n_envs=2, max_episode_length=3),
        video=VideoConfig(
            enabled=True, every_steps=2 * every, episode_length=3, render_kwargs={"height": 16, "width": 16}
        ),
        checkpoint_every_steps=every,
    )  # fmt: skip
    watch = Watch()
    compiled: list[int] = []
    with open(os.devnull, "w") as nowhere:
        console = rich.console.Console(file=nowhere, force_terminal=True)
        logger = log_to(
            JsonLinesLogger(tmp_path / "metrics.jsonl"),
            TensorBoardLogger(tmp_path / "tensorboard"),
            WandbLogger(project="p", dir=str(tmp_path)),
            TableLogger(console=console),
            watch,
        )
        with compilations() as events, logger:
            with make_checkpoint_fn(tmp_path / "checkpoints", config, keep_last=2, keep_best=1, logger=logger) as save:

                def log(metrics: Any, steps: int) -> None:
                    logger(metrics, steps)
                    save.log(metrics, steps)
                    if steps == WARM * STEPS:
                        compiled.append(len(events))

                train_ppo(
                    env, network, config, log_fn=log, checkpoint_fn=save, video_fn=video_file_fn(tmp_path / "videos")
                )
            compiled.append(len(events))

    assert len(read_metrics(tmp_path / "metrics.jsonl")) == ITERATIONS + 1
    assert len(complete_checkpoints(tmp_path / "checkpoints")) in (2, 3)
    assert len(list((tmp_path / "videos").iterdir())) == ITERATIONS * STEPS // (2 * every)
    assert compiled[0] == compiled[1], "something was compiled after the first fifty iterations"
    assert len(watch.memory) == ITERATIONS // WARM
    # A checkpoint that is being written takes some files and threads more: what is left in between is compared.
    for counts in (watch.files, watch.threads):
        assert min(counts[-10:]) <= min(counts[1:11]), counts
        assert np.median(counts[-10:]) <= np.median(counts[1:11]), counts
    # Allocators keep what they had at a peak: growth is the slope over the later three quarters, not a single step.
    later = np.asarray(watch.memory[len(watch.memory) // 4 :]) / 2**20
    slope = np.polyfit(np.arange(len(later)) * WARM, later, 1)[0]
    assert slope * 1000 < 8, f"{slope * 1000:.1f} MiB more per 1,000 iterations: {np.round(later).tolist()}"
