"""A run folder refuses what it must, and reads back what was written."""

import json

import numpy as np
import pytest

from nnx_ppo.algorithms.disk import write_aside
from nnx_ppo.algorithms.loggers import JsonLinesLogger
from nnx_ppo.cli.restore import restore_run
from nnx_ppo.cli.run_config import RunConfig
from nnx_ppo.cli.run_folder import RunFolder, RunFolderError, unused_folder

CONFIG = RunConfig(env="probe:memory_cue", env_args={"delay": 2})


def test_create_writes_what_open_reads(tmp_path):
    folder = RunFolder.create(tmp_path / "deep" / "run", CONFIG)
    assert RunFolder.open(folder.path).config() == CONFIG
    versions = json.loads((folder.path / "versions.json").read_text())
    assert versions["packages"]["numpy"] == np.__version__
    assert versions["device"]["platform"] == "cpu"
    assert {"python", "precision", "git_commit"} <= set(versions)
    assert not [p for p in folder.path.rglob("*") if "partial" in p.name]


def test_an_empty_folder_is_fine(tmp_path):
    RunFolder.create(tmp_path, CONFIG)
    assert (tmp_path / "config.json").is_file()


def test_a_used_folder_is_refused_with_a_free_name(tmp_path):
    RunFolder.create(tmp_path / "run", CONFIG)
    with pytest.raises(RunFolderError, match=r"already holds a run.*for example .*run-2"):
        RunFolder.create(tmp_path / "run", CONFIG)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="already holds files"):
        RunFolder.create(tmp_path / "other", CONFIG)
    assert (tmp_path / "other" / "notes.txt").read_text() == "mine"


def test_a_file_in_its_place_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(RunFolderError, match="is a file, and a run needs a folder"):
        RunFolder.create(tmp_path / "run", CONFIG)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"cannot write the run folder .*choose another folder with --out"):
        RunFolder.create(tmp_path / "file" / "run", CONFIG)


def test_open_names_the_runs_beside(tmp_path):
    RunFolder.create(tmp_path / "right", CONFIG)
    with pytest.raises(RunFolderError, match=r"wrong is no run folder.*Runs beside it: .*right"):
        RunFolder.open(tmp_path / "wrong")
    with pytest.raises(RunFolderError, match="Make one with nnx-ppo train"):
        RunFolder.open(tmp_path / "right" / "no")


def test_a_broken_configuration_is_named(tmp_path):
    folder = RunFolder.create(tmp_path / "run", CONFIG)
    (folder.path / "config.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"config\.json does not describe a run"):
        folder.config()


def test_metrics_are_read_back(tmp_path):
    folder = RunFolder.create(tmp_path / "run", CONFIG)
    assert folder.metrics() == []
    with JsonLinesLogger(folder.path / "metrics.jsonl") as logger:
        logger({"losses/total": 0.5, "n": np.float32(2.0)}, 10)
        logger({"n": float("-inf")}, 2**40)
    assert folder.metrics() == [
        {"steps": 10, "losses/total": 0.5, "n": 2.0},
        {"steps": 2**40, "n": float("-inf")},
    ]


def test_a_run_without_checkpoint_says_so(tmp_path):
    folder = RunFolder.create(tmp_path / "run", CONFIG)
    with pytest.raises(RunFolderError, match="holds no checkpoint: the training ended before the first one was due"):
        restore_run(folder.path)


def test_a_lock_is_no_use_of_the_folder(tmp_path):
    (tmp_path / "run").mkdir()
    second = RunFolder(tmp_path / "run")
    with RunFolder(tmp_path / "run").locked():
        with pytest.raises(RunFolderError, match="another process is training in"), second.locked():
            pass
        with pytest.raises(RunFolderError, match="another process is training in"), second.locked():
            pass
    RunFolder.create(tmp_path / "run", CONFIG)


def test_unused_folder_counts_up(tmp_path):
    assert unused_folder(tmp_path / "run") == tmp_path / "run"
    for name in ("run", "run-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("")
    assert unused_folder(tmp_path / "run") == tmp_path / "run-3"


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fail(aside):
        aside.write_text("half")
        raise RuntimeError("full")

    with pytest.raises(RuntimeError, match="full"):
        write_aside(path, fail)
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]
    assert path.read_text() == "old"
