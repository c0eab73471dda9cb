"""The activity of a layer as paths through the plane of its first two principal components."""

from typing import TYPE_CHECKING, Any

import numpy as np

from nnx_ppo.recordings.components import principal_components
from nnx_ppo.recordings.plots import SEQUENTIAL, new_figure
from nnx_ppo.recordings.unit_plots import time_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_trajectories(
    x: Any,
    valid: Any,
    episode: Any = None,
    *,
    color: Any = None,
    color_label: str = "",
    colormap: str = SEQUENTIAL,
    time_step: int | float | None = None,
    title: str = "",
) -> "Figure":
    """Draw the activity of a layer as paths through the plane of its first two principal components, one per episode.

    Args:
        x: ``[T, N, ...]``, at least two units.
        valid: bool ``[T, N]``, which steps count.
        episode: int ``[T, N]``, number of the episode; a path ends with it. Without it each environment is one episode.
        color: a variable to colour the paths by ``[T, N]``; by default the time since the episode's start.
        color_label: what it is, with its unit.
        colormap: of matplotlib; ``"twilight"`` for an angle.
        time_step: seconds of a step; without it time is in steps.
        title: title of the figure.

    Raises:
        ValueError: shapes that do not fit, or fewer than two units or samples.
    """
    x, valid = np.asarray(x), np.asarray(valid).astype(bool)
    if x.shape[:2] != valid.shape or (color is not None and np.shape(color) != valid.shape):
        raise ValueError(
            f"x, valid and color must share the axes [T, N], got {list(x.shape)}, {list(valid.shape)}"
            + ("." if color is None else f" and {list(np.shape(color))}.")
        )
    x = x.reshape(*x.shape[:2], -1)
    if x.shape[2] < 2:
        raise ValueError("a plane needs at least two units, and the layer has one.")
    components = principal_components(x[valid], 2)
    paths = _paths(valid, np.zeros(valid.shape, int) if episode is None else np.asarray(episode))
    if color is None:
        color = _time_since_start(valid.shape, paths) * (time_step or 1)
        color_label = time_label(time_step, "since the episode's start")
    figure = new_figure((6.4, 4.8))
    axes = figure.subplots()
    lines = _draw_paths(axes, components.project(x), np.asarray(color, np.float64), paths, colormap)
    figure.colorbar(lines, ax=axes, label=color_label)
    share = 100 * components.explained
    axes.set(
        xlabel=f"component 1 ({share[0]:.0f} % of variance)",
        ylabel=f"component 2 ({share[1]:.0f} % of variance)",
        title=title,
    )
    return figure


def _paths(valid: np.ndarray, episode: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Environment and steps of each episode."""
    found = []
    for env in range(valid.shape[1]):
        for number in np.unique(episode[valid[:, env], env]):
            found.append((env, np.flatnonzero(valid[:, env] & (episode[:, env] == number))))
    return found


def _time_since_start(shape: tuple[int, ...], paths: list[tuple[int, np.ndarray]]) -> np.ndarray:
    times = np.zeros(shape)
    for env, steps in paths:
        times[steps, env] = steps - steps[0]
    return times


def _draw_paths(
    axes: Any, points: np.ndarray, color: np.ndarray, paths: list[tuple[int, np.ndarray]], colormap: str
) -> Any:
    from matplotlib.collections import LineCollection

    segments, values, starts = [], [], []
    for env, steps in paths:
        path = points[steps, env]
        starts.append(path[0])
        segments += [path[i : i + 2] for i in range(len(path) - 1)]
        values += list(color[steps[:-1], env])
    lines = LineCollection(segments, cmap=colormap, linewidths=1.2, alpha=0.9)
    lines.set_array(np.array(values))
    axes.add_collection(lines)
    axes.plot(*np.array(starts).T, "o", color="black", markersize=4, label="start of an episode")
    axes.autoscale()
    axes.figure.legend(loc="outside lower right", frameon=False, fontsize=8)
    return lines
