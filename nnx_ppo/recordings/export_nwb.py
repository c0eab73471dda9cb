"""Recordings as NWB files: layers and behaviour as time series, episodes as trials, events in tables."""

import datetime
import os
import pathlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nnx_ppo.algorithms.disk import write_aside
from nnx_ppo.recordings import layout
from nnx_ppo.recordings.episodes import episodes, require_env, seconds_per_step
from nnx_ppo.recordings.extra import analysis_packages
from nnx_ppo.recordings.reading import Recording

SYNTHETIC = "http://purl.obolibrary.org/obo/NCBITaxon_32630"
"""The taxon "synthetic construct"."""
BEHAVIOUR = ("observation", "action", "reward", "value")


def to_nwb(
    recording: Recording,
    file: str | os.PathLike[str],
    *,
    env: int = 0,
    layers: Sequence[str] | None = None,
    events: Mapping[str, Any] | None = None,
    time_step: int | float | None = None,
    session_start_time: datetime.datetime | None = None,
    about: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> pathlib.Path:
    """Write one environment of a recording as an NWB file, which pynwb, MatNWB and the like read.

    Step ``t`` is at ``t * time_step`` seconds. Layers are time series ``[time, unit]`` of the acquisition, with ``_``
    for ``/`` in their names; observation, action, reward and value those of the processing module ``behavior``. Trials
    are the episodes, with their number, the sum of their rewards and how they ended. Ends of episodes, and the events
    that you give, are events tables. Steps that do not count are noted as invalid times. The subject is a "synthetic
    construct" of age 0, as NWB asks for a species and an age. A chunk of one array is in memory at a time.

    Args:
        recording: from ``record`` or ``open_recording``.
        file: file to write, ``.nwb``.
        env: number of the environment.
        layers: canonical paths; by default all.
        events: by name, bool ``[T, N]``: a table with the times of the steps that are true, if there is any.
        time_step: seconds of a step; by default as the environment knew it.
        session_start_time: with time zone; by default now.
        about: more arguments of ``pynwb.NWBFile``: ``experimenter``, ``institution``, ``keywords`` and the like.
        replace: write over a file that is there.

    Returns:
        The path of the file.

    Raises:
        ImportError: pynwb is missing.
        KeyError: there is no such layer; names near ones.
        ValueError: a file that exists or does not end in ``.nwb``, no such environment, events of another shape, or
            nobody says how long a step is.
    """
    analysis_packages("pynwb")
    path = pathlib.Path(file)
    if path.suffix != ".nwb":
        raise ValueError(f"the file must end in .nwb, got {path}.")
    if path.exists() and not replace:
        raise ValueError(f"{path} exists: choose another file, or write over it with replace=True.")
    require_env(recording, env)
    seconds = seconds_per_step(recording, time_step)
    start = session_start_time or datetime.datetime.now(datetime.UTC)
    nwb = _pynwb().NWBFile(**(_description(recording, env) | {"session_start_time": start} | dict(about or {})))
    for layer in recording.layers if layers is None else layers:
        recording.layer(layer, slice(0, 0))
        stored = layout.array_path(layout.LAYERS, layer)
        what = f"Activations of layer {layer}, [time, unit]."
        nwb.add_acquisition(_series(recording, stored, _name(layer), what, env, seconds))
    behaviour = nwb.create_processing_module("behavior", "What the policy saw, did and earned.")
    for stored in (p for p in recording.array_paths() if p.split("/")[0] in BEHAVIOUR):
        behaviour.add(_series(recording, stored, _name(stored), f"{stored} of each step.", env, seconds))
    _add_trials(nwb, recording, env, seconds)
    done = recording.array("done").astype(bool) & recording.valid()
    for name, mask in {"episode_ends": done, **(events or {})}.items():
        _add_events(nwb, name, np.asarray(mask), recording, env, seconds)
    path.parent.mkdir(parents=True, exist_ok=True)

    def write(aside: pathlib.Path) -> None:
        with _pynwb().NWBHDF5IO(str(aside), "w") as io:
            io.write(nwb)

    write_aside(path, write)
    return path


def _description(recording: Recording, env: int) -> dict[str, Any]:
    about = recording.attributes
    return {
        "session_description": (
            f"Environment {env} of {recording.n_envs} in a recording of a policy without exploration in {about['env']}."
        ),
        "identifier": str(uuid.uuid4()),
        "experiment_description": str(about.get("network", "")),
        "keywords": ["artificial neural network", "reinforcement learning"],
        "subject": _pynwb().file.Subject(
            subject_id=f"network-env{env}",
            description="An artificial neural network, not an animal; the layers are in the experiment description.",
            species=SYNTHETIC,
            age="P0D",
            sex="U",
        ),
        "source_script": "nnx_ppo.recordings.to_nwb",
        "source_script_file_name": "export_nwb.py",
    }


def _series(recording: Recording, stored: str, name: str, what: str, env: int, seconds: float) -> Any:
    from hdmf import data_utils
    from hdmf.backends import hdf5

    first = recording.array(stored, slice(0, 1), env)
    shape = first.shape[1:] if first.ndim <= 2 else (int(np.prod(first.shape[1:])),)

    def rows() -> Iterator[np.ndarray]:
        for span in recording.spans():
            x = recording.array(stored, span, env)
            yield from x.reshape(len(x), *shape)

    iterators: Any = data_utils
    storage: Any = hdf5
    data = iterators.DataChunkIterator(
        data=rows(), maxshape=(None, *shape), dtype=first.dtype, buffer_size=min(1024, recording.n_steps)
    )
    return _pynwb().TimeSeries(
        name=name,
        description=what,
        data=storage.H5DataIO(data, compression="gzip"),
        unit="a.u.",
        starting_time=0.0,
        rate=1.0 / seconds,
        comments=f"Array {stored!r} of the recording.",
    )


def _add_trials(nwb: Any, recording: Recording, env: int, seconds: float) -> None:
    found = episodes(recording, env)
    nwb.add_trial_column("episode", "Number of the episode in this environment.")
    nwb.add_trial_column("episode_reward", "Sum of the rewards of the episode.")
    nwb.add_trial_column("end_of_episode", "terminated, truncated, or running where the recording ends before it.")
    for episode in found:
        nwb.add_trial(
            start_time=episode.first * seconds,
            stop_time=(episode.last + 1) * seconds,
            episode=episode.number,
            episode_reward=episode.episode_reward,
            end_of_episode=episode.end,
        )
    invalid = np.diff(np.concatenate([[0], (~recording.valid()[:, env]).astype(int), [0]]))
    for begin, end in zip(np.flatnonzero(invalid == 1), np.flatnonzero(invalid == -1), strict=True):
        nwb.add_invalid_time_interval(start_time=float(begin * seconds), stop_time=float(end * seconds))


def _add_events(nwb: Any, name: str, mask: np.ndarray, recording: Recording, env: int, seconds: float) -> None:
    if mask.shape != (recording.n_steps, recording.n_envs) or mask.dtype != bool:
        raise ValueError(
            f"events: {name!r} must be bool [T, N] = {[recording.n_steps, recording.n_envs]}, "
            f"got {mask.dtype} with shape {list(mask.shape)}."
        )
    times = np.flatnonzero(mask[:, env]) * seconds
    if not len(times):
        return
    table = nwb.create_events_table(name=name, description=f"Times of the steps at which {name!r} is true.")
    for time in times:
        table.add_event(timestamp=float(time))


def _pynwb() -> Any:
    """The package; its constructors hide their parameters from type checkers."""
    import pynwb

    return pynwb


def _name(path: str) -> str:
    """A name that NWB takes: no slash and no colon."""
    return path.replace("/", "_").replace(":", "_") or "network"
