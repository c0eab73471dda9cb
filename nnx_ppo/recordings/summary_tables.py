"""Summaries of layers as tables for a terminal, and as a data set."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table

from nnx_ppo.recordings.extra import analysis_packages
from nnx_ppo.recordings.summary import LayerSummary, Peak


def layer_table(layers: Iterable[LayerSummary]) -> Table:
    """Table of :func:`summarize`'s result, for a terminal."""
    table = Table(title="What each layer did")
    table.add_column("layer", overflow="fold")
    for name in ("shape", "mean", "max |x|", "dead units"):
        table.add_column(name, justify="right")
    for layer in layers:
        shape = "scalar" if not layer.shape else " x ".join(map(str, layer.shape))
        dead = f"{layer.n_dead} of {layer.n_units}"
        if layer.n_nonfinite:
            dead += f" ({layer.n_nonfinite} non-finite values)"
        table.add_row(layer.path, shape, f"{layer.mean:.3f}", f"{layer.max_abs:.3f}", dead)
    return table


def health_table(layers: Iterable[LayerSummary]) -> Group:
    """Two tables with all that :func:`summarize` finds, for a terminal: how large each layer was, and how healthy."""
    size = _table("How large each layer was", ("units", "mean", "std", "|x| 50 %", "|x| 99 %"))
    health = _table("How healthy each layer was", ("peak", "at", "dead", "sat.", "dorm.", "dims"))
    health.caption, health.caption_justify = _CAPTION, "left"
    for layer in layers:
        style = "red" if layer.n_nonfinite else None
        levels = [layer.percentiles.get(level, np.nan) for level in (50, 99)]
        numbers = map(_number, (layer.mean, layer.std, *levels))
        size.add_row(layer.path, str(layer.n_units), *numbers, style=style)
        nonfinite = f" ({layer.n_nonfinite:,} not finite)" if layer.n_nonfinite else ""
        health.add_row(
            layer.path + nonfinite,
            _number(layer.peak.value if layer.peak else np.nan),
            _where(layer.peak),
            str(layer.n_dead),
            "-" if layer.n_saturated is None else str(layer.n_saturated),
            str(layer.n_dormant),
            "-" if np.isnan(layer.participation_ratio) else f"{layer.participation_ratio:.1f}",
            style=style,
        )
    return Group(size, health)


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left")
    table.add_column("layer", overflow="fold", min_width=12)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _number(number: float) -> str:
    return "-" if np.isnan(number) else f"{number:.3g}"


_CAPTION = (
    "peak: largest magnitude, at unit:environment:step. dead: units that never changed. sat.: units at 0.95 or beyond "
    "in 95 % of their samples, in layers within ±1. dorm.: units below 2.5 % of the layer's average magnitude. dims: "
    "participation ratio."
)


def _where(peak: Peak | None) -> str:
    return "-" if peak is None else f"{_unit_name(peak)}:{peak.env}:{peak.step}"


def _unit_name(peak: Peak | None) -> str:
    return "" if peak is None else ",".join(map(str, peak.unit)) or "0"


def summary_dataset(layers: Iterable[LayerSummary]) -> Any:
    """Turn summaries into an ``xarray.Dataset`` over ``layer``, with ``abs_percentile`` over ``percentile`` too.

    Args:
        layers: what :func:`summarize` returned.

    Raises:
        ImportError: xarray is missing.
    """
    analysis_packages("xarray")
    import xarray

    layers = list(layers)
    scalars = (
        "n_samples", "n_units", "mean", "std", "max_abs", "n_dead", "n_dormant", "n_nonfinite", "participation_ratio",
    )  # fmt: skip
    columns: dict[str, Any] = {name: ("layer", [getattr(layer, name) for layer in layers]) for name in scalars}
    saturated = [np.nan if layer.n_saturated is None else layer.n_saturated for layer in layers]
    columns["n_saturated"] = ("layer", np.array(saturated, float))
    for name in ("value", "env", "step"):
        peaks = [np.nan if layer.peak is None else getattr(layer.peak, name) for layer in layers]
        columns[f"peak_{name}"] = ("layer", np.array(peaks, float))
    columns["peak_unit"] = ("layer", [_unit_name(layer.peak) for layer in layers])
    levels = list(layers[0].percentiles) if layers else []
    table = np.array([[layer.percentiles[level] for level in levels] for layer in layers]).reshape(
        len(layers), len(levels)
    )
    columns["abs_percentile"] = (("layer", "percentile"), table)
    return xarray.Dataset(columns, coords={"layer": [layer.path for layer in layers], "percentile": levels})
