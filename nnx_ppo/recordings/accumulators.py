"""Statistics of one layer that take in one chunk after another, so that a recording need not fit into memory."""

import numpy as np

from nnx_ppo.recordings.dimensions import Dimensions

MANTISSA_BITS = 11
"""Bits of the mantissa that tell the bins of :class:`Magnitudes` apart."""

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
    """Moments and extremes of every unit of a layer, its largest value, and its dimensions.

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
        self._dimensions = Dimensions(n_units)

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
        if not self.n_nonfinite:
            self._dimensions.add(samples)

    def participation_ratio(self) -> float:
        """``tr(C)^2 / tr(C^2)`` of the covariance over units: how many directions the activity fills.

        NaN for one unit, a layer that never moves, and values that are not finite.
        """
        return float("nan") if self.n_nonfinite else self._dimensions.participation_ratio()

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
