"""What each layer did in a recording: size, spread, largest activation, dead, saturated and dormant units."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnx_ppo.algorithms.diagnostics import DORMANT
from nnx_ppo.networks.naming import named_modules
from nnx_ppo.networks.types import StatefulModule
from nnx_ppo.recordings.accumulators import Units
from nnx_ppo.recordings.reading import Recording

PERCENTILES = (50, 90, 99, 99.9)
SATURATED_SHARE = 0.95
SPAN_STEPS = 1024


@dataclasses.dataclass(frozen=True)
class Peak:
    """The largest activation of a layer, and where it was.

    Attributes:
        value: activation.
        unit: index of the unit, one number per feature dimension.
        env: environment.
        step: step of the recording.
    """

    value: float
    unit: tuple[int, ...]
    env: int
    step: int


@dataclasses.dataclass(frozen=True)
class LayerSummary:
    """Statistics of one layer over all steps that count, of all environments.

    Values that are not finite are counted, and left out of everything else.

    Attributes:
        path: canonical layer path.
        shape: shape of one sample, without time and environment.
        n_samples: steps that count, of all environments together.
        mean: mean over samples and units.
        std: standard deviation over samples and units.
        max_abs: largest absolute activation; a spike of one step shows.
        peak: that activation with its place; ``None`` without any finite value.
        percentiles: ``{level: |x|}``, the smallest magnitude with at least as many percent of the values at or below;
            right to 0.025 % of its value, since it is read from a histogram.
        n_units: units of the layer.
        n_dead: units that kept one and the same value throughout.
        n_saturated: units that were at 0.95 or beyond, in magnitude, in at least 95 % of their samples; ``None`` where
            the layer has values beyond 1, as then it has no such bound (tanh and sigmoid have).
        n_dormant: units whose mean ``|x|`` is at most 0.025 of the layer's average of it (Sokar et al. 2023, "The
            Dormant Neuron Phenomenon in Deep Reinforcement Learning", with that threshold).
        n_nonfinite: activations that are NaN or infinite.
        participation_ratio: ``tr(C)^2 / tr(C^2)`` of the covariance over units, the number of directions that the
            activity fills; NaN for a single unit and for a layer that never moves. For more than 2048 units an estimate
            from random projections, with a standard error of at most 6 %, less the more directions there are.
    """

    path: str
    shape: tuple[int, ...]
    n_samples: int
    mean: float
    std: float
    max_abs: float
    peak: Peak | None
    percentiles: Mapping[int | float, float]
    n_units: int
    n_dead: int
    n_saturated: int | None
    n_dormant: int
    n_nonfinite: int
    participation_ratio: float


def summarize(
    recording: Any,
    dones: Any = None,
    *,
    percentiles: Sequence[int | float] = PERCENTILES,
    dormant_threshold: int | float = DORMANT,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[LayerSummary]:
    """Summarise a recording, leaving out the steps that do not count. One chunk of one layer is in memory at a time.

    Args:
        recording: from ``record`` or ``open_recording``, or activations in memory, flat canonical path to array
            ``[T, N, ...]``.
        dones: of activations in memory ``[T, N]``: the episode had ended before the step.
        percentiles: levels from 0 to 100.
        dormant_threshold: share of the layer's average magnitude up to which a unit is dormant.
        on_progress: called with the number of chunks read, and that of all.

    Raises:
        ValueError: an array does not share the leading axes of ``dones``, or a level is not from 0 to 100.
    """
    if wrong := [level for level in percentiles if not 0 <= level <= 100]:
        raise ValueError(f"percentiles must be from 0 to 100, got {wrong}.")
    source = recording if isinstance(recording, Recording) else _InMemory(recording, dones)
    spans = source.spans()
    total, read = len(source.layers) * len(spans), itertools.count(1)
    found = []
    for path in source.layers:
        units = shape = None
        for span in spans:
            x = source.layer(path, span)
            shape = x.shape[2:]
            units = units or Units(int(np.prod(shape)))
            units.add(x.reshape(*x.shape[:2], -1), source.valid(span), span.start)
            if on_progress is not None:
                on_progress(next(read), total)
        if units is not None and shape is not None:
            found.append(_layer_summary(path, shape, units, percentiles, dormant_threshold))
    return found


def in_network_order(activations: Mapping[str, Any], network: StatefulModule) -> dict[str, Any]:
    """Sort a recording as the layers stand in the network; compiled functions return dicts sorted by name.

    Args:
        activations: flat canonical path to array.
        network: the network that was recorded.
    """
    position = {path: i for i, path in enumerate(named_modules(network))}

    def key(path: str) -> int:
        # The activation of a sampler is a dict, so that its entries lie below the layer's path.
        parts = path.split("/")
        return max(position.get("/".join(parts[:n]), -1) for n in range(len(parts) + 1))

    return {path: activations[path] for path in sorted(activations, key=key)}


class _InMemory:
    """Activations in memory, read as a recording is, so that what is computed on the way stays small."""

    def __init__(self, activations: Any, dones: Any):
        if not isinstance(activations, Mapping):
            raise ValueError(
                f"summarize takes a recording, as open_recording(path) gives it, or activations by path, got "
                f"{activations!r}."
            )
        if dones is None:
            raise ValueError("summarize(activations, dones): activations in memory need dones, [T, N].")
        self._activations = activations
        self._valid = ~np.asarray(dones).astype(bool)
        self.layers = tuple(activations)

    def spans(self) -> list[slice]:
        return [slice(t, min(t + SPAN_STEPS, len(self._valid))) for t in range(0, max(1, len(self._valid)), SPAN_STEPS)]

    def valid(self, steps: slice) -> np.ndarray:
        return self._valid[steps]

    def layer(self, path: str, steps: slice) -> np.ndarray:
        x = np.asarray(self._activations[path])
        if x.shape[:2] != self._valid.shape:
            raise ValueError(
                f"{path}: expected leading axes [T, N] = {list(self._valid.shape)}, got shape {list(x.shape)}."
            )
        return x[steps]


def _layer_summary(
    path: str, shape: tuple[int, ...], units: Units, percentiles: Sequence[int | float], dormant_threshold: int | float
) -> LayerSummary:
    n_values = units.count.sum()
    mean = float((units.mean * units.count).sum() / n_values) if n_values else np.nan
    spread = (units.square + units.count * (units.mean - mean) ** 2).sum() if n_values else np.nan
    peak = None
    if units.peak is not None:
        value, unit, env, step = units.peak
        peak = Peak(value, tuple(int(i) for i in np.unravel_index(unit, shape)) if shape else (), env, step)
    return LayerSummary(
        path=path,
        shape=tuple(shape),
        n_samples=units.n,
        mean=mean,
        std=float(np.sqrt(spread / n_values)) if n_values else np.nan,
        max_abs=abs(peak.value) if peak else np.nan,
        peak=peak,
        percentiles={level: units.magnitudes.percentile(level) for level in percentiles},
        n_units=len(units.count),
        n_dead=int((units.low >= units.high).sum()),
        n_saturated=_n_saturated(units, peak),
        n_dormant=_n_dormant(units, dormant_threshold),
        n_nonfinite=units.n_nonfinite,
        participation_ratio=units.participation_ratio(),
    )


def _n_saturated(units: Units, peak: Peak | None) -> int | None:
    if peak is None or abs(peak.value) > 1:
        return None
    return int((units.near_bound >= SATURATED_SHARE * np.maximum(units.count, 1)).sum())


def _n_dormant(units: Units, threshold: int | float) -> int:
    size = units.absolute / np.maximum(units.count, 1)
    return int((size <= threshold * size.mean()).sum()) if size.size else 0
