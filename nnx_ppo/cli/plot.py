"""``nnx-ppo plot``: learning curves of one or several runs, as a picture and in the terminal."""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import tyro
from rich.bar import Bar
from rich.table import Table

from nnx_ppo.cli.console import stderr, stdout
from nnx_ppo.cli.options import option
from nnx_ppo.cli.output_files import require_place, write_output
from nnx_ppo.cli.progress import REWARD
from nnx_ppo.cli.run_config import RunConfig
from nnx_ppo.cli.run_folder import RunFolder, RunFolderError
from nnx_ppo.envs.errors import did_you_mean
from nnx_ppo.recordings.plots import Curve, plot_learning_curves

ROWS = 12
BAR_WIDTH = 30
PICTURES = (".png", ".pdf", ".svg")


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draw learning curves. Runs that differ in nothing but their seed become one curve, with a band from the lowest to
    the highest seed; the band of a single run is the middle half of its episodes."""

    runs: tyro.conf.Positional[Annotated[tuple[pathlib.Path, ...], option("RUN ...", default="none")]] = ()
    """Folders that nnx-ppo train made."""
    out: Annotated[
        pathlib.Path | None,
        option(
            "NAME.png|.pdf|.svg", default="plots/METRIC.png in the folder of one run, learning_curves.png of several"
        ),
    ] = None
    """Picture to write."""
    metric: Annotated[str, option("METRIC")] = REWARD
    """Metric to draw over environment steps, by its name in the training log."""
    replace: bool = False
    """Write over a picture that exists."""

    def run(self) -> None:
        """Draw, and say where the picture is."""
        if not self.runs:
            raise ValueError("name at least one run folder: nnx-ppo plot RUN [RUN ...].")
        out = self._out()
        groups = group_by_seed([RunFolder.open(path) for path in self.runs])
        curves = {label: curve_of([series(run, self.metric) for run in runs]) for label, runs in groups.items()}
        figure = plot_learning_curves(curves, ylabel=self.metric)
        for table in curve_tables(curves, self.metric):
            stdout.print(table)
        write_output(out, figure.savefig)
        stdout.print(f"Picture: {out}", soft_wrap=True)

    def _out(self) -> pathlib.Path:
        if self.out is None and len(set(self.runs)) == 1:
            # Nothing but this command writes there, and that from the log of the run alone: it can be drawn anew.
            return self.runs[0] / "plots" / f"{self.metric.replace('/', '_')}.png"
        out = self.out or pathlib.Path("learning_curves.png")
        if out.suffix not in PICTURES:
            raise ValueError(f"--out must name a picture that ends in one of {', '.join(PICTURES)}, got {out}.")
        require_place(out, replace=self.replace)
        return out


def group_by_seed(runs: Sequence[RunFolder]) -> dict[str, list[RunFolder]]:
    """Runs with equal configuration but for the seed, by a name for them; of copies of a run, one."""
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
        members = _without_copies(members)
        label = _label([run.path.absolute().name for run in members])
        named[label if label not in named else str(members[0].path)] = members
    return named


def _without_copies(runs: Sequence[RunFolder]) -> list[RunFolder]:
    """Of runs of equal configuration, one of each seed: the one that has logged the most."""
    by_seed: dict[int, RunFolder] = {}
    for run in sorted(runs, key=lambda run: -len(run.metrics())):
        kept = by_seed.setdefault(run.config().train.seed, run)
        if kept is not run:
            stderr.print(
                f"{run.path} has the configuration and the seed of {kept.path}: it is a copy, and does not count.",
                style="yellow",
                soft_wrap=True,
            )
    return [run for run in runs if run in by_seed.values()]


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
        names = {name for row in rows for name in row}
        raise ValueError(f"{run.path} has logged no {metric!r}. {did_you_mean(metric, names)}")
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


def curve_tables(curves: Mapping[str, Curve], metric: str) -> Iterator[Table]:
    """Curves as tables, with a bar in each row from the lowest to the highest value of all of them.

    Args:
        curves: by the name for the title.
        metric: what they show.
    """
    values = np.concatenate([np.asarray(curve.mean, float) for curve in curves.values()])
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    for label, curve in curves.items():
        yield _table(label, metric, curve, float(low), float(high), common=len(curves) > 1)


def _table(label: str, metric: str, curve: Curve, low: float, high: float, *, common: bool) -> Table:
    shown = sorted(set(np.linspace(0, len(curve.steps) - 1, ROWS).round().astype(int).tolist()))
    scale = f"bar: from {low:,.4g} to {high:,.4g}" + (", the same in all tables" if common else "")
    rows = f"; {len(shown)} of {len(curve.steps)} rows" if len(shown) < len(curve.steps) else ""
    table = Table(title=label, caption=scale + rows, caption_justify="left")
    table.add_column("steps", justify="right", no_wrap=True)
    table.add_column(metric, justify="right", overflow="fold")
    table.add_column("", max_width=BAR_WIDTH)
    for i in shown:
        value = float(curve.mean[i])
        length = (value - low) / (high - low) if high > low and np.isfinite(value) else 0.0
        table.add_row(f"{curve.steps[i]:,}", f"{value:,.4g}", Bar(1.0, 0.0, length))
    return table
