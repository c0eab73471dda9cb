"""nnx-ppo record, inspect and check on stores and files, from a run made once."""

import pathlib

import jax
import numpy as np
import pytest
import xarray

from nnx_ppo.cli import main
from nnx_ppo.cli.restore import restore_run
from nnx_ppo.recordings import open_recording, record
from tests.cli.test_commands import TINY, fails


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    main(["train", *TINY, "--out", str(path), "--ppo.total-steps", "32"])
    return path


@pytest.fixture(scope="module")
def store(run):
    """Three episodes of each of two environments; an episode has three steps."""
    out = run / "recordings" / "three.zarr"
    extras = ["--extras", "metrics/one", "data/cue"]
    main(["record", str(run), "--out", str(out), "--n-envs", "2", "--episodes", "3", "--seed", "2", *extras])
    return out


def words(text):
    return " ".join(text.replace("│", " ").replace("┃", " ").split())


def test_record_writes_a_store_that_equals_record(run, store, tmp_path):
    _, config, env, network = restore_run(run)
    expected = record(env, network, tmp_path / "r", n_envs=2, n_episodes=3, key=jax.random.key(2))
    recording = open_recording(store)
    assert recording.n_steps == 9
    for path in recording.layers:
        np.testing.assert_array_equal(recording.layer(path), expected.layer(path))
    cue, seen = recording.array("extras/data/cue/values"), recording.array("observation")[..., 0]
    np.testing.assert_array_equal(cue[::3], seen[::3])
    tree = xarray.open_datatree(store)
    assert tree.attrs["config"]["train"]["ppo"]["n_envs"] == config.train.ppo.n_envs
    assert pathlib.Path(tree.attrs["checkpoint"]).is_dir()
    assert tree.attrs["versions"]["packages"]["jax"] == jax.__version__


def test_by_default_one_episode_of_each_environment_goes_into_the_run_folder(run, capsys):
    main(["record", str(run), "--n-envs", "2"])
    recording = open_recording(run / "recordings" / "activations.zarr")
    assert recording.n_steps == 3
    assert recording.array("done")[-1].all()
    printed = capsys.readouterr().out
    assert printed.index("normalizer") < printed.index("memory") < printed.index("heads/value/0")
    assert "write over it with --replace" in fails(capsys, "record", str(run), "--n-envs", "2")
    main(["record", str(run), "--n-envs", "2", "--replace", "--max-steps", "5", "--dtype", "float16"])
    recording = open_recording(run / "recordings" / "activations.zarr")
    assert (recording.n_steps, recording.layer("memory").dtype) == (5, np.float16)
    capsys.readouterr()
    main(["inspect", str(recording.path)])
    assert "rounded to float16: largest error" in capsys.readouterr().out


def test_inspect_prints_the_health_of_each_layer(store, capsys):
    main(["inspect", str(store)])
    printed = words(capsys.readouterr().out)
    assert "9 steps of 2 environments, 6 episodes ended; finished" in printed
    assert "How healthy each layer was" in printed
    assert "heads/action/0" in printed


def test_a_narrow_screen_breaks_lines_and_leaves_nothing_out(store, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    main(["inspect", str(store)])
    wide = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "40")
    main(["inspect", str(store)])
    assert capsys.readouterr().out == wide


def test_inspect_reads_files_too(run, capsys):
    main(["record", str(run), "--out", str(run / "r.npz"), "--n-envs", "2", "--max-steps", "3"])
    capsys.readouterr()
    main(["inspect", str(run / "r.npz")])
    printed = words(capsys.readouterr().out)
    assert "3 steps of 2 environments" in printed
    assert "heads/action/0" in printed
    np.savez(run / "other.npz", x=np.zeros(3))
    assert "is no recording that nnx-ppo record made" in fails(capsys, "inspect", str(run / "other.npz"))
    assert "there is no recording" in fails(capsys, "inspect", str(run / "none.npz"))


def test_check_finds_damage_and_exits_with_1(store, capsys):
    main(["check", str(store)])
    assert "Every chunk has its checksum." in capsys.readouterr().out
    file = store / "layers" / "memory" / "activation" / "c.0.0.0"
    contents = bytearray(file.read_bytes())
    file.write_bytes(contents[:-1] + bytes([contents[-1] ^ 1]))
    message = fails(capsys, "check", str(store), code=1)
    assert "Damaged: layers/memory/activation, chunk 0 (steps 0 to 8)" in message
    file.write_bytes(contents)
    assert "is no recording" in fails(capsys, "check", str(store.parent))


def test_what_a_file_cannot_hold_is_refused(run, capsys):
    message = fails(capsys, "record", str(run), "--out", str(run / "x.npz"), "--episodes", "2")
    assert "for --episodes, --extras and --dtype let --out name a .zarr folder" in message
    assert "--episodes must be at least 1, got 0" in fails(capsys, "record", str(run), "--episodes", "0")
    assert not (run / "x.npz").exists()


def test_ctrl_c_says_what_is_complete(run, monkeypatch, capsys):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr("nnx_ppo.recordings.store.RecordingWriter.finish", interrupted)
    out = run / "interrupted.zarr"
    message = fails(capsys, "record", str(run), "--out", str(out), "--n-envs", "2", "--episodes", "3", code=130)
    assert f"The first 9 steps of the recording are complete in {out}." in message
    assert not open_recording(out).finished
    main(["check", str(out)])
    assert "9 steps of 2 environments, not finished, complete up to there" in words(capsys.readouterr().out)
