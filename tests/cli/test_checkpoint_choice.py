"""--step and --best choose the checkpoint that eval, record and lesion are about, and say which it was."""

import shutil

import jax
import numpy as np
import pytest

from nnx_ppo.algorithms.rollout import eval_rollout
from nnx_ppo.cli import checkpoint_choice, load_policy, main
from nnx_ppo.cli.restore import restore_run
from nnx_ppo.cli.run_folder import RunFolder
from nnx_ppo.recordings import open_recording, record
from tests.cli.test_commands import fails


def said(capsys):
    return " ".join(capsys.readouterr().err.split())


def best_steps(run):
    rows = [row for row in RunFolder.open(run).metrics() if row["steps"]]
    return max(rows, key=lambda row: (row["eval/episode_reward/mean"], row["steps"]))["steps"]


def test_the_newest_is_taken_by_default(kept_run, capsys):
    main(["eval", str(kept_run), "--episodes", "2"])
    reward = RunFolder.open(kept_run).metrics()[-1]["eval/episode_reward/mean"]
    path = kept_run / "checkpoints" / "step_0000000096"
    assert f"Checkpoint: {path} (96 steps, evaluation reward {reward:,.2f})" in said(capsys)


def test_a_step_chooses_an_older_policy(kept_run, capsys):
    main(["eval", str(kept_run), "--episodes", "16", "--seed", "3", "--step", "32"])
    printed = capsys.readouterr()
    _, _, env, _ = restore_run(kept_run)
    older = load_policy(kept_run / "checkpoints" / "step_0000000032")
    expected = eval_rollout(env, older, 16, 6, jax.random.key(3))["eval/episode_reward/mean"]
    (line,) = [line for line in printed.out.splitlines() if "episode_reward/mean" in line]
    assert f"{expected:.3f}" in line
    assert "step_0000000032 (32 steps" in printed.err


def test_the_best_is_the_one_of_the_highest_evaluation(kept_run, capsys):
    main(["lesion", str(kept_run), "--best", "--episodes", "2", "--include", "memory"])
    assert f"({best_steps(kept_run):,} steps, evaluation reward" in said(capsys)


def test_a_recording_is_of_the_checkpoint_that_it_names(kept_run, tmp_path, capsys):
    words = ["--n-envs", "2", "--max-steps", "3", "--include", "memory", "--step", "32"]
    main(["record", str(kept_run), "--out", str(tmp_path / "r.zarr"), *words])
    recording = open_recording(tmp_path / "r.zarr")
    assert recording.attributes["checkpoint"] == str(kept_run / "checkpoints" / "step_0000000032")
    _, _, env, _ = restore_run(kept_run)
    older = load_policy(kept_run / "checkpoints" / "step_0000000032")
    expected = record(env, older, tmp_path / "e.zarr", n_envs=2, n_steps=3, include="memory", key=0)
    np.testing.assert_array_equal(recording.layer("memory"), expected.layer("memory"))


def test_a_damaged_checkpoint_is_passed_over_and_not_named_as_the_one_taken(kept_run, tmp_path, capsys):
    run = shutil.copytree(kept_run, tmp_path / "run")
    (run / "checkpoints" / "step_0000000096" / "checkpoint.json").write_text("{")
    for words in ([], ["--best"]):
        main(["eval", str(run), "--episodes", "2", *words])
        message = said(capsys)
        assert "Passed over:" in message
        assert f"Checkpoint: {run / 'checkpoints' / 'step_00000000'}" in message
        assert f"Checkpoint: {run / 'checkpoints' / 'step_0000000096'}" not in message


def test_what_is_not_there_is_refused(kept_run, monkeypatch, capsys):
    message = fails(capsys, "eval", str(kept_run), "--step", "33")
    assert "has no checkpoint after 33 steps: --step can be one of 32, 64, 96" in message
    assert "two checkpoints: give one" in fails(capsys, "eval", str(kept_run), "--step", "32", "--best")
    monkeypatch.setattr(checkpoint_choice, "read_about", lambda path: {"score": None})
    assert "none is known to be the best" in fails(capsys, "eval", str(kept_run), "--best")


def test_a_path_inside_a_run_names_the_run(kept_run, capsys):
    for inside in ("config.json", "checkpoints", "checkpoints/step_0000000032"):
        message = fails(capsys, "eval", str(kept_run / inside))
        assert f"lies in one: name {kept_run}." in message, inside


@pytest.mark.parametrize(
    ("file", "folder"),
    [("config.json", "."), ("metrics.jsonl", "."), ("checkpoints/step_0000000032/checkpoint.json", None)],
)
def test_load_policy_of_a_file_names_its_folder(kept_run, file, folder):
    expected = kept_run / (folder or "checkpoints/step_0000000032")
    with pytest.raises(ValueError, match=rf"is a file, and a run and a checkpoint are folders: name {expected}\."):
        load_policy(kept_run / file)
    with pytest.raises(ValueError, match="there is no folder"):
        load_policy(kept_run / "nothing")
