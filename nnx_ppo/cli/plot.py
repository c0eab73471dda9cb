"""``nnx-ppo plot``: learning curves of one or several runs, as a picture and in the terminal."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tyro
from rich.bar import Bar
from rich.table import Table

from nnx_ppo.cli.console import stdout
from nnx_ppo.cli.progress import REWARD
from nnx_ppo.cli.run_config import RunConfig
from nnx_ppo.cli.run_folder import RunFolder, RunFolderError
from nnx_ppo.recordings.plots import Curve, plot_learning_curves

ROWS = 12
BAR_WIDTH = 30


PICTURES = (".png", ".pdf", ".svg")


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draw learning curves. Runs that differ in nothing but their seed become one curve, with a band from the lowest to
    the highest seed; the band of a single run is the middle half of its episodes."""

    runs: tyro.conf.Positional[tuple[pathlib.Path, ...]]
    """Folders that nnx-ppo train made."""
    out: pathlib.Path | None = None
    """Picture to write (.png, .pdf, .svg); by default learning_curve.png in the folder of the first run."""
    metric: str = REWARD
    """Metric to draw over environment steps."""

    def run(self) -> None:
        """Draw, and say where the picture is."""
        if not self.runs:
            raise ValueError("name at least one run folder: nnx-ppo plot RUN [RUN ...].")
        out = self.out or self.runs[0] / "learning_curve.png"
        if out.suffix not in PICTURES:
            raise ValueError(f"--out must name a picture that ends in one of {', '.join(PICTURES)}, got {out}.")
        groups = group_by_seed([RunFolder.open(path) for path in self.runs])
        curves = {label: curve_of([series(run, self.metric) for run in runs]) for label, runs in groups.items()}
        for label, curve in curves.items():
            stdout.print(curve_table(label, self.metric, curve))
        plot_learning_curves(curves, ylabel=self.metric).savefig(out)
        stdout.print(f"Picture: {out}", soft_wrap=True)


def group_by_seed(runs: Sequence[RunFolder]) -> dict[str, list[RunFolder]]:
    """Runs with equal configuration but for the seed, by a name for them."""
    groups: list[tuple[RunConfig, list[RunFolder]]] = []
    for run in runs:
        config = run.config()
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, seed=0))
        for other, members in groups:
            if other == config:
                members.append(run)
                break
        else:
            groups.append((config, [run]))
    named: dict[str, list[RunFolder]] = {}
    for _, members in groups:
        label = _label([run.path.absolute().name for run in members])
        named[label if label not in named else str(members[0].path)] = members
    return named


def _label(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} ({len(names)} seeds)"


def series(run: RunFolder, metric: str) -> dict[int, dict[str, Any]]:
    """Return values and percentiles of a metric, by steps; a resumed run's new rows replace the old ones."""
    rows = run.metrics()
    if not rows:
        raise RunFolderError(f"{run.metrics_file} holds no training log: train with --log jsonl (the default).")
    series: dict[int, dict[str, Any]] = {}
    for row in rows:
        now = row["steps"]
        if series and now < next(reversed(series)):
            series = {steps: kept for steps, kept in series.items() if steps <= now}
        series[now] = series.get(now, {}) | row
    series = {steps: row for steps, row in series.items() if metric in row}
    if not series:
        names = sorted({name for row in rows for name in row})
        raise ValueError(f"{run.path} has logged no {metric!r}; it has {', '.join(names)}.")
    # A mean over episodes comes with their percentiles, under the same name but for its end.
    stem = metric.removesuffix("mean")
    return {
        steps: {"value": row[metric], "percentiles": {p: row[stem + p] for p in ("p25", "p75") if stem + p in row}}
        for steps, row in series.items()
    }


def curve_of(seeds: Sequence[dict[int, dict[str, Any]]]) -> Curve:
    """Mean over runs at the steps that all of them have, with a band.

    Args:
        seeds: per run and steps, ``{"value": ..., "percentiles": {"p25": ..., "p75": ...}}``.

    Raises:
        ValueError: no step is common to all.
    """
    steps = sorted(set(seeds[0]).intersection(*seeds[1:]))
    if not steps:
        raise ValueError("the runs of one configuration have no step in common: draw them one by one.")
    values = np.array([[rows[step]["value"] for step in steps] for rows in seeds])
    if len(seeds) > 1:
        return Curve(steps, values.mean(axis=0), values.min(axis=0), values.max(axis=0))
    return Curve(steps, values[0], *(_percentiles(seeds[0], steps, p) for p in ("p25", "p75")))


def _percentiles(rows: dict[int, dict[str, Any]], steps: list[int], p: str) -> list[float] | None:
    found = [rows[step].get("percentiles", {}).get(p) for step in steps]
    return None if None in found else found


def curve_table(label: str, metric: str, curve: Curve) -> Table:
    """A curve as a table, at most :data:`ROWS` rows, with a bar from the lowest value of the curve to the row's."""
    table = Table("steps", metric, "", title=label)
    for column in table.columns[:2]:
        column.justify = "right"
    finite = [value for value in curve.mean if np.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    for i in sorted(set(np.linspace(0, len(curve.steps) - 1, ROWS).round().astype(int).tolist())):
        value = float(curve.mean[i])
        length = (value - low) / (high - low) if high > low and np.isfinite(value) else 0.0
        table.add_row(f"{curve.steps[i]:,}", f"{value:,.4g}", Bar(1.0, 0.0, length, width=BAR_WIDTH))
    return table
