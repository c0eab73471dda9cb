"""``nnx-ppo report``: everything about a run as one HTML file that can be mailed and read offline."""

import contextlib
import dataclasses
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Annotated

from nnx_ppo.algorithms.checkpoint_files import steps_of
from nnx_ppo.cli import report_contents as contents
from nnx_ppo.cli.compilation_cache import enable_compilation_cache
from nnx_ppo.cli.console import stderr, stdout
from nnx_ppo.cli.eval import evaluate
from nnx_ppo.cli.options import RunPath, option
from nnx_ppo.cli.output_files import require_place, saving
from nnx_ppo.cli.parsing import require_counts
from nnx_ppo.cli.recording_file import require_recording
from nnx_ppo.cli.restore import restore_checkpoint
from nnx_ppo.cli.run_config import RunConfig
from nnx_ppo.cli.run_folder import RunFolder
from nnx_ppo.envs.types import RLEnv
from nnx_ppo.networks._rng import as_key
from nnx_ppo.networks.types import StatefulModule
from nnx_ppo.recordings.extra import analysis_packages
from nnx_ppo.recordings.layout import SUFFIX
from nnx_ppo.recordings.progress import counting
from nnx_ppo.recordings.reading import Recording, open_recording
from nnx_ppo.recordings.recorder import record
from nnx_ppo.recordings.report import Report as ReportContents
from nnx_ppo.recordings.report import write_report

HTML = ".html"


@dataclasses.dataclass(frozen=True)
class Report:
    """Write a report of a run: configuration, learning curves, evaluation, health of the layers, pictures, film."""

    run_folder: RunPath
    """Folder that nnx-ppo train made."""
    out: Annotated[pathlib.Path | None, option("FILE.html", default="report.html in the run folder")] = None
    """File to write. One that is there is replaced."""
    recording: Annotated[pathlib.Path | None, option("RECORDING.zarr", default="the newest in the run folder")] = None
    """Recording to show. Where there is none, one episode of four environments is recorded for the report, and not
    kept."""
    episodes: int = 64
    """Episodes of the evaluation, run in parallel."""
    seed: int = 0
    """Seed of start states."""
    cache: bool = True
    """Keep compiled programs on disk for the next run."""

    def run(self) -> None:
        """Evaluate, read the recording, draw, and write the file."""
        out = self.out or self.run_folder / f"report{HTML}"
        if out.suffix != HTML:
            raise ValueError(f"--out must name a file that ends in {HTML}, got {out}.")
        require_counts(episodes=self.episodes)
        if self.recording is not None:
            require_recording(self.recording)
        analysis_packages("jinja2", "matplotlib", "zarr")
        if self.cache:
            enable_compilation_cache()
        folder, config, env, network, checkpoint = restore_checkpoint(self.run_folder)
        steps, total = steps_of(checkpoint) or 0, config.train.ppo.total_steps
        require_place(out, replace=True)
        metrics = evaluate(config.env, env, network, self.episodes, config.train.eval.max_episode_length, self.seed)
        with (
            self._recording(folder, config, env, network) as recording,
            counting("reading the recording", "chunks") as on_progress,
        ):
            layers = contents.layer_sections(recording, on_progress)
        sections = (
            contents.learning_section(folder),
            contents.evaluation_section(metrics, self.episodes, steps),
            contents.film_section(folder),
            *layers,
            contents.configuration_section(folder, config),
        )
        name = folder.path.absolute().name
        trained = f"{steps:,} environment steps" if steps >= total else f"{steps:,} of {total:,} environment steps"
        subtitle = f"{config.env}, {trained}, seed {config.train.seed}"
        shown = tuple(section for section in sections if section is not None)
        with saving(out):
            write_report(out, ReportContents(f"Report of {name}", shown, subtitle))
        stdout.print(f"Report: {out} ({out.stat().st_size / 1e6:,.1f} MB)", soft_wrap=True)

    @contextlib.contextmanager
    def _recording(
        self, folder: RunFolder, config: RunConfig, env: RLEnv, network: StatefulModule
    ) -> Iterator[Recording]:
        path = self.recording or contents.newest_recording(folder, SUFFIX)
        if path is not None:
            stderr.print(f"Recording: {path}", soft_wrap=True)
            yield open_recording(path)
            return
        stderr.print("There is no recording yet: compiling one of four environments for the report.")
        with tempfile.TemporaryDirectory() as aside:
            path = pathlib.Path(aside) / f"report{SUFFIX}"
            with saving(path, "choose another place for temporary files by the variable TMPDIR"):
                length = config.train.eval.max_episode_length
                recording = record(env, network, path, n_envs=4, n_steps=length, n_episodes=1, key=as_key(self.seed))
            yield recording
