"""How alike the layers of two recordings are: linear centred kernel alignment (CKA).

Kornblith et al. (2019), "Similarity of Neural Network Representations Revisited".
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nnx_ppo.recordings.plots import SEQUENTIAL, new_figure
from nnx_ppo.recordings.reading import Recording
from nnx_ppo.recordings.unit_plots import short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_SAMPLES = 10_000


@dataclasses.dataclass(frozen=True)
class Similarity:
    """Linear CKA between all layers of two recordings.

    Attributes:
        rows: layers of the first.
        columns: layers of the second.
        cka: ``[len(rows), len(columns)]``, 0 to 1, NaN for a layer that never moved.
        n_samples: samples that were compared.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cka: np.ndarray
    n_samples: int


def linear_cka(x: Any, y: Any) -> float:
    """Return ``|Y'X|^2 / (|X'X| |Y'Y|)`` of centred ``X`` and ``Y``, with Frobenius norms: 1 for equal geometry.

    It stays the same when either side is rotated, scaled as a whole, or shifted.

    Args:
        x: ``[S, P]``.
        y: ``[S, Q]``, the same samples.

    Returns:
        From 0 to 1; NaN where one side does not vary.

    Raises:
        ValueError: numbers of samples that differ.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y):
        raise ValueError(f"expected the same samples, [S, P] and [S, Q], got {list(x.shape)} and {list(y.shape)}.")
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    scale = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(np.linalg.norm(y.T @ x) ** 2 / scale) if scale > 0 else float("nan")


def compare_recordings(
    first: Recording | Mapping[str, Any],
    second: Recording | Mapping[str, Any],
    valid: Any = None,
    *,
    max_samples: int = MAX_SAMPLES,
) -> Similarity:
    """Compare all layers of one recording with all of another, step by step.

    CKA compares answers to the same inputs. Two networks that act by themselves see different observations, unless the
    environment leaves them no influence; their layers are then compared at equal times, no more.

    Args:
        first: a recording on disk, or activations in memory, canonical path to array ``[T, N, ...]``.
        second: another one with as many steps and environments, or the same one.
        valid: of activations in memory, bool ``[T, N]``, which steps count.
        max_samples: at most as many samples, spread evenly over those that count in both.

    Raises:
        ValueError: recordings of different shapes, or no step that counts in both.
    """
    masks = [_valid(each, valid) for each in (first, second)]
    if masks[0].shape != masks[1].shape:
        raise ValueError(
            f"the recordings must have the same steps and environments, got {list(masks[0].shape)} and "
            f"{list(masks[1].shape)}: record both with the same n_envs and n_steps."
        )
    steps, envs = np.nonzero(masks[0] & masks[1])
    if not steps.size:
        raise ValueError("no step counts in both recordings.")
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(max_samples, len(steps))).round().astype(int))
    steps, envs = steps[chosen], envs[chosen]
    left = {path: _samples(first, path, steps, envs) for path in _paths(first)}
    right = left if second is first else {path: _samples(second, path, steps, envs) for path in _paths(second)}
    cka = np.array([[linear_cka(x, y) for y in right.values()] for x in left.values()])
    return Similarity(tuple(left), tuple(right), cka, len(steps))


def plot_similarity(
    similarity: Similarity, *, first: str = "first recording", second: str = "second recording", title: str = ""
) -> "Figure":
    """Draw :func:`compare_recordings` as a table of colours, with its numbers.

    Args:
        similarity: what to draw.
        first: name of the recording in the rows.
        second: name of that in the columns.
        title: title of the figure.
    """
    n_rows, n_columns = similarity.cka.shape
    figure = new_figure((3.0 + 0.55 * n_columns, 2.6 + 0.42 * n_rows))
    axes = figure.subplots()
    image = axes.imshow(similarity.cka, cmap=SEQUENTIAL, vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(n_columns), [short(path) for path in similarity.columns], rotation=60, ha="right")
    axes.set_yticks(range(n_rows), [short(path) for path in similarity.rows])
    axes.tick_params(labelsize=8)
    axes.set(xlabel=second, ylabel=first, title=title)
    for (row, column), value in np.ndenumerate(similarity.cka):
        dark = value < 0.55 or np.isnan(value)
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color="white" if dark else "black")
    figure.colorbar(image, ax=axes, label="linear CKA")
    return figure


def _valid(recording: Any, valid: Any) -> np.ndarray:
    if isinstance(recording, Recording):
        return recording.valid()
    if valid is None:
        raise ValueError("activations in memory need valid, bool [T, N].")
    return np.asarray(valid).astype(bool)


def _paths(recording: Any) -> tuple[str, ...]:
    return recording.layers if isinstance(recording, Recording) else tuple(recording)


def _samples(recording: Any, path: str, steps: np.ndarray, envs: np.ndarray) -> np.ndarray:
    """Chosen samples of a layer ``[S, U]``, read chunk by chunk."""
    if not isinstance(recording, Recording):
        return np.asarray(recording[path])[steps, envs].reshape(len(steps), -1)
    found = []
    for span in recording.spans():
        here = (steps >= span.start) & (steps < span.stop)
        if here.any():
            found.append(recording.layer(path, span)[steps[here] - span.start, envs[here]])
    return np.concatenate(found).reshape(len(steps), -1)
