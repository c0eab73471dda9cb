"""What the report of a run says: configuration, learning curves, evaluation, health of the layers, pictures, film."""

import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnx_ppo.cli.networks import unused_fields
from nnx_ppo.cli.plot import curve_of, series
from nnx_ppo.cli.progress import REWARD
from nnx_ppo.cli.run_config import RunConfig, to_json
from nnx_ppo.cli.run_folder import RunFolder
from nnx_ppo.recordings.plots import plot_activations, plot_learning_curves
from nnx_ppo.recordings.reading import Recording
from nnx_ppo.recordings.report import MEDIA_TYPES, Media, Section, film, health_summary, pairs_table, picture
from nnx_ppo.recordings.summary import LayerSummary, summarize
from nnx_ppo.recordings.trajectories import plot_trajectories
from nnx_ppo.recordings.unit_plots import plot_histograms

CURVES = {
    REWARD: "reward of an episode",
    "eval/lifespan/mean": "steps of an episode",
    "losses/critic_loss": "loss of the critic",
    "losses/entropy": "entropy of the policy (nats)",
}
PICTURE_STEPS = 500
HISTOGRAM_VALUES = 2_000_000


def configuration_section(folder: RunFolder, config: RunConfig) -> Section:
    """Configuration, and the versions of what it ran with."""
    settings = json.loads(to_json(config))
    train = settings.pop("train")
    for name in unused_fields(config.network):
        del settings["network"][name]
    tables = [pairs_table("Environment and network", settings, ("setting", "value"))]
    groups = {name: values for name, values in train.items() if isinstance(values, dict)}
    rest = {name: value for name, value in train.items() if name not in groups}
    tables += [pairs_table(f"Training: {name}", values, ("setting", "value")) for name, values in groups.items()]
    tables.append(pairs_table("Training: everything else", rest, ("setting", "value")))
    versions = folder.path / "versions.json"
    if versions.is_file():
        tables.append(pairs_table("Versions", json.loads(versions.read_text()), ("what", "version")))
    return Section("Configuration", tables=tuple(tables))


def learning_section(folder: RunFolder) -> Section:
    """A curve of each metric of :data:`CURVES` that was logged."""
    rows = folder.metrics()
    logged = [metric for metric in CURVES if any(metric in row for row in rows)]
    if not logged:
        return Section("Learning curves", (f"There is no training log in {folder.metrics_file.name}.",))
    pictures = []
    for metric in logged:
        curve = curve_of([series(folder, metric)])
        values = np.asarray(curve.mean, float)
        alt = (
            f"Line of the {CURVES[metric]} over {curve.steps[-1]:,} environment steps: from {values[0]:.4g} at the "
            f"start to {values[-1]:.4g} at the end, at most {np.nanmax(values):.4g}."
        )
        band = " Band: the middle half of the episodes." if curve.low is not None else ""
        figure = plot_learning_curves({CURVES[metric]: curve}, ylabel=CURVES[metric])
        pictures.append(picture(figure, alt=alt, caption=f"{metric}.{band}"))
    return Section("Learning curves", pictures=tuple(pictures))


def evaluation_section(metrics: Mapping[str, Any], n_episodes: int, steps: int) -> Section:
    """Reward and lifespan of the policy after so many environment steps."""
    values = {name.removeprefix("eval/"): float(value) for name, value in metrics.items()}
    caption = f"The policy after {steps:,} environment steps, without exploration, {n_episodes:,} episodes"
    return Section("Evaluation", tables=(pairs_table(caption, values, ("metric", "value")),))


def layer_sections(recording: Recording, on_progress: Callable[[int, int], None] | None = None) -> tuple[Section, ...]:
    """Health of the layers, and pictures of what they did."""
    layers = summarize(recording, on_progress=on_progress)
    about = (
        f"{recording.n_steps:,} steps of {recording.n_envs} environments"
        f"{'' if recording.finished else ', a recording that was interrupted'}."
    )
    health = Section("Health of the layers", (about,), (health_summary(layers),))
    return health, Section("Activity", pictures=tuple(_pictures(recording, layers)))


def film_section(folder: RunFolder) -> Section | None:
    """The last film of the run, where there is one that browsers play."""
    films = sorted(p for p in (folder.path / "videos").glob("*") if p.suffix in MEDIA_TYPES)
    if not films:
        return None
    newest = films[-1]
    media = film(newest, alt="Film of one episode of the policy", caption=f"One episode: {newest.name}.")
    return Section("Film", video=media)


def newest_recording(folder: RunFolder, suffix: str) -> pathlib.Path | None:
    """The recording that was changed last, of those in the run folder."""
    found = [path for path in folder.recordings.glob(f"*{suffix}") if (path / "zarr.json").is_file()]
    return max(found, key=lambda path: (path / "zarr.json").stat().st_mtime, default=None)


def _pictures(recording: Recording, layers: list[LayerSummary]) -> list[Media]:
    steps = slice(0, PICTURE_STEPS)
    valid = recording.valid(steps)
    shown = {layer.path: recording.layer(layer.path, steps) for layer in layers if layer.shape}
    first = {path: x[:, :1] for path, x in shown.items()}
    ended = np.maximum.accumulate(~valid[:, :1], axis=0)
    pictures = []
    if first and not ended.all():
        pictures.append(
            picture(
                plot_activations(first, ended),
                alt=f"Heat maps, units over time, of {len(first)} layers in the first environment: {', '.join(first)}.",
                caption="Each layer in the first environment; colours are centred on 0.",
            )
        )
    most = max(1, HISTOGRAM_VALUES // max(1, valid.size))
    small = {path: x.reshape(*x.shape[:2], -1)[..., :most] for path, x in shown.items()}
    if small and valid.any():
        pictures.append(
            picture(
                plot_histograms(small, valid),
                alt=f"Histograms of the activations of {len(small)} layers, counts on a logarithmic axis.",
                caption=f"Distribution of activations, first {len(valid):,} steps.",
            )
        )
    wide = [layer for layer in layers if layer.n_units > 2 and np.isfinite(layer.participation_ratio)]
    if wide:
        layer = max(wide, key=lambda layer: layer.participation_ratio)
        figure = plot_trajectories(
            shown[layer.path],
            valid,
            recording.array("episode", steps),
            color=recording.array("step", steps),
            color_label="step of the episode",
        )
        pictures.append(
            picture(
                figure,
                alt=f"Paths of episodes in the plane of the first two principal components of layer {layer.path}.",
                caption=f"Layer {layer.path}, whose activity fills the most directions, one path per episode.",
            )
        )
    return pictures
