"""Principal components: the directions in which the units of a layer vary most, together."""

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Components:
    """Principal components of some samples.

    Attributes:
        mean: mean of the samples ``[U]``.
        directions: ``[K, U]``, of length 1, the one with most variance first; its largest entry is positive.
        explained: share of the variance that each has ``[K]``.
    """

    mean: np.ndarray
    directions: np.ndarray
    explained: np.ndarray

    def project(self, x: Any) -> np.ndarray:
        """Coordinates ``[..., K]`` of ``x`` ``[..., U]``."""
        return (np.asarray(x, dtype=np.float64) - self.mean) @ self.directions.T


def principal_components(x: Any, n_components: int) -> Components:
    """Find the directions in which samples vary most.

    Args:
        x: ``[S, U]``.
        n_components: how many, at most the smaller of ``S`` and ``U``.

    Raises:
        ValueError: too many components, or values that are not finite.
    """
    x = np.asarray(x, dtype=np.float64)
    if not 1 <= n_components <= min(x.shape):
        raise ValueError(
            f"n_components must be from 1 to {min(x.shape)} for samples and units {list(x.shape)}, got {n_components}."
        )
    if not np.isfinite(x).all():
        raise ValueError("principal components need finite values: leave out the units or steps with NaN or infinity.")
    mean = x.mean(axis=0)
    _, singular, directions = np.linalg.svd(x - mean, full_matrices=False)
    directions = directions[:n_components]
    largest = np.take_along_axis(directions, np.abs(directions).argmax(axis=1, keepdims=True), axis=1)
    variance = singular**2
    explained = variance[:n_components] / (variance.sum() or 1.0)
    return Components(mean, directions * np.where(largest < 0, -1.0, 1.0), explained)
