"""How many directions the activity of a layer fills: the participation ratio, from one chunk of samples after another.

``tr(C)^2 / tr(C^2)`` of the covariance ``C`` needs no eigenvalues: ``tr(C^2)`` is the sum of its squared entries.
"""

from typing import Any

import numpy as np

MAX_EXACT_UNITS = 2048
"""Units up to which all of the covariance is kept, which takes 32 MiB then."""

N_PROBES = 512
"""Random directions for wider layers."""


class Dimensions:
    """Participation ratio of one layer.

    With more than :data:`MAX_EXACT_UNITS` units it is an estimate: for random ``g`` of entries -1 and 1, ``|C g|^2`` is
    ``tr(C^2)`` on average (Hutchinson 1989, "A stochastic estimator of the trace of the influence matrix for Laplacian
    smoothing splines"). Over :data:`N_PROBES` of them its standard error is at most 6 %, where one direction has all
    the variance; it falls with the square root of the number of directions. The same ``g`` are drawn each time.

    Args:
        n_units: units ``U``.
    """

    def __init__(self, n_units: int):
        self.n = 0
        self._offset: Any = None
        self._sum = self._squares = np.zeros(n_units)
        self._probes = _probes(n_units) if n_units > MAX_EXACT_UNITS else None
        self._products = np.zeros((n_units, n_units if self._probes is None else N_PROBES))

    def add(self, samples: np.ndarray) -> None:
        """Take in finite samples, float64 ``[n, U]``."""
        if self._offset is None:
            # Products around a typical value lose no digits to a large mean.
            self._offset = samples.mean(axis=0)
        centred = samples - self._offset
        self.n += len(samples)
        self._sum = self._sum + centred.sum(axis=0)
        self._squares = self._squares + (centred**2).sum(axis=0)
        self._products += centred.T @ (centred if self._probes is None else centred @ self._probes)

    def participation_ratio(self) -> float:
        """NaN for less than two units or samples, and for a layer that never moves."""
        if self.n < 2 or len(self._products) < 2:
            return float("nan")
        mean = self._sum / self.n
        total = float((self._squares / self.n - mean**2).sum())
        if self._probes is None:
            return _ratio(total, float(np.sum((self._products / self.n - np.outer(mean, mean)) ** 2)))
        images = self._products / self.n - np.outer(mean, mean @ self._probes)
        ratio = _ratio(total, float(np.sum(images**2)) / N_PROBES)
        return float(np.clip(ratio, 1, min(len(self._products), self.n - 1)))


def _ratio(trace: float, trace_of_square: float) -> float:
    return trace**2 / trace_of_square if trace_of_square > 0 else float("nan")


def _probes(n_units: int) -> np.ndarray:
    return np.random.default_rng(0).choice(np.array([-1.0, 1.0]), size=(n_units, N_PROBES))
