"""Pictures for a paper or a quick look: learning curves, and what every unit did during one episode.

All return a ``matplotlib`` figure that belongs to nobody else: no global state, no window; save it by
``figure.savefig(path)``. Needs the ``analysis`` extra.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Blue of the Okabe-Ito palette, and maps of colours: all can be told apart with any colour vision.
LINE = "#0072B2"
DIVERGING = "PuOr_r"
SEQUENTIAL = "cividis"
# The rest of the palette, and dashes for those who print in grey.
LINES = (LINE, "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")


@dataclasses.dataclass(frozen=True)
class Curve:
    """A metric over environment steps, with a band around it.

    Attributes:
        steps: ``[K]``, environment steps.
        mean: ``[K]``, the line.
        low: ``[K]``, lower edge of the band, or ``None`` for no band.
        high: ``[K]``, upper edge.
    """

    steps: Any
    mean: Any
    low: Any = None
    high: Any = None


def plot_learning_curves(curves: Mapping[str, Curve], ylabel: str, title: str = "") -> "Figure":
    """Draw several learning curves into one panel.

    Args:
        curves: by the name for the legend; a single one that is named like the axis gets none.
        ylabel: what the curves show.
        title: title of the figure.

    Raises:
        ValueError: no curve.
    """
    if not curves:
        raise ValueError("there is no curve to draw: curves is empty.")
    figure = new_figure((6.4, 4.0))
    axes = figure.subplots()
    for i, (label, curve) in enumerate(curves.items()):
        color, dash = LINES[i % len(LINES)], DASHES[i // len(LINES) % len(DASHES)]
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.steps, curve.low, curve.high, color=color, alpha=0.2, linewidth=0)
        axes.plot(curve.steps, curve.mean, dash, color=color, marker="o", markersize=3, label=label)
    axes.set(xlabel="environment steps", ylabel=ylabel, title=title)
    axes.xaxis.set_major_locator(_few_ticks())
    axes.xaxis.set_major_formatter(_thousands())
    axes.grid(alpha=0.3)
    if list(curves) != [ylabel]:
        axes.legend(loc="best", frameon=False)
    return figure


def plot_learning_curve(steps: Any, reward: Any, low: Any = None, high: Any = None, title: str = "") -> "Figure":
    """Draw evaluation reward over environment steps.

    Args:
        steps: ``[K]``, environment steps at each evaluation.
        reward: ``[K]``, mean episode reward.
        low: ``[K]``, lower edge of a band over episodes, e.g. the 25th percentile; ``None`` for no band.
        high: ``[K]``, upper edge.
        title: title of the figure.
    """
    figure = new_figure((6.4, 4.0))
    axes = figure.subplots()
    if low is not None and high is not None:
        axes.fill_between(steps, low, high, color=LINE, alpha=0.2, linewidth=0, label="middle half of the episodes")
    axes.plot(steps, reward, color=LINE, marker="o", markersize=4, label="mean episode reward")
    axes.set(xlabel="environment steps", ylabel="evaluation reward (sum over the episode)", title=title)
    axes.xaxis.set_major_locator(_few_ticks())
    axes.xaxis.set_major_formatter(_thousands())
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    return figure


def plot_activations(activations: Mapping[str, Any], dones: Any, env: int = 0, title: str = "") -> "Figure":
    """Draw a heat map, units over time, of each layer during one episode.

    The colours of a layer are centred on 0 and end at the 99th percentile of its absolute activations; where values
    lie beyond, the bar of colours ends in an arrow.

    Args:
        activations: flat canonical path to array ``[T, N, ...]``; layers without unit axis are left out.
        dones: ``[T, N]``: the episode had ended before the step.
        env: which of the ``N`` episodes.
        title: title of the figure.

    Raises:
        ValueError: no layer to draw, or no such episode.
    """
    n_envs = np.asarray(dones).shape[1]
    if not 0 <= env < n_envs:
        raise ValueError(f"env must be one of the {n_envs} episodes recorded, 0 to {n_envs - 1}, got {env}.")
    length = int((~np.asarray(dones).astype(bool))[:, env].sum())
    layers = {path: np.asarray(x)[:length, env] for path, x in activations.items() if np.ndim(x) > 2}
    if not layers:
        raise ValueError(f"no layer with a unit axis among {sorted(activations)}: there is nothing to draw.")
    heights = [max(0.55, min(1.8, x[0].size / 30)) for x in layers.values()]
    figure = new_figure((8.0, 1.0 + sum(heights) + 0.45 * len(heights)))
    panels = figure.subplots(len(layers), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (path, x) in zip(panels, layers.items(), strict=True):
        _draw_layer(axes, path, x.reshape(length, -1).astype(np.float64))
    panels[-1].set_xlabel("time (environment steps); colour: activation")
    figure.suptitle(title)
    return figure


def _draw_layer(axes: "Axes", path: str, x: np.ndarray) -> None:
    finite = np.abs(x[np.isfinite(x)])
    limit = float(np.percentile(finite, 99)) if finite.size else 0.0
    limit = limit or 1.0
    image = axes.imshow(
        x.T, aspect="auto", origin="lower", interpolation="nearest", cmap=DIVERGING, vmin=-limit, vmax=limit
    )
    axes.set_title(path, fontsize=9, loc="left", pad=3)
    axes.set_ylabel("unit", fontsize=8)
    axes.set_yticks(sorted({0, x.shape[1] - 1}))
    axes.tick_params(labelsize=8)
    bar = axes.figure.colorbar(
        image, ax=axes, pad=0.01, aspect=8, ticks=[-limit, 0, limit], format="%.2g", extend=extend(x, limit)
    )
    bar.ax.tick_params(labelsize=7)


def extend(x: np.ndarray, limit: float) -> str:
    """Which ends of a bar of colours that covers ``-limit`` to ``limit`` get an arrow, as values lie beyond them."""
    below, above = bool((x < -limit).any()), bool((x > limit).any())
    return {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[below, above]


def new_figure(size: tuple[float, float]) -> "Figure":
    """Return an empty figure in the style of all pictures here.

    Args:
        size: width and height in inches.

    Raises:
        ImportError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'nnx-ppo[analysis]'") from error
    return Figure(figsize=size, layout="constrained", dpi=150)


def _few_ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(5, integer=True)


def _thousands() -> Any:
    from matplotlib.ticker import StrMethodFormatter

    return StrMethodFormatter("{x:,.0f}")
