"""Recordings of activations and training logs: what to compute from them, and how to draw them."""

from nnx_ppo.recordings.check import RecordingCheck as RecordingCheck
from nnx_ppo.recordings.check import check_recording as check_recording
from nnx_ppo.recordings.components import Components as Components
from nnx_ppo.recordings.components import principal_components as principal_components
from nnx_ppo.recordings.episodes import Episode as Episode
from nnx_ppo.recordings.episodes import episodes as episodes
from nnx_ppo.recordings.events import Aligned as Aligned
from nnx_ppo.recordings.events import align_to_events as align_to_events
from nnx_ppo.recordings.events import plot_aligned as plot_aligned
from nnx_ppo.recordings.export_nwb import to_nwb as to_nwb
from nnx_ppo.recordings.export_pynapple import episode_epochs as episode_epochs
from nnx_ppo.recordings.export_pynapple import to_pynapple as to_pynapple
from nnx_ppo.recordings.export_xarray import to_xarray as to_xarray
from nnx_ppo.recordings.lesions import Lesion as Lesion
from nnx_ppo.recordings.lesions import LesionStudy as LesionStudy
from nnx_ppo.recordings.lesions import lesion_study as lesion_study
from nnx_ppo.recordings.plots import Curve as Curve
from nnx_ppo.recordings.plots import plot_activations as plot_activations
from nnx_ppo.recordings.plots import plot_learning_curve as plot_learning_curve
from nnx_ppo.recordings.plots import plot_learning_curves as plot_learning_curves
from nnx_ppo.recordings.reading import Recording as Recording
from nnx_ppo.recordings.reading import open_recording as open_recording
from nnx_ppo.recordings.recorder import record as record
from nnx_ppo.recordings.similarity import Similarity as Similarity
from nnx_ppo.recordings.similarity import compare_recordings as compare_recordings
from nnx_ppo.recordings.similarity import linear_cka as linear_cka
from nnx_ppo.recordings.similarity import plot_similarity as plot_similarity
from nnx_ppo.recordings.store import RecordingError as RecordingError
from nnx_ppo.recordings.summary import LayerSummary as LayerSummary
from nnx_ppo.recordings.summary import Peak as Peak
from nnx_ppo.recordings.summary import in_network_order as in_network_order
from nnx_ppo.recordings.summary import summarize as summarize
from nnx_ppo.recordings.summary_tables import health_table as health_table
from nnx_ppo.recordings.summary_tables import layer_table as layer_table
from nnx_ppo.recordings.summary_tables import summary_dataset as summary_dataset
from nnx_ppo.recordings.trajectories import plot_trajectories as plot_trajectories
from nnx_ppo.recordings.unit_plots import plot_heat_map as plot_heat_map
from nnx_ppo.recordings.unit_plots import plot_histograms as plot_histograms
from nnx_ppo.recordings.unit_plots import plot_traces as plot_traces
from nnx_ppo.recordings.unit_plots import unit_order as unit_order

__all__ = [
    "record",
    "open_recording",
    "Recording",
    "RecordingError",
    "check_recording",
    "RecordingCheck",
    "Curve",
    "summarize",
    "LayerSummary",
    "Peak",
    "health_table",
    "layer_table",
    "summary_dataset",
    "in_network_order",
    "plot_activations",
    "plot_heat_map",
    "unit_order",
    "plot_traces",
    "plot_histograms",
    "principal_components",
    "Components",
    "plot_trajectories",
    "align_to_events",
    "Aligned",
    "plot_aligned",
    "linear_cka",
    "compare_recordings",
    "Similarity",
    "plot_similarity",
    "episodes",
    "Episode",
    "to_xarray",
    "to_pynapple",
    "episode_epochs",
    "to_nwb",
    "lesion_study",
    "LesionStudy",
    "Lesion",
    "plot_learning_curve",
    "plot_learning_curves",
]
