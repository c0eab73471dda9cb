"""Pictures of single units: a heat map over time, traces, and histograms of whole layers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nnx_ppo.recordings.components import principal_components
from nnx_ppo.recordings.plots import DIVERGING, LINE, extend, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EVENT = "#7F7F7F"
MAX_TRACES = 20
MAX_LABEL = 28


def plot_heat_map(
    x: Any,
    *,
    sort: str | None = None,
    normalize: bool = False,
    time_step: int | float | None = None,
    events: Any = (),
    title: str = "",
) -> "Figure":
    """Draw units over time as colours, centred on 0; they end at the 99th percentile of ``|x|``.

    Args:
        x: activations of one environment ``[T, ...]``; feature dimensions are flattened.
        sort: order of the units, from bottom to top: ``"peak"``, by the step of their largest value; ``"mean"``, by
            their mean; ``"correlation"``, by their angle in the plane of the first two principal components, which
            brings units together that move together.
        normalize: show each unit as z-scores, its mean taken off and its standard deviation made 1.
        time_step: seconds of a step; without it time is in steps.
        events: numbers of steps to mark, e.g. the starts of episodes.
        title: title of the figure.

    Raises:
        ValueError: nothing to draw, or an unknown order.
    """
    x = _units_over_time(x)
    order = unit_order(x, sort)
    if normalize:
        spread = x.std(axis=0)
        x = (x - x.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    finite = np.abs(x[np.isfinite(x)])
    limit = (float(np.percentile(finite, 99)) if finite.size else 0.0) or 1.0
    figure = new_figure((8.0, float(np.clip(1.5 + x.shape[1] / 25, 2.6, 7.0))))
    axes = figure.subplots()
    scale = time_step or 1
    image = axes.imshow(
        x[:, order].T,
        aspect="auto",
        origin="lower",
        interpolation="nearest",
        cmap=DIVERGING,
        vmin=-limit,
        vmax=limit,
        extent=(-0.5 * scale, (len(x) - 0.5) * scale, -0.5, x.shape[1] - 0.5),
    )
    for event in events:
        axes.axvline(event * scale, color=EVENT, linewidth=0.8, linestyle="--")
    axes.set(xlabel=time_label(time_step), ylabel=_SORTED[sort], title=title)
    axes.set_yticks(sorted({0, x.shape[1] - 1}))
    figure.colorbar(image, ax=axes, pad=0.01, label="z-score" if normalize else "activation", extend=extend(x, limit))
    return figure


def unit_order(x: Any, sort: str | None) -> np.ndarray:
    """Return the order of units that :func:`plot_heat_map` draws.

    Args:
        x: ``[T, U]``.
        sort: see there.

    Raises:
        ValueError: an unknown order.
    """
    x = np.asarray(x)
    if sort is None:
        return np.arange(x.shape[1])
    if sort == "peak":
        return np.argsort(np.argmax(x, axis=0), kind="stable")
    if sort == "mean":
        return np.argsort(x.mean(axis=0), kind="stable")
    if sort == "correlation":
        directions = principal_components(x, min(2, *x.shape)).directions
        angles = np.arctan2(directions[-1], directions[0]) if len(directions) > 1 else directions[0]
        return np.argsort(angles, kind="stable")
    raise ValueError(f"sort must be None, 'peak', 'mean' or 'correlation', got {sort!r}.")


def plot_traces(
    x: Any,
    units: Any,
    *,
    time_step: int | float | None = None,
    events: Any = (),
    title: str = "",
) -> "Figure":
    """Draw single units over time, a panel for each.

    Args:
        x: activations of one environment ``[T, ...]``; feature dimensions are flattened.
        units: numbers of some of them, at most 20.
        time_step: seconds of a step; without it time is in steps.
        events: numbers of steps to mark, e.g. the starts of episodes.
        title: title of the figure.

    Raises:
        ValueError: no unit, too many, or one that there is not.
    """
    x = _units_over_time(x)
    if not 0 < len(units) <= MAX_TRACES:
        raise ValueError(f"units must be from 1 to {MAX_TRACES} numbers of units, got {len(units)}: choose some.")
    if wrong := [unit for unit in units if not 0 <= unit < x.shape[1]]:
        raise ValueError(f"units must be from 0 to {x.shape[1] - 1}, which the layer has, got {wrong}.")
    figure = new_figure((8.0, 1.2 + 0.8 * len(units)))
    panels = figure.subplots(len(units), 1, sharex=True, squeeze=False)[:, 0]
    times = np.arange(len(x)) * (time_step or 1)
    for axes, unit in zip(panels, units, strict=True):
        for event in events:
            axes.axvline(event * (time_step or 1), color=EVENT, linewidth=0.8, linestyle="--")
        axes.plot(times, x[:, unit], color=LINE, linewidth=1)
        axes.set_ylabel(f"unit {unit}", rotation=0, ha="right", va="center")
        axes.locator_params(axis="y", nbins=3)
        axes.margins(x=0.01)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel(time_label(time_step))
    figure.suptitle(title)
    figure.supylabel("activation", fontsize=10)
    return figure


def plot_histograms(activations: Mapping[str, Any], valid: Any, *, n_bins: int = 60, title: str = "") -> "Figure":
    """Draw how the activations of each layer are distributed, over units, steps and environments.

    Counts are on a logarithmic axis, so that rare large values are seen. What is not finite is left out.

    Args:
        activations: canonical path to array ``[T, N, ...]``.
        valid: bool ``[T, N]``, which steps count.
        n_bins: bins between the smallest and the largest value.
        title: title of the figure.

    Raises:
        ValueError: no layer.
    """
    if not activations:
        raise ValueError("there is no layer to draw: activations is empty.")
    from matplotlib.ticker import NullFormatter

    n_columns = min(3, len(activations))
    n_rows = -(-len(activations) // n_columns)
    figure = new_figure((3.2 * n_columns, 0.6 + 2.0 * n_rows))
    panels = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for axes, (path, x) in zip(panels, activations.items(), strict=False):
        values = np.asarray(x)[np.asarray(valid).astype(bool)].ravel().astype(np.float64)
        axes.hist(values[np.isfinite(values)], bins=n_bins, color=LINE, log=True)
        axes.set_title(short(path), fontsize=9)
        axes.locator_params(axis="x", nbins=4)
        axes.set_ylim(bottom=0.5)  # one sample is seen, and a power of ten is on every axis
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(labelsize=8)
    for axes in panels[len(activations) :]:
        axes.set_visible(False)
    figure.supxlabel("activation", fontsize=10)
    figure.supylabel("samples", fontsize=10)
    figure.suptitle(title)
    return figure


def time_label(time_step: int | float | None, since: str = "") -> str:
    """Label of a time axis.

    Args:
        time_step: seconds of a step, ``None`` where time is in steps.
        since: what it starts at, e.g. ``"since the event"``.
    """
    return f"time{since and ' '}{since} ({'environment steps' if time_step is None else 's'})"


def short(path: str) -> str:
    """A path that fits a panel: of a long one its end, which tells layers apart."""
    return path if len(path) <= MAX_LABEL else "…" + path[-(MAX_LABEL - 1) :]


_SORTED = {
    None: "unit",
    "peak": "unit, sorted by its peak",
    "mean": "unit, sorted by its mean",
    "correlation": "unit, sorted by correlation",
}


def _units_over_time(x: Any) -> np.ndarray:
    x = np.asarray(x)
    if x.ndim < 1 or not x.size:
        raise ValueError(f"there is nothing to draw: expected activations [T, units], got shape {list(x.shape)}.")
    return x.reshape(len(x), -1).astype(np.float64)
