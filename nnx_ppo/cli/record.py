"""``nnx-ppo record``: what every unit of a run's policy did, as a Zarr store of any size or as one ``.npz`` file."""

import dataclasses
import json
import pathlib
from typing import Annotated, Literal

from nnx_ppo.algorithms.rollout import record_activations_rollout
from nnx_ppo.cli.checkpoint_choice import CheckpointChoice, Choice
from nnx_ppo.cli.compilation_cache import enable_compilation_cache
from nnx_ppo.cli.console import print_table, stderr, stdout
from nnx_ppo.cli.options import RunPath, option
from nnx_ppo.cli.output_files import require_place, saving
from nnx_ppo.cli.parsing import require_counts
from nnx_ppo.cli.recording_file import NPZ, save_recording
from nnx_ppo.cli.restore import Restored
from nnx_ppo.cli.run_config import to_json
from nnx_ppo.cli.run_folder import RunFolder
from nnx_ppo.cli.versions import collect_versions
from nnx_ppo.networks._rng import as_key
from nnx_ppo.networks.naming import flatten_activations
from nnx_ppo.recordings.extra import analysis_packages
from nnx_ppo.recordings.layout import SUFFIX
from nnx_ppo.recordings.progress import busy
from nnx_ppo.recordings.recorder import record
from nnx_ppo.recordings.summary import in_network_order, summarize
from nnx_ppo.recordings.summary_tables import layer_table

TABLE_BYTES = 256 * 2**20


@dataclasses.dataclass(frozen=True)
class Record:
    """Record the activations of every layer while the policy of a run acts without exploration."""

    run_folder: RunPath
    """Folder that nnx-ppo train made."""
    checkpoint: Choice = dataclasses.field(default_factory=CheckpointChoice)
    out: Annotated[
        pathlib.Path | None, option("NAME.zarr|NAME.npz", default="recordings/activations.zarr in the run folder")
    ] = None
    """Where to write: a store for any length (.zarr), or a file for one episode of each environment (.npz)."""
    n_envs: int = 4
    """Environments, run in parallel."""
    episodes: Annotated[int | None, option("INT", default="1, or what --max-steps has room for")] = None
    """Episodes of each environment."""
    max_steps: Annotated[int | None, option("INT", default="with 1 episode as in the training's evaluations")] = None
    """Most steps of each environment."""
    reset: Literal["auto", "never"] = "auto"
    """auto: episode follows episode, with the network's memory reset; never: one episode, stepped on after its end."""
    include: Annotated[tuple[str, ...], option("PATTERN ...", default="all")] = ()
    """Layers to record, as glob patterns on their paths, e.g. '*/action/*'."""
    exclude: Annotated[tuple[str, ...], option("PATTERN ...", default="none")] = ()
    """Layers to leave out, likewise."""
    extras: Annotated[tuple[str, ...], option("PATH ...", default="nothing")] = ()
    """What else to keep, as paths into the environment's state, e.g. metrics/speed or data/qpos."""
    dtype: Annotated[Literal["float16", "bfloat16"] | None, option("float16|bfloat16", default="as they are")] = None
    """Round layers to fewer bits."""
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
        folder = RunFolder.open(self.run_folder)
        out = self.out or folder.recordings / f"activations{SUFFIX}"
        if out.suffix not in (SUFFIX, NPZ):
            raise ValueError(f"--out must name a {SUFFIX} folder or an {NPZ} file, which a recording is, got {out}.")
        require_place(out, replace=self.replace)
        if out.suffix == SUFFIX:
            _require_store(out)
            self._write_store(out, self.checkpoint.restore(self.run_folder))
        else:
            self._write_file(out, self.checkpoint.restore(self.run_folder))
        stdout.print(f"Recording: {out}", soft_wrap=True)

    def _write_store(self, out: pathlib.Path, restored: Restored) -> None:
        _, config, env, network, checkpoint = restored
        stderr.print(f"Compiling the recording of {config.env}.")
        whole_episodes = self.max_steps is None and self.episodes is None
        with saving(out):
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
                    "checkpoint": str(checkpoint),
                    "versions": collect_versions(),
                },
            )
        if recording.n_bytes <= TABLE_BYTES:
            print_table(layer_table(summarize(recording)))
        else:
            stdout.print(f"What each layer did: nnx-ppo inspect {out}", soft_wrap=True)

    def _write_file(self, out: pathlib.Path, restored: Restored) -> None:
        _, config, env, network, _ = restored
        if self.episodes not in (None, 1) or self.extras or self.dtype:
            raise ValueError(
                f"an {NPZ} file holds one episode of each environment as it is: for --episodes, --extras and --dtype "
                f"let --out name a {SUFFIX} folder."
            )
        stderr.print(f"Compiling the recording of {config.env}.")
        with busy("recording"):
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
        print_table(layer_table(summarize(flat, dones)))


def _require_store(out: pathlib.Path) -> None:
    """Find out before anything compiles whether a store can be written."""
    try:
        analysis_packages()
    except ImportError as error:
        raise ImportError(f"{error}, or record to a file: --out {out.with_suffix(NPZ)}") from error
