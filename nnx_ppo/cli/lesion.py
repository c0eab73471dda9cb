"""``nnx-ppo lesion``: which layers, or which units of a layer, a trained policy needs."""

import csv
import dataclasses
import json
import pathlib
from typing import Annotated, Any

from rich.bar import Bar
from rich.table import Table

from nnx_ppo.cli.checkpoint_choice import CheckpointChoice, Choice
from nnx_ppo.cli.compilation_cache import enable_compilation_cache
from nnx_ppo.cli.console import stderr, stdout
from nnx_ppo.cli.options import RunPath, option
from nnx_ppo.cli.output_files import require_place, write_output
from nnx_ppo.cli.parsing import require_counts
from nnx_ppo.recordings.lesions import Lesion as LesionResult
from nnx_ppo.recordings.lesions import LesionStudy, lesion_study
from nnx_ppo.recordings.progress import counting

FILES = (".json", ".csv")
COLUMNS = ("layer", "unit", "episode_reward", "drop", "standard_error")
BAR_WIDTH = 16


@dataclasses.dataclass(frozen=True)
class Lesion:
    """Rank layers, or the units of one, by how much the reward of an episode drops when each is silenced."""

    run_folder: RunPath
    """Folder that nnx-ppo train made."""
    checkpoint: Choice = dataclasses.field(default_factory=CheckpointChoice)
    units: Annotated[str | None, option("LAYER", default="whole layers are silenced")] = None
    """Path of a layer whose units to silence one by one, e.g. 1/action/0."""
    episodes: int = 64
    """Episodes of each lesion, run in parallel; all lesions see the same start states."""
    max_steps: Annotated[int | None, option("INT", default="as in the training's evaluations")] = None
    """Steps after which an episode is cut."""
    include: Annotated[tuple[str, ...], option("PATTERN ...", default="all but samplers")] = ()
    """Layers to silence, as glob patterns on their paths, e.g. '*/action/*'."""
    exclude: Annotated[tuple[str, ...], option("PATTERN ...", default="none")] = ()
    """Layers to leave out, likewise."""
    top: int = 20
    """Rows of the table; a file holds all."""
    out: Annotated[pathlib.Path | None, option("FILE.json|FILE.csv", default="none")] = None
    """File to write as well. One that is there is replaced."""
    seed: int = 0
    """Seed of the start states."""
    cache: bool = True
    """Keep compiled programs on disk for the next run."""

    def run(self) -> None:
        """Silence one after the other, print the ranking, and write it."""
        self._require_options()
        if self.cache:
            enable_compilation_cache()
        _, config, env, network, _ = self.checkpoint.restore(self.run_folder)
        if self.out is not None:
            require_place(self.out, replace=True)
        stderr.print(f"Compiling the evaluation of {config.env}.")
        with counting("silencing", "lesions") as on_progress:
            study = lesion_study(
                env,
                network,
                n_episodes=self.episodes,
                max_episode_length=self.max_steps or config.train.eval.max_episode_length,
                key=self.seed,
                units_of=self.units,
                include=self.include or None,
                exclude=self.exclude or None,
                on_progress=on_progress,
            )
        stdout.print(lesion_table(study, self.top, f"{config.env}, {self.episodes} episodes each, {self.run_folder}"))
        if self.out is not None:
            write_study(self.out, study)
            stdout.print(f"File: {self.out}", soft_wrap=True)

    def _require_options(self) -> None:
        require_counts(episodes=self.episodes, max_steps=self.max_steps, top=self.top)
        if self.out is not None and self.out.suffix not in FILES:
            raise ValueError(f"--out must name a file that ends in {' or '.join(FILES)}, got {self.out}.")
        if self.units is not None and (self.include or self.exclude):
            raise ValueError("--units names one layer; --include and --exclude choose among layers: give one or other.")


def lesion_table(study: LesionStudy, top: int, title: str) -> Table:
    """The lesions with the largest drops, and a bar from no drop to the largest one."""
    table = Table(title=title, caption=_caption(study, top), caption_justify="left")
    table.add_column("silenced", overflow="fold")
    for name in ("reward", "drop", "± s.e."):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    largest = max((lesion.drop for lesion in study.lesions), default=0.0)
    table.add_row("nothing", f"{study.episode_reward:,.3f}", "", f"{study.standard_error:,.3f}", "")
    for lesion in study.lesions[:top]:
        length = max(0.0, lesion.drop / largest) if largest > 0 else 0.0
        numbers = (f"{x:,.3f}" for x in (lesion.episode_reward, lesion.drop, lesion.standard_error))
        table.add_row(_name(lesion), *numbers, Bar(1.0, 0.0, length, width=BAR_WIDTH))
    return table


def _name(lesion: LesionResult) -> str:
    return lesion.path if lesion.unit is None else f"{lesion.path} unit {lesion.unit}"


def _caption(study: LesionStudy, top: int) -> str:
    left = len(study.lesions) - top
    more = f" {left:,} with smaller drops are not shown: see --top and --out." if left > 0 else ""
    return f"drop: reward of an episode without minus with the lesion, mean over episodes.{more}"


def write_study(path: pathlib.Path, study: LesionStudy) -> None:
    """Write a study as ``.json``, or as ``.csv`` whose first row is the intact network.

    Args:
        path: file to write; a missing folder is made.
        study: what to write.
    """
    rows = [
        (lesion.path, lesion.unit, lesion.episode_reward, lesion.drop, lesion.standard_error)
        for lesion in study.lesions
    ]
    write_output(path, lambda aside: _write(aside, path.suffix, study, rows))


def _write(aside: pathlib.Path, suffix: str, study: LesionStudy, rows: list[tuple[Any, ...]]) -> None:
    if suffix == ".csv":
        with aside.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerow(("", "", study.episode_reward, 0.0, study.standard_error))
            writer.writerows(rows)
    else:
        content = {
            "n_episodes": study.n_episodes,
            "intact": {"episode_reward": study.episode_reward, "standard_error": study.standard_error},
            "lesions": [dict(zip(COLUMNS, row, strict=True)) for row in rows],
        }
        aside.write_text(json.dumps(content, indent=2))
