"""The commands end to end: train, evaluate, record, and what happens when something is wrong or interrupted."""

import contextlib
import gc
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import warnings

import jax
import numpy as np
import pytest

from nnx_ppo.algorithms.checkpointing import latest_checkpoint
from nnx_ppo.algorithms.rollout import eval_rollout, record_activations_rollout
from nnx_ppo.cli import main
from nnx_ppo.cli.restore import restore_run
from nnx_ppo.cli.run_folder import RunFolder
from nnx_ppo.cli.training_run import resume_run

ROOT = pathlib.Path(__file__).parents[2]
TINY = [
    "probe:memory_cue", "--env-args", "delay=1", "--network", "lstm", "--network.hidden-size", "4",
    "--network.actor-hidden-sizes", "5", "--network.critic-hidden-sizes", "6",
    "--ppo.n-envs", "8", "--ppo.n-minibatches", "2", "--ppo.rollout-length", "4", "--ppo.n-epochs", "1",
    "--eval.every-steps", "32", "--eval.n-envs", "4", "--eval.max-episode-length", "6",
]  # fmt: skip


def fails(capsys, *words, code=2):
    with pytest.raises(SystemExit) as caught:
        main(list(words))
    assert caught.value.code == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return " ".join(captured.err.replace("│", " ").split())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    main(["train", *TINY, "--out", str(path), "--ppo.total-steps", "96", "--seed", "5"])
    return path


def test_train_leaves_a_run_folder(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["steps"] for row in rows] == [0, 32, 64, 96]
    assert all("eval/episode_reward/mean" in row for row in rows)
    config = RunFolder.open(run).config()
    assert (config.env, config.env_args, config.train.seed, config.train.ppo.n_envs) == (
        "probe:memory_cue", {"delay": 1}, 5, 8,
    )  # fmt: skip


def test_the_log_goes_where_it_is_asked_to(tmp_path):
    out = tmp_path / "run"
    main(["train", *TINY, "--out", str(out), "--ppo.total-steps", "32", "--log", "tensorboard", "wandb"])
    assert not (out / "metrics.jsonl").exists()
    (events,) = (out / "tensorboard").glob("events.out.tfevents.*")
    assert b"losses/total" in events.read_bytes()
    assert len(list((out / "wandb").glob("offline-run-*"))) == 1


def test_a_log_that_does_not_open_is_one_message_and_the_others_are_closed(tmp_path, monkeypatch, capsys):
    import wandb

    def init(**kwargs):
        raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "init", init)
    out = tmp_path / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        message = fails(capsys, "train", *TINY, "--out", str(out), "--log", "jsonl", "tensorboard", "wandb")
        gc.collect()
    assert "W&B did not start a run: No API key configured. Log in with `wandb login`, or set WANDB_MODE=off" in message
    assert [path for path in open_files() if path.startswith(str(out))] == []


def open_files():
    links = []
    for fd in pathlib.Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(os.readlink(fd))
    return links


DRAWN = """
import numpy as np
from nnx_ppo.envs import make_env
from nnx_ppo.wrappers import Wrapper


class Drawn(Wrapper):
    dt = 0.1

    def render(self, trajectory, height, width):
        return [np.full((height, width), 0.5) for _ in trajectory]


def drawn_cue(**options):
    return Drawn(make_env("probe:memory_cue", **options))
"""


def test_videos_are_spread_over_the_run(tmp_path, monkeypatch):
    (tmp_path / "drawn_env.py").write_text(DRAWN)
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "run"
    main(["train", "drawn_env:drawn_cue", *TINY[1:], "--out", str(out), "--ppo.total-steps", "96", "--video", "2"])
    assert sorted(path.name for path in (out / "videos").iterdir()) == ["step_0000000064.mp4", "step_0000000096.mp4"]


def test_an_environment_that_cannot_draw_leaves_nothing(tmp_path, capsys):
    message = fails(capsys, "train", *TINY, "--out", str(tmp_path / "run"), "--video", "2")
    assert "videos need an environment with render(trajectory, **kwargs)" in message
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_found_out_before_anything_is_written(tmp_path, monkeypatch, capsys):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else find_spec(name))
    message = fails(capsys, "train", *TINY, "--out", str(tmp_path / "run"), "--log", "jsonl", "wandb")
    assert "--log wandb needs wandb: pip install 'nnx-ppo[wandb]'" in message
    assert list(tmp_path.iterdir()) == []


def test_plot_draws_a_run_that_train_made(run, capsys):
    main(["plot", str(run)])
    assert (run / "plots" / "eval_episode_reward_mean.png").read_bytes().startswith(b"\x89PNG")
    assert "96" in capsys.readouterr().out


def test_reward_scale_is_for_training_alone(tmp_path):
    counting = [
        "probe:counting",
        *TINY[3:],
        "--ppo.total-steps",
        "32",
        "--env-args",
        "length=3",
        "--reward-scale",
        "0.5",
    ]
    main(["train", *counting, "--out", str(tmp_path / "run")])
    row = RunFolder.open(tmp_path / "run").metrics()[-1]
    assert row["rollout_batch/reward/mean"] == 0.5
    assert row["eval/episode_reward/mean"] == 3.0


def test_eval_reports_what_eval_rollout_gives(run, capsys):
    main(["eval", str(run), "--episodes", "16", "--seed", "3"])
    printed = capsys.readouterr().out
    _, _, env, network = restore_run(run)
    expected = eval_rollout(env, network, 16, 6, jax.random.key(3))["eval/episode_reward/mean"]
    (line,) = [line for line in printed.splitlines() if "episode_reward/mean" in line]
    assert f"{expected:.3f}" in line


def test_the_policy_that_eval_sees_is_the_one_of_the_last_evaluation(run):
    config = RunFolder.open(run).config()
    last = RunFolder.open(run).metrics()[-1]["eval/episode_reward/mean"]
    key = jax.random.fold_in(jax.random.key(config.train.seed), 0x6576616C)
    _, _, env, network = restore_run(run)
    assert eval_rollout(env, network, 4, 6, key)["eval/episode_reward/mean"] == last


def test_record_writes_the_arrays_of_a_recording(run, capsys):
    main(["record", str(run), "--out", str(run / "r.npz"), "--n-envs", "3", "--max-steps", "5", "--seed", "2"])
    recorded = np.load(run / "r.npz")
    _, _, env, network = restore_run(run)
    activations, dones = record_activations_rollout(env, network, n_envs=3, max_episode_length=5, key=jax.random.key(2))
    np.testing.assert_array_equal(recorded["memory"], activations["memory"])
    np.testing.assert_array_equal(recorded["heads/action/0"], activations["heads"]["action"][0])
    np.testing.assert_array_equal(recorded["dones"], dones)
    assert recorded["memory"].shape == (5, 3, 4)
    printed = capsys.readouterr().out
    assert printed.index("normalizer") < printed.index("memory") < printed.index("heads/value/0")


def test_record_can_choose_layers_and_does_not_overwrite(run, capsys):
    out = str(run / "chosen.npz")
    words = ["record", str(run), "--out", out, "--max-steps", "3", "--include", "heads/*", "--exclude", "*/value/*"]
    main(words)
    names = set(np.load(out).files)
    assert {"heads/action/0", "dones"} <= names
    assert not [name for name in names if "value" in name or "memory" in name]
    assert "write over it with --replace" in fails(capsys, *words)
    main([*words, "--replace", "--n-envs", "2"])
    assert np.load(out)["dones"].shape == (3, 2)


def test_a_pattern_that_matches_nothing_is_an_error(run, capsys):
    message = fails(capsys, "record", str(run), "--out", str(run / "n.npz"), "--include", "head/*")
    assert "head/*" in message
    assert not (run / "n.npz").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "gymnax:Pendulm-v1", "--out", "x"], "Pendulum-v1"),
        (["train", "probe:memory_cue", "--out", "x", "--ppo.n-envs", "7"], "n_envs=7 must divide by n_minibatches=4"),
        (["train", "probe:memory_cue", "--out", "x", "--network", "gru2"], "one of mlp, lstm"),
        (["train", "probe:memory_cue", "--out", "x", "--env-args", "delay"], "expected KEY=VALUE, got 'delay'"),
        (["eval", "nowhere"], "nowhere is no run folder"),
        (["record", "nowhere"], "nowhere is no run folder"),
    ],
)
def test_mistakes_are_one_message_and_exit_code_2(words, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert expected in fails(capsys, *words)
    assert list(tmp_path.iterdir()) == []


def test_a_used_run_folder_is_refused_and_left_alone(run, capsys):
    before = (run / "metrics.jsonl").read_bytes()
    assert "already holds a run" in fails(capsys, "train", *TINY, "--out", str(run))
    assert (run / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("words", [["eval", "{}", "--episodes", "0"], ["record", "{}", "--max-steps", "0"]])
def test_counts_are_checked(words, run, capsys):
    assert "must be at least 1" in fails(capsys, *[word.format(run) for word in words])


@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_a_bug_keeps_its_traceback(kind, run, monkeypatch):
    def broken(*args, **kwargs):
        raise kind("a bug")

    monkeypatch.setattr("nnx_ppo.cli.eval.eval_rollout", broken)
    with pytest.raises(kind, match="a bug"):
        main(["eval", str(run)])


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_everything_and_says_how_to_go_on(tmp_path, signum, code):
    program = "from nnx_ppo.cli import main; main()"
    words = ["train", *TINY, "--out", str(tmp_path / "the run"), "--ppo.total-steps", str(10**9)]
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir}
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    )
    log = tmp_path / "the run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None and not (log.exists() and log.stat().st_size > 5000):
        time.sleep(0.1)
    process.send_signal(signum)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert f"{signal.Signals(signum).name}: saving after this iteration" in err
    assert f"Go on with: nnx-ppo train --resume '{tmp_path / 'the run'}'" in err
    assert "Traceback" not in err
    folder = RunFolder.open(tmp_path / "the run")
    rows = [row["steps"] for row in folder.metrics()]
    assert latest_checkpoint(folder.checkpoints) == folder.checkpoints / f"step_{rows[-1]:010d}"
    assert rows == list(range(0, rows[-1] + 1, 32))
    resume_run(folder.path, rows[-1] + 64)
    assert [row["steps"] for row in folder.metrics()] == [*rows, rows[-1] + 32, rows[-1] + 64]


def test_modules_of_the_current_folder_are_found(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_envs_here.py").write_text(
        "from nnx_ppo.envs.probes import ConstantReward\n\n\ndef make():\n    return ConstantReward()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    main(["train", "my_envs_here:make", "--out", "run", *TINY[3:], "--ppo.total-steps", "32"])
    assert RunFolder.open(tmp_path / "run").config().env == "my_envs_here:make"


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["train", *TINY, "--out", "x", "--network.entropy-weight", "nan"], "entropy_weight must be a finite number"),
        (
            ["train", "probe:memory_cue", "--out", "x", "--network.hidden-size", "8"],
            "--network.hidden-size would do nothing for --network mlp: leave it out, or choose another network",
        ),
        (
            ["train", "probe:memory_cue", "--out", "x", "--network", "mine:make", "--network.activation", "tanh"],
            "--network.activation would do nothing for --network mine:make",
        ),
        (["train", *TINY, "--out", "x", "--train-episode-length", "0"], "train_episode_length must be at least 1"),
    ],
)
def test_more_bad_options(tmp_path, monkeypatch, capsys, words, match):
    monkeypatch.chdir(tmp_path)
    assert match in fails(capsys, *words)
    assert not (tmp_path / "x").exists()


def test_pictures_and_recordings_have_the_right_suffix(run, tmp_path, capsys):
    assert "must name a picture that ends in one of .png, .pdf, .svg" in fails(
        capsys, "plot", str(run), "--out", str(tmp_path / "curve.xyz")
    )
    assert "must name a .zarr folder or an .npz file" in fails(
        capsys, "record", str(run), "--out", str(tmp_path / "recording.txt")
    )


def test_what_does_not_fit_is_refused_before_a_folder_is_made(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_network_here.py").write_text(
        "from nnx_ppo import make_mlp_actor_critic\n\n\n"
        "def wrong(env, rngs):\n    return make_mlp_actor_critic(7, env.action_size, [4], [4], rngs)\n"
    )
    monkeypatch.chdir(tmp_path)
    message = fails(capsys, "train", "probe:memory_cue", "--out", "run", "--network", "my_network_here:wrong")
    assert "FitError" in message
    assert not (tmp_path / "run").exists()


def test_recordings_are_read_on_a_terminal_too(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # bars are drawn, as they are on no other output
    store = str(tmp_path / "r.zarr")
    main(["record", str(run), "--out", store, "--max-steps", "8"])
    main(["inspect", store])
    main(["check", store])
    drawn = capsys.readouterr()
    assert "Every chunk has its checksum" in drawn.out
    assert "reading" in drawn.err
    assert "checking" in drawn.err
