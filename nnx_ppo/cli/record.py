"""``nnx-ppo record``: what every unit of a run's policy did, as a Zarr store of any size or as one ``.npz`` file."""

import dataclasses
import json
import pathlib
import zipfile
from typing import Any, Literal

import numpy as np
import tyro

from nnx_ppo.algorithms.checkpoint_files import all_checkpoints
from nnx_ppo.algorithms.disk import write_aside
from nnx_ppo.algorithms.rollout import record_activations_rollout
from nnx_ppo.cli.compilation_cache import enable_compilation_cache
from nnx_ppo.cli.console import stderr, stdout
from nnx_ppo.cli.parsing import require_counts
from nnx_ppo.cli.restore import restore_run
from nnx_ppo.cli.run_config import RunConfig, to_json
from nnx_ppo.cli.run_folder import RunFolder
from nnx_ppo.cli.versions import collect_versions
from nnx_ppo.envs.types import RLEnv
from nnx_ppo.networks._rng import as_key
from nnx_ppo.networks.naming import flatten_activations
from nnx_ppo.networks.types import StatefulModule
from nnx_ppo.recordings.extra import analysis_packages
from nnx_ppo.recordings.layout import SUFFIX
from nnx_ppo.recordings.recorder import record
from nnx_ppo.recordings.summary import in_network_order, summarize
from nnx_ppo.recordings.summary_tables import layer_table

DONES = "dones"
RESERVED = (DONES, "file", "allow_pickle")
NPZ = ".npz"
TABLE_BYTES = 256 * 2**20


@dataclasses.dataclass(frozen=True)
class Record:
    """Record the activations of every layer while the final policy of a run acts without exploration."""

    run_folder: tyro.conf.Positional[pathlib.Path]
    """Folder that nnx-ppo train made."""
    out: pathlib.Path | None = None
    """Where to write: a store for any length (.zarr), or a file for one episode of each environment (.npz); by default
    recordings/activations.zarr in the run folder."""
    n_envs: int = 4
    """Environments, run in parallel."""
    episodes: int | None = None
    """Episodes of each environment; by default one, or as many as --max-steps has room for."""
    max_steps: int | None = None
    """Most steps of each environment; by default, with one episode, the length of the training's evaluations."""
    reset: Literal["auto", "never"] = "auto"
    """auto: episode follows episode, with the network's memory reset; never: one episode, stepped on after its end."""
    include: tuple[str, ...] = ()
    """Layers to record, as glob patterns on their paths, e.g. '*/action/*'; by default all."""
    exclude: tuple[str, ...] = ()
    """Layers to leave out, likewise."""
    extras: tuple[str, ...] = ()
    """What else to keep, as paths into the environment's state, e.g. metrics/speed or data/qpos."""
    dtype: Literal["float16", "bfloat16"] | None = None
    """Round layers to fewer bits; by default they are kept as they are."""
    seed: int = 0
    """Seed; the same seed gives the same recording."""
    replace: bool = False
    """Write over a recording that exists, once the new one is complete."""
    cache: bool = True
    """Keep compiled programs on disk for the next run."""

    def run(self) -> None:
        """Record, write, and print what each layer did."""
        require_counts(n_envs=self.n_envs, episodes=self.episodes, max_steps=self.max_steps)
        if self.cache:
            enable_compilation_cache()
        folder, config, env, network = restore_run(self.run_folder)
        out = self.out or folder.recordings / f"activations{SUFFIX}"
        if out.suffix not in (SUFFIX, NPZ):
            raise ValueError(f"--out must name a {SUFFIX} folder or an {NPZ} file, which a recording is, got {out}.")
        require_free(out, self.replace)
        if out.suffix == SUFFIX:
            _require_store(out)
        write = self._write_file if out.suffix == NPZ else self._write_store
        write(out, folder, config, env, network)
        stdout.print(f"Recording: {out}", soft_wrap=True)

    def _write_store(
        self, out: pathlib.Path, folder: RunFolder, config: RunConfig, env: RLEnv, network: StatefulModule
    ) -> None:
        stderr.print(f"Compiling the recording of {config.env}.")
        whole_episodes = self.max_steps is None and self.episodes is None
        recording = record(
            env,
            network,
            out,
            n_envs=self.n_envs,
            n_steps=config.train.eval.max_episode_length if whole_episodes else self.max_steps,
            n_episodes=1 if whole_episodes else self.episodes,
            reset=self.reset,
            include=self.include or None,
            exclude=self.exclude or None,
            extras=self.extras,
            dtype=self.dtype,
            key=as_key(self.seed),
            replace=self.replace,
            attributes={
                "config": json.loads(to_json(config)),
                "checkpoint": str(all_checkpoints(folder.checkpoints)[0]),
                "versions": collect_versions(),
            },
        )
        if recording.n_bytes <= TABLE_BYTES:
            stdout.print(layer_table(summarize(recording)))
        else:
            stdout.print(f"What each layer did: nnx-ppo inspect {out}", soft_wrap=True)

    def _write_file(
        self, out: pathlib.Path, folder: RunFolder, config: RunConfig, env: RLEnv, network: StatefulModule
    ) -> None:
        if self.episodes not in (None, 1) or self.extras or self.dtype:
            raise ValueError(
                f"an {NPZ} file holds one episode of each environment as it is: for --episodes, --extras and --dtype "
                f"let --out name a {SUFFIX} folder."
            )
        activations, dones = record_activations_rollout(
            env,
            network,
            n_envs=self.n_envs,
            max_episode_length=self.max_steps or config.train.eval.max_episode_length,
            key=as_key(self.seed),
            include=self.include or None,
            exclude=self.exclude or None,
        )
        flat = in_network_order(flatten_activations(activations), network)
        save_recording(out, flat, dones)
        stdout.print(layer_table(summarize(flat, dones)))


def _require_store(out: pathlib.Path) -> None:
    """Find out before anything compiles whether a store can be written."""
    try:
        analysis_packages()
    except ImportError as error:
        raise ImportError(f"{error}, or record to a file: --out {out.with_suffix(NPZ)}") from error


def require_free(path: pathlib.Path, replace: bool) -> None:
    """Refuse what exists.

    Raises:
        ValueError: it exists and ``replace`` is false, or a folder is where the file should be.
    """
    if path.suffix == NPZ and path.is_dir():
        raise ValueError(f"{path} is a folder: name a file, for example {path / 'activations.npz'}.")
    if path.exists() and not replace:
        raise ValueError(f"{path} exists: choose another place with --out, or write over it with --replace.")


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


def load_recording(path: pathlib.Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Read what :func:`save_recording` wrote.

    Returns:
        Activations by canonical path, and ``dones``.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: the file is no recording.
    """
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        dones = arrays.pop(DONES)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no recording {path}.") from None
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is no recording that nnx-ppo record made, or it is damaged ({error}).") from error
    return arrays, dones
