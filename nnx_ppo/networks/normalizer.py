"""Normalizer: observations brought to mean 0 and variance 1 by running statistics."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nnx_ppo.networks._dtypes import as_float, default_float, float_dtype, zero_loss
from nnx_ppo.networks.types import Carry, StatefulModule, StatefulModuleOutput

INITIAL_STD = 10.0
"""Standard deviation assumed of a feature that has not varied yet."""

EPSILON = 1e-6
"""Added to the variance."""

Shape = int | tuple[int, ...] | Mapping[str, Any]
"""Shape of one sample, or a (nested) dict of shapes."""


class NormalizerStatistics(nnx.Variable):
    """A running statistic: saved with the network, but never touched by the optimizer."""


class Normalizer(StatefulModule):
    """``(x - mean) / sqrt(variance + 1e-6)`` with the mean and population variance of all inputs so far.

    Args:
        shape: shape of one sample without batch axes (an int ``n`` is ``(n,)``), or a (nested) dict of shapes for an
            input that is such a dict.

    Attributes:
        mean: running mean, :class:`NormalizerStatistics` of ``shape`` (a dict of them for a dict of shapes).
        M2: sum of squared deviations from the mean; the variance is ``M2 / counter``.
        counter: number of samples, a scalar per shape.

    Statistics change in :meth:`update_statistics` alone, once per iteration, so that every sample of an iteration is
    normalised alike. Before the first data the standard deviation is taken as 10. So it is for a feature that has
    not varied yet: its scale is unknown, and division by almost nothing would blow up its first change.
    A sample with any NaN or infinity in an entry of the input is left out of the statistics of that entry.

    Raises:
        ValueError: an input that does not fit ``shape``.
    """

    def __init__(self, shape: Shape):
        shapes = _canonical_shape(shape)
        self.mean = _statistics(shapes, lambda s: s)
        self.M2 = _statistics(shapes, lambda s: s)
        self.counter = _statistics(shapes, lambda s: ())

    @property
    def shape(self) -> Any:
        """Shape of one sample, a tuple or a (nested) dict of tuples."""
        return jax.tree.map(lambda mean: mean.shape, self.mean, is_leaf=_is_statistic)

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        leaves = [
            normalize(leaf, mean[...], m2[...], counter[...]) for leaf, mean, m2, counter in self._with_statistics(x, 1)
        ]
        output = jax.tree.unflatten(jax.tree.structure(x), leaves)
        snapshot = x if rollout_extras is None else rollout_extras
        return StatefulModuleOutput(state, output, zero_loss(x), {}, snapshot)

    def update_statistics(self, rollout_extras: Any) -> None:
        """Fold the inputs of one iteration, leaves ``[T, B, *shape]``, into the statistics; ``None`` does nothing."""
        if rollout_extras is None:
            return
        for leaf, mean, m2, counter in self._with_statistics(rollout_extras, 2):
            samples = leaf.reshape((-1,) + mean[...].shape).astype(mean[...].dtype)
            merged = merge_moments((counter[...], mean[...], m2[...]), batch_moments(samples))
            counter[...], mean[...], m2[...] = merged

    def _with_statistics(self, x: Any, n_lead: int) -> list[tuple[jax.Array, Any, Any, Any]]:
        """Pair each leaf of an input with its statistics, after checking that they fit."""
        means, m2s, counters = (
            jax.tree.leaves(tree, is_leaf=_is_statistic) for tree in (self.mean, self.M2, self.counter)
        )
        if jax.tree.structure(x) != jax.tree.structure(self.mean, is_leaf=_is_statistic):
            got = jax.tree.map(lambda leaf: jnp.shape(leaf)[n_lead:], x)
            raise ValueError(f"Normalizer: made for inputs of shape {self.shape}, got {got} (without batch axes).")
        leaves = [as_float(leaf) for leaf in jax.tree.leaves(x)]
        for leaf, mean in zip(leaves, means, strict=True):
            if leaf.ndim < n_lead or leaf.shape[n_lead:] != mean[...].shape:
                raise ValueError(
                    f"Normalizer: made for samples of shape {mean[...].shape}, got an array of shape {leaf.shape}, "
                    f"that is {leaf.shape[n_lead:]} after {n_lead} batch axes."
                )
        return list(zip(leaves, means, m2s, counters, strict=True))


def normalize(x: jax.Array, mean: jax.Array, m2: jax.Array, counter: jax.Array) -> jax.Array:
    """Normalise ``[B, *shape]`` by the statistics of ``counter`` samples."""
    variance = m2 / jnp.maximum(counter, 1)
    std = jnp.where(variance > 0, jnp.sqrt(variance + EPSILON), INITIAL_STD)
    dtype = float_dtype(x, mean)
    return (x.astype(dtype) - mean.astype(dtype)[None]) / std.astype(dtype)[None]


Moments = tuple[jax.Array, jax.Array, jax.Array]
"""Number of samples, their mean, and the sum of squared deviations from it."""


def batch_moments(samples: jax.Array) -> Moments:
    """Moments of ``[N, *shape]``, over the samples that are finite throughout."""
    finite = jnp.all(jnp.isfinite(samples).reshape(samples.shape[0], -1), axis=-1)
    keep = jnp.broadcast_to(finite.reshape((-1,) + (1,) * (samples.ndim - 1)), samples.shape)
    count = jnp.sum(finite, dtype=samples.dtype)

    def average(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(keep, x, 0), axis=0) / jnp.maximum(count, 1)

    # The second pass takes out the rounding error of the first: the mean of equal samples is that sample.
    mean = average(samples)
    mean = mean + average(samples - mean[None])
    m2 = jnp.sum(jnp.where(keep, jnp.square(samples - mean[None]), 0), axis=0)
    return count, mean, m2


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Moments of the union of two samples (Chan, Golub & LeVeque 1979), exact whatever the split."""
    (count_a, mean_a, m2_a), (count_b, mean_b, m2_b) = a, b
    count = count_a + count_b
    weight = count_b / jnp.maximum(count, 1)
    delta = mean_b - mean_a
    return count, mean_a + delta * weight, m2_a + m2_b + jnp.square(delta) * (count_a * weight)


def _canonical_shape(shape: Any) -> Any:
    if isinstance(shape, Mapping):
        if not shape:
            raise ValueError("Normalizer: expected at least one entry in a dict of shapes, got none.")
        return {key: _canonical_shape(value) for key, value in shape.items()}
    sizes = shape if isinstance(shape, tuple) else (shape,)
    if any(isinstance(size, bool) or not hasattr(size, "__index__") or size < 1 for size in sizes):
        raise ValueError(
            f"Normalizer: shape must be a positive integer, a tuple of them, or a dict of those, got {shape!r}."
        )
    return tuple(size.__index__() for size in sizes)


def _statistics(shapes: Any, shape_of: Any) -> Any:
    make = lambda shape: NormalizerStatistics(jnp.zeros(shape_of(shape), default_float()))  # noqa: E731
    return nnx.data(jax.tree.map(make, shapes, is_leaf=lambda shape: isinstance(shape, tuple)))


def _is_statistic(node: Any) -> bool:
    return isinstance(node, NormalizerStatistics)
