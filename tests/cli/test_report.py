"""nnx-ppo report, from a run made once: what is in it, with a recording and a film or without."""

import dataclasses
import json
import pathlib
import shutil

import html5lib
import jax
import pytest

from nnx_ppo.algorithms.rollout import eval_rollout
from nnx_ppo.cli import main
from nnx_ppo.cli.networks import NetworkConfig
from nnx_ppo.cli.report_contents import configuration_section
from nnx_ppo.cli.restore import restore_run
from nnx_ppo.cli.run_config import RunConfig
from nnx_ppo.cli.run_folder import RunFolder
from tests.cli.test_commands import TINY, fails
from tests.recordings.test_report import find, text_of


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    main(["train", *TINY, "--out", str(path), "--ppo.total-steps", "64"])
    return path


def read(path):
    return html5lib.HTMLParser(strict=True).parse(path.read_text("utf-8"))


def test_everything_about_a_run(run, capsys):
    main(["report", str(run), "--episodes", "3", "--seed", "1"])
    printed = capsys.readouterr()
    assert "There is no recording yet: compiling one" in printed.err
    assert f"Report: {run / 'report.html'}" in printed.out
    assert not list((run / "recordings").iterdir())
    page = read(run / "report.html")
    headings = ["Learning curves", "Evaluation", "Health of the layers", "Activity", "Configuration"]
    assert [text_of(h) for h in find(page, "h2")] == headings
    _, config, env, network = restore_run(run)
    metrics = eval_rollout(env, network, 3, config.train.eval.max_episode_length, jax.random.key(1))
    rows = {text_of(row[0]): text_of(row[1]) for row in find(page, "tr") if len(row) == 2}
    assert rows["episode_reward/mean"] == f"{metrics['eval/episode_reward/mean']:.4g}"
    assert rows["env"] == "probe:memory_cue"
    assert rows["network.hidden_size"] == "4"
    assert "probe:memory_cue, 64 environment steps, seed 17" in [text_of(p) for p in find(page, "p")]
    assert rows["n_envs"] == str(config.train.eval.n_envs)  # of the last table that has it
    captions = [text_of(caption) for caption in find(page, "figcaption")]
    assert any(caption.startswith("eval/episode_reward/mean.") for caption in captions)
    assert sum(image.get("alt") == "" for image in find(page, "img")) == 0
    assert len(find(page, "img")) >= 5


def test_a_recording_and_a_film_that_are_there(run, tmp_path, capsys):
    main(["record", str(run), "--n-envs", "2", "--include", "memory"])
    (run / "videos").mkdir()
    (run / "videos" / "step_0000000032.mp4").write_bytes(b"old")
    (run / "videos" / "step_0000000064.mp4").write_bytes(b"new")
    out = tmp_path / "r.html"
    main(["report", str(run), "--episodes", "3", "--seed", "1", "--out", str(out)])
    page = read(out)
    assert "One episode: step_0000000064.mp4." in [text_of(caption) for caption in find(page, "figcaption")]
    assert "3 steps of 2 environments." in [text_of(p) for p in find(page, "p")]
    assert "memory" in [text_of(th) for th in find(page, "th")]
    assert "heads/action/0" not in [text_of(th) for th in find(page, "th")]


def test_a_run_that_is_not_at_its_end(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    config = json.loads((copy / "config.json").read_text())
    config["train"]["ppo"]["total_steps"] = 4096
    (copy / "config.json").write_text(json.dumps(config))
    main(["report", str(copy), "--episodes", "3"])
    page = read(copy / "report.html")
    assert "probe:memory_cue, 64 of 4,096 environment steps, seed 17" in [text_of(p) for p in find(page, "p")]
    captions = [text_of(caption) for caption in find(page, "caption")]
    assert "The policy after 64 environment steps, without exploration, 3 episodes" in captions


def test_only_settings_that_count_are_shown():
    network = dataclasses.replace(NetworkConfig(), kind="mine:make")
    section = configuration_section(RunFolder(pathlib.Path("none")), RunConfig(env="probe:counting", network=network))
    shown = [row[0] for row in section.tables[0].rows]
    assert "network.kind" in shown
    assert [name for name in shown if name.startswith("network.")] == ["network.kind"]


def test_what_is_refused(run, capsys):
    assert "must name a file that ends in .html" in fails(capsys, "report", str(run), "--out", "x.pdf")
    assert "--episodes must be at least 1" in fails(capsys, "report", str(run), "--episodes", "0")
    assert "there is no recording" in fails(capsys, "report", str(run), "--recording", str(run / "none.zarr"))
