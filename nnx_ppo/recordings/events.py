"""Averages around events, such as the start of an episode or a cue, over episodes of unequal length."""

import dataclasses
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nnx_ppo.recordings.plots import DASHES, LINES, new_figure
from nnx_ppo.recordings.unit_plots import EVENT, time_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Aligned:
    """A variable around every event.

    Attributes:
        lags: steps from the event ``[W]``, 0 at the event itself.
        windows: ``[E, W, ...]``, NaN where the episode had not begun or was over.
    """

    lags: np.ndarray
    windows: np.ndarray

    @property
    def count(self) -> np.ndarray:
        """Events that have a value at each lag ``[W, ...]``."""
        return (~np.isnan(self.windows)).sum(axis=0)

    @property
    def mean(self) -> np.ndarray:
        """Mean over the events that have a value ``[W, ...]``, NaN where none has."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return np.nanmean(self.windows, axis=0)

    @property
    def sem(self) -> np.ndarray:
        """Standard error of the mean ``[W, ...]``, NaN for fewer than two events."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return np.nanstd(self.windows, axis=0, ddof=1) / np.sqrt(np.maximum(self.count, 1))


def align_to_events(x: Any, events: Any, *, before: int, after: int, valid: Any = None, episode: Any = None) -> Aligned:
    """Cut out what a variable did around each event, without reaching into another episode.

    Args:
        x: ``[T, N, ...]``: a layer, a unit, the reward.
        events: bool ``[T, N]``: what to align to, e.g. ``step == 0``, ``done``, or ``reward > 0``.
        before: steps before the event.
        after: steps after it.
        valid: bool ``[T, N]``, which steps count; by default all.
        episode: int ``[T, N]``, number of the episode; by default each environment is one episode.

    Raises:
        ValueError: shapes that do not fit, no event that counts, or a negative window.
    """
    x, events = np.asarray(x, dtype=np.float64), np.asarray(events).astype(bool)
    valid = np.ones(events.shape, bool) if valid is None else np.asarray(valid).astype(bool)
    episode = np.zeros(events.shape, int) if episode is None else np.asarray(episode)
    shapes = [list(x.shape[:2])] + [list(each.shape) for each in (events, valid, episode)]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"x, events, valid and episode must share the axes [T, N], got {shapes}.")
    if before < 0 or after < 0:
        raise ValueError(f"before and after are numbers of steps, at least 0, got {before} and {after}.")
    steps, envs = np.nonzero(events & valid)
    if not steps.size:
        raise ValueError("there is no event at a step that counts: events & valid is false everywhere.")
    lags = np.arange(-before, after + 1)
    where = steps[:, None] + lags
    inside = (where >= 0) & (where < len(x))
    where, env = np.clip(where, 0, len(x) - 1), envs[:, None]
    same = inside & valid[where, env] & (episode[where, env] == episode[steps, envs][:, None])
    windows = np.where(same.reshape(*same.shape, *[1] * (x.ndim - 2)), x[where, env], np.nan)
    return Aligned(lags, windows)


def plot_aligned(
    aligned: Mapping[str, Aligned], *, ylabel: str = "activation", time_step: int | float | None = None, title: str = ""
) -> "Figure":
    """Draw means around an event with a band of one standard error, and how many events each point is the mean of.

    Args:
        aligned: by the name for the legend, windows ``[E, W]`` (or ``[E, W, ...]``, whose mean over features is drawn).
        ylabel: what is averaged, with its unit.
        time_step: seconds of a step; without it time is in steps.
        title: title of the figure.

    Raises:
        ValueError: nothing to draw.
    """
    if not aligned:
        raise ValueError("there is nothing to draw: aligned is empty.")
    figure = new_figure((7.2, 4.6))
    axes, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for i, (label, each) in enumerate(aligned.items()):
        color, dash = LINES[i % len(LINES)], DASHES[i // len(LINES) % len(DASHES)]
        windows = each.windows.reshape(*each.windows.shape[:2], -1).mean(axis=2)
        flat, times = Aligned(each.lags, windows), each.lags * (time_step or 1)
        axes.fill_between(times, flat.mean - flat.sem, flat.mean + flat.sem, color=color, alpha=0.25, linewidth=0)
        axes.plot(times, flat.mean, dash, color=color, label=label)
        counts.step(times, flat.count, where="mid", linestyle=dash, color=color)
    for panel in (axes, counts):
        panel.axvline(0, color=EVENT, linewidth=0.8, linestyle="--")
        panel.spines[["top", "right"]].set_visible(False)
    axes.set(ylabel=f"{ylabel}\n(mean ± standard error)", title=title)
    figure.legend(loc="outside right upper", frameon=False)
    counts.set(ylabel="events", xlabel=time_label(time_step, "from the event"), ylim=(0, None))
    counts.locator_params(axis="y", nbins=3, integer=True)
    return figure
