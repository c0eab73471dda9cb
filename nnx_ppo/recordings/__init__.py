"""Recordings of activations and training logs: what to compute from them, and how to draw them."""

from nnx_ppo.recordings.plots import Curve as Curve
from nnx_ppo.recordings.plots import plot_activations as plot_activations
from nnx_ppo.recordings.plots import plot_learning_curve as plot_learning_curve
from nnx_ppo.recordings.plots import plot_learning_curves as plot_learning_curves
from nnx_ppo.recordings.summary import LayerSummary as LayerSummary
from nnx_ppo.recordings.summary import in_network_order as in_network_order
from nnx_ppo.recordings.summary import layer_table as layer_table
from nnx_ppo.recordings.summary import summarize as summarize

__all__ = [
    "Curve",
    "LayerSummary",
    "in_network_order",
    "layer_table",
    "plot_activations",
    "plot_learning_curve",
    "plot_learning_curves",
    "summarize",
]
