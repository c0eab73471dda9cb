"""Statistics of one layer that take in one chunk after another, so that a recording need not fit into memory."""

from typing import Any

import numpy as np

MANTISSA_BITS = 11
"""Bits of the mantissa that tell the bins of :class:`Magnitudes` apart."""

MAX_CORRELATED_UNITS = 2048
"""Layers with more units get no participation ratio, which needs the covariance of all pairs."""

SATURATED_AT = 0.95
"""Magnitude from which on a value of a layer bounded by 1 counts as saturated."""


class Magnitudes:
    """Histogram of ``|x|`` for percentiles: 2048 bins in every octave of float32, all of it in 4 MiB.

    A percentile read from it differs from the exact one by at most 2**-12, a fortieth of a percent, of its value.
    """

    def __init__(self) -> None:
        self._shift = 23 - MANTISSA_BITS
        self._counts = np.zeros(1 << (8 + MANTISSA_BITS), np.int64)

    def add(self, magnitudes: np.ndarray) -> None:
        """Take in finite values that are not negative."""
        # The bit pattern of a positive float32 grows with its value, so that its upper bits are the number of a bin.
        values = np.minimum(magnitudes, np.finfo(np.float32).max).astype(np.float32)
        bins = values.view(np.uint32) >> np.uint32(self._shift)
        self._counts += np.bincount(bins, minlength=len(self._counts))

    def percentile(self, level: int | float) -> float:
        """Smallest magnitude with at least ``level`` percent of the values at or below it; NaN without values."""
        total = self._counts.sum()
        if not total:
            return float("nan")
        rank = max(1, int(np.ceil(total * level / 100)))
        index = int(np.searchsorted(np.cumsum(self._counts), rank))
        edges = (np.array([index, index + 1], np.uint32) << np.uint32(self._shift)).view(np.float32).astype(np.float64)
        return 0.0 if index == 0 else float(edges.mean())


class Units:
    """Moments, extremes and covariance of every unit of a layer, and its largest value.

    Attributes:
        n: samples, of all environments together.
        n_nonfinite: values that are NaN or infinite; all else leaves them out.
        low, high: smallest and largest value of each unit ``[U]``.
        peak: largest magnitude so far, ``(value, unit, env, step)``.
        magnitudes: histogram of ``|x|``.
    """

    def __init__(self, n_units: int):
        self.n = self.n_nonfinite = 0
        self.count = np.zeros(n_units)
        self.mean = np.zeros(n_units)
        self.square = np.zeros(n_units)
        self.low, self.high = np.full(n_units, np.inf), np.full(n_units, -np.inf)
        self.absolute = np.zeros(n_units)
        self.near_bound = np.zeros(n_units)
        self.peak: tuple[float, int, int, int] | None = None
        self.magnitudes = Magnitudes()
        wanted = 1 < n_units <= MAX_CORRELATED_UNITS
        self._products = np.zeros((n_units, n_units)) if wanted else None
        self._offset: Any = None

    def add(self, x: np.ndarray, valid: np.ndarray, first_step: int) -> None:
        """Take in a chunk.

        Args:
            x: ``[T, N, U]``.
            valid: bool ``[T, N]``, which steps count.
            first_step: number of the first of them.
        """
        steps, envs = np.nonzero(valid)
        samples = x[steps, envs].astype(np.float64)
        if not samples.size:
            return
        finite = np.isfinite(samples)
        self.n += len(samples)
        self.n_nonfinite += int((~finite).sum())
        magnitude = np.abs(samples)
        self._find_peak(np.where(finite, magnitude, -1.0), samples, envs, steps + first_step)
        self.magnitudes.add(magnitude[finite])
        self._add_moments(samples, finite)
        self.low = np.minimum(self.low, np.where(finite, samples, np.inf).min(axis=0))
        self.high = np.maximum(self.high, np.where(finite, samples, -np.inf).max(axis=0))
        self.absolute += np.where(finite, magnitude, 0.0).sum(axis=0)
        self.near_bound += (finite & (magnitude >= SATURATED_AT)).sum(axis=0)
        self._add_products(samples, finite)

    def participation_ratio(self) -> float:
        """``tr(C)^2 / tr(C^2)`` of the covariance over units: how many directions the activity fills.

        NaN for one unit, more than :data:`MAX_CORRELATED_UNITS`, a layer that never moves, and values that are not
        finite.
        """
        if self._products is None or self.n < 2 or self.n_nonfinite:
            return float("nan")
        shift = (self.mean - self._offset)[:, None]
        covariance = self._products / self.n - shift * shift.T
        return participation_ratio(covariance)

    def _find_peak(self, magnitude: np.ndarray, samples: np.ndarray, envs: np.ndarray, steps: np.ndarray) -> None:
        sample, unit = np.unravel_index(np.argmax(magnitude), magnitude.shape)
        size = magnitude[sample, unit]
        if size >= 0 and (self.peak is None or size > abs(self.peak[0])):
            self.peak = (float(samples[sample, unit]), int(unit), int(envs[sample]), int(steps[sample]))

    def _add_moments(self, samples: np.ndarray, finite: np.ndarray) -> None:
        # Chan, Golub and LeVeque (1983): no difference of large sums.
        count = finite.sum(axis=0)
        some = np.maximum(count, 1)
        mean = np.where(finite, samples, 0.0).sum(axis=0) / some
        square = np.where(finite, samples - mean, 0.0) ** 2
        total = np.maximum(self.count + count, 1)
        difference = mean - self.mean
        self.square += square.sum(axis=0) + difference**2 * self.count * count / total
        self.mean += difference * count / total
        self.count += count

    def _add_products(self, samples: np.ndarray, finite: np.ndarray) -> None:
        if self._products is None or self.n_nonfinite:
            return
        if self._offset is None:
            # Products around a typical value lose no digits to a large mean.
            self._offset = samples.mean(axis=0)
        centred = samples - self._offset
        self._products += centred.T @ centred


def participation_ratio(covariance: np.ndarray) -> float:
    """``tr(C)^2 / tr(C^2)``: 1 where one direction has all the variance, the number of units where all have the same.

    Args:
        covariance: ``[U, U]``.
    """
    total = float(np.sum(covariance**2))
    return float(np.trace(covariance) ** 2 / total) if total > 0 else float("nan")
