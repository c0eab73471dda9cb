"""``nnx-ppo demo``: from nothing to a trained memory and a look at its units, in a few minutes.

An LSTM has to swing up and balance a pendulum whose angular velocity it is not shown, so that it must remember.
"""

import dataclasses
import os
import pathlib
import shlex
import shutil
import sys
from typing import Annotated, Any

import jax
import numpy as np

from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig
from nnx_ppo.algorithms.rollout import record_activations_rollout
from nnx_ppo.cli.compilation_cache import enable_compilation_cache
from nnx_ppo.cli.console import print_table, stderr, stdout
from nnx_ppo.cli.networks import NetworkConfig
from nnx_ppo.cli.options import option
from nnx_ppo.cli.output_files import write_output
from nnx_ppo.cli.progress import REWARD
from nnx_ppo.cli.recording_file import save_recording
from nnx_ppo.cli.run_config import RunConfig, with_total_steps
from nnx_ppo.cli.run_folder import RunFolder, unused_folder
from nnx_ppo.cli.training_run import train_run
from nnx_ppo.envs import make_env
from nnx_ppo.networks.naming import flatten_activations
from nnx_ppo.networks.types import StatefulModule
from nnx_ppo.recordings.plots import plot_activations, plot_learning_curve
from nnx_ppo.recordings.progress import busy
from nnx_ppo.recordings.summary import in_network_order, summarize
from nnx_ppo.recordings.summary_tables import layer_table

EPISODE_LENGTH = 200
RECORDED_EPISODES = 4

DEMO = RunConfig(
    env="gymnax:Pendulum-v1",
    # Entries of the observation: cosine and sine of the angle, angular velocity.
    env_args={"hide": (2,)},
    # Rewards reach -16 per step; a critic that starts at 0 learns values of order 10 much sooner than of order 100.
    reward_scale=0.1,
    # As long as the environment's own episodes, but with staggered starts, so that not all end in the same iteration.
    train_episode_length=EPISODE_LENGTH,
    anneal_learning_rate=True,
    network=NetworkConfig(
        kind="lstm",
        hidden_size=64,
        actor_hidden_sizes=(64,),
        critic_hidden_sizes=(64,),
        activation="tanh",
        entropy_weight=1e-3,
    ),
    train=TrainConfig(
        ppo=PPOConfig(
            n_envs=64,
            rollout_length=50,
            total_steps=400_000,
            gae_lambda=0.9,
            discounting_factor=0.95,
            learning_rate=1e-3,
            n_epochs=8,
            n_minibatches=8,
            gradient_clipping=1.0,
        ),
        eval=EvalConfig(every_steps=25_000, n_envs=32, max_episode_length=EPISODE_LENGTH),
        seed=0,
        checkpoint_every_steps=25_000,
    ),
)


@dataclasses.dataclass(frozen=True)
class Demo:
    """Train a small memory, record it, and draw what its units did."""

    out: Annotated[pathlib.Path, option("RUN")] = pathlib.Path("demo_run")
    """Folder to make; where it is taken, a number is added."""
    total_steps: int = DEMO.train.ppo.total_steps
    """Environment steps to train for."""
    cache: bool = True
    """Keep compiled programs on disk for the next run."""

    def run(self) -> None:
        """Run the demo, and say where its files are and what to type next."""
        if self.cache:
            enable_compilation_cache()
        out = unused_folder(self.out)
        if out != self.out:
            stderr.print(f"{self.out} is taken: this run goes to {out}.")
        stderr.print("An LSTM learns to balance a pendulum without being shown how fast it turns.")
        folder, network = train_run(with_total_steps(DEMO, self.total_steps), out)
        flat, dones = _record(network)
        save_recording(folder.recordings / "activations.npz", flat, dones)
        _draw(folder, flat, dones)
        print_table(layer_table(summarize(flat, dones)))
        stdout.print(_files(folder), soft_wrap=True)
        stdout.print(_next_steps(folder), soft_wrap=True)


def _record(network: StatefulModule) -> tuple[dict[str, Any], np.ndarray]:
    stderr.print(f"Recording {RECORDED_EPISODES} episodes.")
    with busy("recording"):
        activations, dones = record_activations_rollout(
            make_env(DEMO.env, **DEMO.env_args),
            network,
            n_envs=RECORDED_EPISODES,
            max_episode_length=EPISODE_LENGTH,
            key=jax.random.key(0),
        )
    return in_network_order(flatten_activations(activations), network), np.asarray(dones)


def _draw(folder: RunFolder, activations: dict[str, Any], dones: np.ndarray) -> None:
    rows = [row for row in folder.metrics() if row.get(REWARD) is not None]
    band = [[row[f"eval/episode_reward/p{p}"] for row in rows] for p in (25, 75)]
    curve = plot_learning_curve(
        [row["steps"] for row in rows],
        [row[REWARD] for row in rows],
        *band,
        title="Pendulum with hidden velocity, LSTM",
    )
    write_output(folder.path / "learning_curve.png", curve.savefig)
    # A layer's number without units, such as a log-likelihood, is drawn as one unit.
    units = {path: x if np.ndim(x) > 2 else np.asarray(x)[..., None] for path, x in activations.items()}
    heat_map = plot_activations(units, dones, title="One episode: every unit of every layer")
    write_output(folder.path / "activations.png", heat_map.savefig)


def _files(folder: RunFolder) -> str:
    files = {
        folder.path / "learning_curve.png": "reward while it learned",
        folder.path / "activations.png": "units over time, one episode",
        folder.recordings / "activations.npz": "all activations, [time, episode, unit]",
        folder.path / "metrics.jsonl": "the training log",
    }
    width = max(len(str(path)) for path in files)
    return "\n".join(["Where things are:", *(f"  {path!s:<{width}}  {what}" for path, what in files.items())])


def _next_steps(folder: RunFolder) -> str:
    command, python, run = _as_typed("nnx-ppo"), _as_typed("python"), shlex.quote(str(folder.path))
    return (
        "What to type next:\n"
        f"  {command} eval {run}\n"
        f"  {command} record {run} --out actor.npz --include '*/action/*'\n"
        f"  {command} train gymnax:CartPole-v1 --out runs/cartpole\n"
        f'  {python} -c "import numpy as np; print({{k: v.shape for k, v in '
        f"np.load('{folder.recordings / 'activations.npz'}').items()}})\""
    )


def _as_typed(program: str) -> str:
    """A program of this Python environment as the user has to type it: with its path where it is not on PATH."""
    here = pathlib.Path(sys.executable).with_name(program)
    found = shutil.which(program)
    if not here.exists() or (found is not None and pathlib.Path(found).samefile(here)):
        return program
    return shlex.quote(os.path.relpath(here) if here.is_relative_to(pathlib.Path.cwd()) else str(here))
