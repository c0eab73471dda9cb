"""Recordings handed over to other libraries: values, times and epochs against hand arithmetic on a tiny recording."""

import datetime
import sys

import numpy as np
import nwbinspector
import pynapple
import pynwb
import pytest
from flax import nnx

from nnx_ppo.envs import make_env
from nnx_ppo.networks import make_mlp_actor_critic
from nnx_ppo.recordings import Episode, episode_epochs, episodes, record, to_nwb, to_pynapple, to_xarray

DT = 0.05
LAYER = "1/action/0"
START = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def network():
    return make_mlp_actor_critic(1, 1, [4], [4], nnx.Rngs(0))


@pytest.fixture(scope="module")
def recording(network, tmp_path_factory):
    """Nine steps of two environments; an episode has four steps, so that the third one is cut off by the end."""
    path = tmp_path_factory.mktemp("r") / "r.zarr"
    options = {"n_envs": 2, "n_steps": 9, "key": 0, "chunk_steps": 4, "attributes": {"time_step": DT}}
    return record(make_env("probe:counting"), network, path, **options)


@pytest.fixture(scope="module")
def once(network, tmp_path_factory):
    """One episode, stepped on after its end: only the first four of six steps count. Nobody says how long a step is."""
    path = tmp_path_factory.mktemp("r") / "r.zarr"
    return record(make_env("probe:counting"), network, path, n_envs=2, n_steps=6, key=0, reset="never", chunk_steps=4)


def test_episodes(recording, once):
    rewards = recording.array("reward")[:, 1].astype(float)
    sums = [rewards[:4].sum(), rewards[4:8].sum(), rewards[8:].sum()]
    ends = ["terminated", "terminated", "running"]
    assert episodes(recording, 1) == [
        Episode(i, 4 * i, min(4 * i + 3, 8), sums[i], ends[i]) for i in range(3)
    ]  # fmt: skip
    assert [episode.n_steps for episode in episodes(recording)] == [4, 4, 1]
    assert [(episode.first, episode.last) for episode in episodes(once)] == [(0, 3)]
    with pytest.raises(ValueError, match="one of the 2 environments, 0 to 1, got 2"):
        episodes(recording, 2)


def test_xarray(recording, once):
    x = to_xarray(recording, LAYER)
    np.testing.assert_array_equal(x.values, recording.layer(LAYER))
    assert x.dims == ("time", "env", "unit")
    np.testing.assert_allclose(x.time, np.arange(9) * DT)
    assert x.time.attrs["units"] == "s"
    np.testing.assert_array_equal(x.episode[:, 0], [0, 0, 0, 0, 1, 1, 1, 1, 2])
    np.testing.assert_array_equal(x.step[:, 0], [0, 1, 2, 3, 0, 1, 2, 3, 0])
    late = x.where(x.step == 3, drop=True)
    assert late.sizes["time"] == 2
    part = to_xarray(recording, "reward", steps=slice(4, 6), time_step=0.1)
    np.testing.assert_allclose(part.time, [0.4, 0.5])
    assert part.dims == ("time", "env")
    assert to_xarray(once, LAYER).time.attrs["units"] == "environment steps"
    assert not to_xarray(once, "done").valid[5].any()
    with pytest.raises(KeyError, match="near names"):
        to_xarray(recording, "1/action/9")


def test_pynapple(recording, once):
    frame = to_pynapple(recording, LAYER, env=1)
    assert isinstance(frame, pynapple.TsdFrame)
    np.testing.assert_allclose(frame.t, np.arange(9) * DT)
    np.testing.assert_array_equal(frame.values, recording.layer(LAYER)[:, 1])
    epochs = frame.time_support
    np.testing.assert_allclose(epochs.start, [0.0, 0.2, 0.4])
    np.testing.assert_allclose(epochs.end, [0.175, 0.375, 0.425])
    assert list(episode_epochs(recording)["end_of_episode"]) == ["terminated", "terminated", "running"]
    np.testing.assert_array_equal(frame.restrict(epochs[1]).values, recording.layer(LAYER)[4:8, 1])
    cut = to_pynapple(once, LAYER, time_step=0.5)
    np.testing.assert_allclose(cut.t, [0, 0.5, 1, 1.5])
    np.testing.assert_array_equal(cut.values, once.layer(LAYER)[:4, 0])
    with pytest.raises(ValueError, match=r"does not say how long a step is.*give time_step=, in seconds"):
        to_pynapple(once, LAYER)
    with pytest.raises(ValueError, match="time_step must be above 0 seconds, got -1"):
        to_pynapple(once, LAYER, time_step=-1)


def test_nwb(recording, tmp_path):
    low = recording.array("observation")[..., 0] < 2
    about = {"experimenter": ["Doe, Jane"], "institution": "An institute"}
    path = to_nwb(
        recording, tmp_path / "r.nwb", env=1, events={"low": low}, session_start_time=START, about=about
    )  # fmt: skip
    with pynwb.NWBHDF5IO(str(path), "r") as io:
        nwb = io.read()
        series = nwb.acquisition["1_action_0"]
        np.testing.assert_array_equal(series.data[:], recording.layer(LAYER)[:, 1])
        assert (series.rate, series.starting_time) == (pytest.approx(1 / DT), 0.0)
        assert set(nwb.acquisition) == {x.replace("/", "_") for x in recording.layers}
        behaviour = nwb.processing["behavior"]
        np.testing.assert_array_equal(behaviour["reward"].data[:], recording.array("reward")[:, 1])
        assert {"observation", "action", "value"} <= set(behaviour.data_interfaces)
        trials = nwb.trials.to_dataframe()
        np.testing.assert_allclose(trials.start_time, [0.0, 0.2, 0.4])
        np.testing.assert_allclose(trials.stop_time, [0.2, 0.4, 0.45])
        assert list(trials.end_of_episode) == ["terminated", "terminated", "running"]
        np.testing.assert_allclose(trials.episode_reward, [each.episode_reward for each in episodes(recording, 1)])
        ends = nwb.get_events_table("episode_ends").to_dataframe()
        np.testing.assert_allclose(ends.timestamp, [0.15, 0.35])
        np.testing.assert_allclose(
            nwb.get_events_table("low").to_dataframe().timestamp, np.flatnonzero(low[:, 1]) * DT
        )  # fmt: skip
        assert nwb.invalid_times is None
        assert nwb.session_start_time == START
    assert [file.name for file in tmp_path.iterdir()] == ["r.nwb"]


@pytest.mark.filterwarnings("default")
def test_nwb_passes_the_inspector(recording, once, tmp_path):
    """Nothing at all to say, not even a suggestion, once the two names are given that only the user knows."""
    about = {"experimenter": ["Doe, Jane"], "institution": "An institute"}
    for i, each in enumerate((recording, once)):
        path = to_nwb(each, tmp_path / f"{i}.nwb", time_step=DT, session_start_time=START, about=about)
        found = list(nwbinspector.inspect_nwbfile(nwbfile_path=path))
        only_one_episode = {"check_single_row"} if each is once else set()
        assert {message.check_function_name for message in found} <= only_one_episode, found
        with pynwb.NWBHDF5IO(str(path), "r") as io:
            invalid = io.read().invalid_times
            if each is once:
                np.testing.assert_allclose([invalid.start_time[0], invalid.stop_time[0]], [4 * DT, 6 * DT])
            else:
                assert invalid is None


def test_nwb_refuses(recording, tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.nwb"):
        to_nwb(recording, tmp_path / "r.h5")
    with pytest.raises(KeyError, match="near names"):
        to_nwb(recording, tmp_path / "r.nwb", layers=["1/action/7"])
    with pytest.raises(ValueError, match=r"'low' must be bool \[T, N\] = \[9, 2\], got bool with shape \[9\]"):
        to_nwb(recording, tmp_path / "r.nwb", events={"low": np.zeros(9, bool)})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "r.nwb").write_text("mine")
    with pytest.raises(ValueError, match="exists: choose another file, or write over it with replace=True"):
        to_nwb(recording, tmp_path / "r.nwb")
    to_nwb(recording, tmp_path / "r.nwb", layers=[LAYER], replace=True)
    assert (tmp_path / "r.nwb").stat().st_size > 1000


@pytest.mark.parametrize(
    ("package", "extra", "export"),
    [
        ("pynapple", "pynapple", lambda recording: to_pynapple(recording, LAYER)),
        ("pynwb", "nwb", lambda recording: to_nwb(recording, "x.nwb")),
        ("xarray", "analysis", lambda recording: to_xarray(recording, LAYER)),
    ],
)
def test_a_missing_package_gives_the_command(package, extra, export, recording, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"this needs {package}: pip install 'nnx-ppo\[{extra}\]'"):
        export(recording)
