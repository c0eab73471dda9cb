"""``nnx-ppo train --resume``: the run goes on as if it had not stopped, in the same folder, or says why it does not."""

import json
import shutil
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.algorithms.checkpoint_files import CheckpointError, DamagedCheckpointError, complete_checkpoints
from nnx_ppo.algorithms.checkpointing import make_checkpoint_fn
from nnx_ppo.algorithms.loggers import JsonLinesLogger, WandbLogger
from nnx_ppo.algorithms.ppo import new_training_state
from nnx_ppo.cli import load_policy, main, training_run
from nnx_ppo.cli.restore import restore_run
from nnx_ppo.cli.resume import load_newest, rates_at
from nnx_ppo.cli.run_config import with_total_steps
from nnx_ppo.cli.run_description import changed_fields
from nnx_ppo.cli.run_folder import RunFolder, RunFolderError
from nnx_ppo.cli.training_run import resume_run
from tests.algorithms.test_callbacks import history, wandb_records
from tests.cli.test_commands import TINY, fails
from tests.helpers import RandomEnds, assert_same_bits, bits, mlp


def train(path: Any, *words: str) -> RunFolder:
    main(["train", *TINY, "--out", str(path), "--anneal-learning-rate", "--keep-last", "3", *words])
    return RunFolder.open(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of four iterations that was never stopped."""
    return train(tmp_path_factory.mktemp("whole") / "run", "--total-steps", "128")


@pytest.fixture
def half(whole, tmp_path):
    """The same run as a kill in its fourth iteration leaves it: a checkpoint after the third, and a torn row."""
    shutil.copytree(whole.path, tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    shutil.rmtree(folder.checkpoints / "step_0000000128")
    rows = folder.metrics_file.read_bytes()
    folder.metrics_file.write_bytes(rows[: len(rows) - 10])
    (folder.checkpoints / ".step_0000000128.partial").mkdir()
    (folder.checkpoints / ".step_0000000128.partial" / "half").write_text("")
    return folder


def everything(folder: RunFolder) -> Any:
    """All that the newest checkpoint holds, bit by bit."""
    _, _, _, network = restore_run(folder.path)
    loaded = load_newest(folder.checkpoints, folder.config(), network)
    assert loaded is not None
    state = loaded["training_state"]
    assert state.steps_taken == folder.config().train.ppo.total_steps
    optimizer = nnx.state(state.optimizer)
    return bits((nnx.state(network), optimizer, state.network_states, state.env_states, state.rng_key))


def assert_same_runs(a: RunFolder, b: RunFolder) -> None:
    assert a.metrics_file.read_bytes() == b.metrics_file.read_bytes()
    assert a.config() == b.config()
    names = [[path.name for path in complete_checkpoints(run.checkpoints)] for run in (a, b)]
    assert names[0] == names[1]
    for x, y in zip(everything(a), everything(b), strict=True):
        np.testing.assert_array_equal(x, y)
    assert not list(b.checkpoints.glob(".*"))


def test_a_run_that_was_killed_goes_on_to_the_bit(whole, half, capsys):
    main(["train", "--resume", str(half.path)])
    captured = capsys.readouterr()
    assert "Going on from the checkpoint after 96 steps, to 128 steps." in captured.err
    assert f"nnx-ppo plot {half.path}" in captured.out
    assert_same_runs(whole, half)


def test_without_any_checkpoint_it_starts_again(whole, half, capsys):
    shutil.rmtree(half.checkpoints)
    main(["train", "--resume", str(half.path)])
    assert "from the start, as there is no checkpoint yet" in capsys.readouterr().err
    assert_same_runs(whole, half)


def test_a_damaged_checkpoint_is_named_and_the_older_one_serves(whole, half, capsys):
    (half.checkpoints / "step_0000000096" / "checkpoint.json").write_text("{")
    main(["train", "--resume", str(half.path)])
    err = capsys.readouterr().err
    assert "Passed over" in err
    assert "step_0000000096 holds no readable checkpoint.json" in err
    assert "Going on from the checkpoint after 64 steps" in err
    assert_same_runs(whole, half)


def test_where_all_are_damaged_nothing_is_started_again(half, capsys):
    for path in half.checkpoints.glob("step_*"):
        (path / "checkpoint.json").unlink()
    before = half.metrics_file.read_bytes()
    assert "none of the checkpoints in" in fails(capsys, "train", "--resume", str(half.path))
    assert "none of the checkpoints in" in fails(capsys, "eval", str(half.path))
    assert half.metrics_file.read_bytes() == before


def test_a_finished_run_says_so_and_does_nothing(whole, capsys):
    before = {path: path.stat().st_mtime_ns for path in whole.path.rglob("*") if path.name != ".lock"}
    main(["train", "--resume", str(whole.path)])
    assert "is finished, with 128 of 128 steps: nothing to do. To train on, give a higher" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in whole.path.rglob("*") if path.name != ".lock"} == before
    message = fails(capsys, "train", "--resume", str(whole.path), "--total-steps", "64")
    assert "has 128 steps already: --total-steps must be above, got 64" in message
    assert whole.config().train.ppo.total_steps == 128


def test_the_total_can_be_raised_and_the_new_learning_rate_is_told(whole, half, capsys):
    main(["train", "--resume", str(half.path), "--total-steps", "160"])
    err = " ".join(capsys.readouterr().err.split())
    assert "falls to 0 at 160 steps instead of 128: it goes on at 4e-05 instead of 2.5e-05." in err
    assert [row["steps"] for row in half.metrics()] == [0, 32, 64, 96, 128, 160]
    assert half.config() == with_total_steps(whole.config(), 160)
    assert half.metrics()[:4] == whole.metrics()[:4]


def test_rates_follow_the_schedule(whole):
    config = whole.config()
    rate = config.train.ppo.learning_rate
    assert rates_at(64, config, with_total_steps(config, 256)) == pytest.approx([rate / 2, rate * 3 / 4])


def test_a_run_with_a_constant_rate_is_the_longer_run_from_the_start(tmp_path):
    words = ["--no-anneal-learning-rate"]
    long, short = (
        train(tmp_path / "long", "--total-steps", "96", *words),
        train(tmp_path / "a", "--total-steps", "64", *words),
    )
    resume_run(short.path, 96)
    assert_same_runs(long, short)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["gymnax:CartPole-v1"], "ENV"),
        (["--out", "elsewhere"], "--out"),
        (["--ppo.n-envs", "8", "--seed", "3"], "--seed, --ppo"),
        (["--log", "wandb"], "--log"),
    ],
)
def test_what_a_run_was_made_with_cannot_be_given_again(whole, capsys, words, names):
    message = fails(capsys, "train", *words, "--resume", str(whole.path))
    assert f"takes only --total-steps and --no-cache beside it, got {names}: leave that out" in message


@pytest.mark.parametrize("words", [[], ["gymnax:CartPole-v1"], ["--out", "x"]])
def test_neither_a_new_run_nor_an_old_one(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "train needs an environment and --out RUN" in fails(capsys, "train", *words)
    assert list(tmp_path.iterdir()) == []


def test_only_one_process_trains_in_a_folder(half, capsys):
    with half.locked():
        assert "another process is training in" in fails(capsys, "train", "--resume", str(half.path))
        main(["eval", str(half.path), "--episodes", "2"])  # reading is free
    with half.locked():
        pass


def test_more_than_the_default_is_remembered(tmp_path):
    log = ["--log", "jsonl", "tensorboard", "wandb"]
    folder = train(tmp_path / "run", "--total-steps", "64", *log)
    first = json.loads((folder.checkpoints / "step_0000000032" / "checkpoint.json").read_text())
    shutil.rmtree(folder.checkpoints / "step_0000000064")  # as a kill before it is written would leave it
    resume_run(folder.path, 96)
    second = json.loads((folder.checkpoints / "step_0000000096" / "checkpoint.json").read_text())
    assert second["log"]["wandb_run_id"] == first["log"]["wandb_run_id"]
    runs = list((folder.path / "wandb").glob("offline-run-*"))
    assert {path.name.rpartition("-")[2] for path in runs} == {first["log"]["wandb_run_id"]}
    sent = [row["steps"] for path in sorted(runs) for row in history(wandb_records(path))]
    assert sent == [0, 32, 64, 96]
    assert len(list((folder.path / "tensorboard").glob("events.*"))) == 2
    assert [row["steps"] for row in folder.metrics()] == [0, 32, 64, 96]


@pytest.mark.parametrize(
    ("resumed", "there", "after", "sent"),
    [
        (False, None, None, [32, 64, 96]),
        (False, None, 64, [96]),
        (True, 64, 64, [96]),
        (True, 32, 64, [64, 96]),  # what the killed process had not got rid of is sent after all
        (True, None, 64, [32, 64, 96]),
        (True, 96, 64, [96]),
    ],
)
def test_wandb_is_not_told_twice(monkeypatch, resumed, there, after, sent):
    import wandb

    rows: list[Any] = []
    run = SimpleNamespace(
        id="x", resumed=resumed, summary={} if there is None else {"steps": there}, log=rows.append,
        define_metric=lambda *args, **kwargs: None, finish=lambda exit_code: None,
    )  # fmt: skip
    monkeypatch.setattr(wandb, "init", lambda **kwargs: run)
    with WandbLogger(resume_after=after) as logger:
        for steps in (32, 64, 96):
            logger({"loss": 0.5}, steps)
    assert [row["steps"] for row in rows] == sent


def test_a_log_that_lost_rows_is_pointed_out(half, capsys):
    half.metrics_file.write_bytes(b"")
    main(["train", "--resume", str(half.path)])
    assert "is shorter than it was at the checkpoint: rows are lost" in " ".join(capsys.readouterr().err.split())
    assert [row["steps"] for row in half.metrics()] == [128]


def test_a_changed_network_is_refused(half, capsys):
    config = json.loads((half.path / "config.json").read_text())
    config["network"]["hidden_size"] = 5
    (half.path / "config.json").write_text(json.dumps(config))
    message = fails(capsys, "train", "--resume", str(half.path))
    assert "do not fit" in message
    assert "memory/cell" in message
    assert "config.json has changed since: network.hidden_size was 4, is 5." in message
    assert "config.json has changed since: network.hidden_size was 4, is 5." in fails(capsys, "eval", str(half.path))
    assert len(half.metrics()) == 4


def test_policies_are_rebuilt_from_the_folder_alone(whole, tmp_path):
    _, _, _, expected = restore_run(whole.path)
    for path in (whole.path, whole.checkpoints, whole.checkpoints / "step_0000000128"):
        policy = load_policy(path)
        assert_same_bits(nnx.state(expected), nnx.state(policy))
        assert policy["heads"]["action"][-1].deterministic
    older = load_policy(whole.checkpoints / "step_0000000096")
    assert any((a != b).any() for a, b in zip(bits(nnx.state(expected)), bits(nnx.state(older)), strict=True))


def test_policies_of_python_need_their_network(tmp_path):
    network = mlp(1)
    with make_checkpoint_fn(tmp_path / "mine") as checkpoint_fn:
        for steps in (1, 2):
            checkpoint_fn(new_training_state(RandomEnds(), network, 4, 0), steps)
    for path in (tmp_path / "mine", tmp_path / "mine" / "step_0000000001"):
        with pytest.raises(CheckpointError, match=r"does not say how its network is made.*pass it as networks="):
            load_policy(path)
        policy = mlp(2)
        assert load_policy(path, policy) is policy
        assert_same_bits(nnx.state(network, nnx.Param), nnx.state(policy, nnx.Param))
    with pytest.raises(RunFolderError, match="holds no checkpoint"):
        load_policy(tmp_path, mlp())
    (tmp_path / "mine" / "step_0000000002" / "checkpoint.json").unlink()
    load_policy(tmp_path / "mine", mlp())
    with pytest.raises(DamagedCheckpointError, match=r"step_0000000002 holds no readable checkpoint\.json"):
        load_policy(tmp_path / "mine" / "step_0000000002", mlp())


def test_rows_are_whole_or_an_error(tmp_path, monkeypatch):
    with JsonLinesLogger(tmp_path / "log.jsonl") as logger:
        logger({"a": 1.0}, 1)

        class Full:
            closed = False

            def write(self, data):
                return len(data) - 3

            def close(self):
                pass

        logger._file.close()
        logger._file = Full()
        with pytest.raises(OSError, match="only a part of a row fits"):
            logger({"a": 1.0}, 2)


def test_the_newest_policy_is_the_one_that_eval_sees(half):
    _, _, _, network = restore_run(half.path)
    assert_same_bits(nnx.state(network), nnx.state(_raw(half.checkpoints / "step_0000000096", network)))


def _raw(path: Any, like: Any) -> Any:
    network = nnx.clone(like)
    for _, node in nnx.iter_graph(network):
        if isinstance(node, nnx.Param):
            node.set_value(jax.numpy.zeros_like(node.get_value()))
    return load_policy(path, network)


def test_a_changed_config_is_named(half, capsys):
    text = json.loads((half.path / "config.json").read_text())
    text["train"]["ppo"]["discounting_factor"] = 0.5
    (half.path / "config.json").write_text(json.dumps(text))
    main(["train", "--resume", str(half.path)])
    assert "config.json is not what the checkpoint was trained with: ppo.discounting_factor was 0.99, is 0.5" in (
        " ".join(capsys.readouterr().err.split())
    )


def test_a_changed_network_that_still_fits_is_named(half, capsys, monkeypatch):
    config = json.loads((half.path / "config.json").read_text())
    config["network"]["activation"] = "tanh"
    config["env_args"]["delay"] = 2
    config["reward_scale"] = 0.5
    (half.path / "config.json").write_text(json.dumps(config))
    names = "env_args was {'delay': 1}, is {'delay': 2}; network.activation was 'swish', is 'tanh'"
    policy = load_policy(half.path)
    err = " ".join(capsys.readouterr().err.split())
    assert f"config.json is not what step_0000000096 was made with: {names}. The saved parameters act in what" in err
    assert policy["heads"]["action"][0].activation is jax.numpy.tanh
    load_policy(half.path, networks=policy)  # what the caller brings needs no config.json
    assert capsys.readouterr().err == ""
    config["env_args"]["delay"] = 1
    (half.path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(training_run, "_train", lambda *args: None)
    main(["train", "--resume", str(half.path)])
    assert (
        "config.json is not what the checkpoint was trained with: network.activation was 'swish', is 'tanh'; "
        "reward_scale was 1.0, is 0.5. The run goes on with it."
    ) in " ".join(capsys.readouterr().err.split())


def test_checkpoints_say_how_their_network_was_made(whole):
    about = json.loads((whole.checkpoints / "step_0000000128" / "checkpoint.json").read_text())
    assert about["description"]["network"] == json.loads((whole.path / "config.json").read_text())["network"]
    assert about["description"]["env"] == "probe:memory_cue"
    assert changed_fields(None, whole.config()) == []  # of before there was any
    assert changed_fields({"env": "probe:counting", "gone": 3}, whole.config()) == [
        "env was 'probe:counting', is 'probe:memory_cue'"
    ]
