"""What each layer did in a recording: size, mean, largest activation, units that never moved."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from rich.table import Table

from nnx_ppo.networks.naming import named_modules
from nnx_ppo.networks.types import StatefulModule


@dataclasses.dataclass(frozen=True)
class LayerSummary:
    """Statistics of one layer over all steps of all episodes that were recorded.

    Attributes:
        path: canonical layer path.
        shape: shape of one sample, without time and environment.
        mean: mean over steps and units.
        max_abs: largest absolute activation; a spike of one step shows.
        n_units: units of the layer.
        n_dead: units that kept one and the same value throughout.
        n_nonfinite: activations that are NaN or infinite; the other statistics leave them out.
    """

    path: str
    shape: tuple[int, ...]
    mean: float
    max_abs: float
    n_units: int
    n_dead: int
    n_nonfinite: int


def summarize(activations: Mapping[str, Any], dones: Any) -> list[LayerSummary]:
    """Summarise a recording, leaving out what comes after the end of an episode.

    Args:
        activations: flat canonical path to array ``[T, N, ...]``.
        dones: ``[T, N]``: the episode had ended before the step.

    Raises:
        ValueError: an array does not share the leading axes of ``dones``.
    """
    alive = ~np.asarray(dones).astype(bool)
    return [_summarize_layer(path, np.asarray(x), alive) for path, x in activations.items()]


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


def layer_table(layers: Iterable[LayerSummary]) -> Table:
    """Table of :func:`summarize`'s result, for a terminal."""
    table = Table(title="What each layer did")
    table.add_column("layer", overflow="fold")
    for name in ("shape", "mean", "max |x|", "dead units"):
        table.add_column(name, justify="right")
    for layer in layers:
        shape = "scalar" if not layer.shape else " x ".join(map(str, layer.shape))
        dead = f"{layer.n_dead} of {layer.n_units}"
        if layer.n_nonfinite:
            dead += f" ({layer.n_nonfinite} non-finite values)"
        table.add_row(layer.path, shape, f"{layer.mean:.3f}", f"{layer.max_abs:.3f}", dead)
    return table


def _summarize_layer(path: str, x: np.ndarray, alive: np.ndarray) -> LayerSummary:
    if x.shape[:2] != alive.shape:
        raise ValueError(f"{path}: expected leading axes [T, N] = {list(alive.shape)}, got shape {list(x.shape)}.")
    samples = x[alive].reshape(int(alive.sum()), -1).astype(np.float64)
    finite = np.isfinite(samples)
    values = samples[finite]
    low = np.where(finite, samples, np.inf).min(axis=0, initial=np.inf)
    high = np.where(finite, samples, -np.inf).max(axis=0, initial=-np.inf)
    return LayerSummary(
        path=path,
        shape=x.shape[2:],
        mean=float(values.mean()) if values.size else np.nan,
        max_abs=float(np.abs(values).max()) if values.size else np.nan,
        n_units=samples.shape[1],
        n_dead=int((low >= high).sum()),
        n_nonfinite=int((~finite).sum()),
    )
