"""``nnx-ppo record``: what every unit of a run's policy did, as one ``.npz`` file."""

import dataclasses
import pathlib
from typing import Any

import jax
import numpy as np
import tyro

from nnx_ppo.algorithms.rollout import record_activations_rollout
from nnx_ppo.cli.compilation_cache import enable_compilation_cache
from nnx_ppo.cli.console import stdout
from nnx_ppo.cli.restore import restore_run
from nnx_ppo.cli.run_folder import write_aside
from nnx_ppo.networks.naming import flatten_activations
from nnx_ppo.recordings.summary import in_network_order, layer_table, summarize

DONES = "dones"
RESERVED = (DONES, "file", "allow_pickle")


@dataclasses.dataclass(frozen=True)
class Record:
    """Record the activations of every layer while the final policy of a run acts, one episode per environment."""

    run_folder: tyro.conf.Positional[pathlib.Path]
    """Folder that nnx-ppo train made."""
    out: pathlib.Path | None = None
    """File to write; by default recordings/activations.npz in the run folder."""
    n_envs: int = 4
    """Episodes, run in parallel."""
    max_steps: int | None = None
    """Steps to record; by default the length of the training's evaluations. Memory grows with it."""
    include: tuple[str, ...] = ()
    """Layers to record, as glob patterns on their paths, e.g. '*/action/*'; by default all."""
    exclude: tuple[str, ...] = ()
    """Layers to leave out, likewise."""
    seed: int = 0
    """Seed; the same seed gives the same recording."""
    replace: bool = False
    """Write over a file that exists."""
    cache: bool = True
    """Keep compiled programs on disk for the next run."""

    def run(self) -> None:
        """Record, write the file, and print what each layer did."""
        if self.n_envs < 1 or (self.max_steps is not None and self.max_steps < 1):
            raise ValueError(f"--n-envs and --max-steps must be at least 1, got {self.n_envs} and {self.max_steps}.")
        if self.cache:
            enable_compilation_cache()
        folder, config, env, network = restore_run(self.run_folder)
        out = self.out or folder.recordings / "activations.npz"
        if out.suffix != ".npz":
            raise ValueError(f"--out must name an .npz file, which a recording is, got {out}.")
        require_free(out, self.replace)
        activations, dones = record_activations_rollout(
            env,
            network,
            n_envs=self.n_envs,
            max_episode_length=self.max_steps or config.train.eval.max_episode_length,
            key=jax.random.key(self.seed),
            include=self.include or None,
            exclude=self.exclude or None,
        )
        flat = in_network_order(flatten_activations(activations), network)
        save_recording(out, flat, dones)
        stdout.print(layer_table(summarize(flat, dones)))
        stdout.print(f"Recording: {out}", soft_wrap=True)


def require_free(path: pathlib.Path, replace: bool) -> None:
    """Refuse a file that exists.

    Raises:
        ValueError: it exists and ``replace`` is false, or it is a folder.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file, for example {path / 'activations.npz'}.")
    if path.exists() and not replace:
        raise ValueError(f"{path} exists: choose another file with --out, or write over it with --replace.")


def save_recording(path: pathlib.Path, activations: dict[str, Any], dones: Any) -> None:
    """Write a recording as ``.npz``: one array ``[T, N, ...]`` per canonical layer path, and ``dones`` ``[T, N]``.

    Args:
        path: file to write; a missing folder is made.
        activations: flat canonical path to array.
        dones: whether an environment's episode had ended before the step.

    Raises:
        ValueError: a layer has one of the names that the file format keeps for itself.
    """
    if taken := sorted(set(RESERVED) & set(activations)):
        raise ValueError(f"an .npz file cannot hold layers named {taken}: rename them, or leave them out by --exclude.")
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {name: np.asarray(x) for name, x in activations.items()}
    arrays[DONES] = np.asarray(dones)

    def write(aside: pathlib.Path) -> None:
        with aside.open("wb") as file:
            np.savez_compressed(file, **arrays)

    write_aside(path, write)
