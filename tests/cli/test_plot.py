"""nnx-ppo plot: runs that differ in their seed are one curve with a band; the terminal shows the numbers drawn."""

import dataclasses

import numpy as np
import pytest

from nnx_ppo.algorithms.config import TrainConfig
from nnx_ppo.algorithms.loggers import JsonLinesLogger
from nnx_ppo.cli import main
from nnx_ppo.cli import plot as plot_module
from nnx_ppo.cli.run_config import RunConfig
from nnx_ppo.cli.run_folder import RunFolder

REWARD = "eval/episode_reward/mean"


def make_run(path, values, *, seed=0, env="probe:memory_cue", metric=REWARD, **more):
    folder = RunFolder.create(path, RunConfig(env=env, train=TrainConfig(seed=seed)))
    with JsonLinesLogger(folder.metrics_file) as logger:
        for steps, value in values:
            logger({metric: value, **{name: value + shift for name, shift in more.items()}}, steps)
            logger({"losses/total": 1.0}, steps + 5)
    return folder


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def drawn(monkeypatch):
    """Curves that were handed over to be drawn."""
    seen = {}

    def draw(curves, **options):
        seen.update(curves)
        return plot_module_draw(curves, **options)

    plot_module_draw = plot_module.plot_learning_curves
    monkeypatch.setattr(plot_module, "plot_learning_curves", draw)
    return seen


def test_seeds_are_one_curve_from_the_lowest_to_the_highest(tmp_path, capsys, drawn):
    make_run(tmp_path / "lstm-0", [(0, 1.0), (10, 4.0), (20, 6.0)], seed=0)
    make_run(tmp_path / "lstm-1", [(0, 3.0), (10, 2.0), (20, 6.0), (30, 9.0)], seed=1)
    make_run(tmp_path / "other", [(0, 1.0), (10, 1.0)], seed=1, env="probe:counting")
    main(["plot", *(str(tmp_path / name) for name in ("lstm-0", "other", "lstm-1")), "--out", str(tmp_path / "c.png")])
    assert list(drawn) == ["lstm-0 (2 seeds)", "other"]
    curve = drawn["lstm-0 (2 seeds)"]
    np.testing.assert_array_equal(curve.steps, [0, 10, 20])
    np.testing.assert_array_equal(curve.mean, [2.0, 3.0, 6.0])
    np.testing.assert_array_equal(curve.low, [1.0, 2.0, 6.0])
    np.testing.assert_array_equal(curve.high, [3.0, 4.0, 6.0])
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "lstm-0 (2 seeds)" in printed
    rows = [line.replace("│", " ").split()[:2] for line in printed.splitlines()]
    assert [row for row in rows if row and row[0] in ("10", "20")] == [["10", "3"], ["20", "6"], ["10", "1"]]


def test_a_single_run_has_the_middle_half_of_its_episodes(tmp_path, drawn):
    more = {"eval/episode_reward/p25": -1.0, "eval/episode_reward/p75": 1.0}
    make_run(tmp_path / "run", [(0, 1.0), (10, 4.0)], **more)
    main(["plot", str(tmp_path / "run")])
    curve = drawn["run"]
    assert (list(curve.low), list(curve.high)) == ([0.0, 3.0], [2.0, 5.0])
    assert (tmp_path / "run" / "plots" / "eval_episode_reward_mean.png").is_file()


def test_what_was_logged_again_after_a_resume_counts_as_logged_then(tmp_path, drawn):
    folder = make_run(tmp_path / "run", [(0, 0.0), (10, 1.0), (20, 2.0)])
    with JsonLinesLogger(folder.metrics_file) as logger:
        logger({REWARD: 5.0}, 10)
        logger({REWARD: 7.0}, 30)
    main(["plot", str(tmp_path / "run")])
    np.testing.assert_array_equal(drawn["run"].steps, [0, 10, 30])
    np.testing.assert_array_equal(drawn["run"].mean, [0.0, 5.0, 7.0])


def test_a_value_that_is_not_finite_is_a_gap(tmp_path, capsys, drawn):
    make_run(tmp_path / "run", [(0, 1.0), (10, float("nan")), (20, 2.0)], metric="grad_norm")
    main(["plot", str(tmp_path / "run"), "--metric", "grad_norm"])
    np.testing.assert_array_equal(drawn["run"].mean, [1.0, np.nan, 2.0])
    assert "nan" in capsys.readouterr().out


def test_runs_of_equal_names_keep_apart(tmp_path, drawn):
    for i, env in enumerate(("probe:memory_cue", "probe:counting")):
        make_run(tmp_path / str(i) / "run", [(0, float(i))], env=env)
    main(["plot", str(tmp_path / "0" / "run"), str(tmp_path / "1" / "run")])
    assert list(drawn) == ["run", str(tmp_path / "1" / "run")]


def fails(capsys, *words):
    with pytest.raises(SystemExit) as caught:
        main(list(words))
    assert caught.value.code == 2
    return " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_mistakes_are_one_message(tmp_path, capsys):
    empty = RunFolder.create(tmp_path / "empty", RunConfig(env="probe:memory_cue"))
    make_run(tmp_path / "a", [(0, 1.0)])
    make_run(tmp_path / "b", [(7, 1.0)], seed=1)
    assert "is no run folder" in fails(capsys, "plot", str(tmp_path / "none"))
    assert "train with --log jsonl" in fails(capsys, "plot", str(empty.path))
    message = fails(capsys, "plot", str(tmp_path / "a"), "--metric", "eval/episode_reward/maen")
    assert "has logged no 'eval/episode_reward/maen'. Did you mean eval/episode_reward/mean?" in message
    assert "no step in common" in fails(capsys, "plot", str(tmp_path / "a"), str(tmp_path / "b"))
    assert "unrecognized" in fails(capsys, "plot", str(tmp_path / "a"), "--smooth", "3").lower()


def test_configurations_that_differ_are_not_averaged(tmp_path):
    runs = [make_run(tmp_path / str(i), [(0, 1.0)], seed=i) for i in range(2)]
    config = runs[0].config()
    config = dataclasses.replace(config, reward_scale=0.5)
    runs.append(RunFolder.create(tmp_path / "2", config))
    assert [len(members) for members in plot_module.group_by_seed(runs).values()] == [2, 1]


def test_copies_of_a_run_count_once(tmp_path, capsys, drawn):
    make_run(tmp_path / "copy", [(0, 1.0)], seed=3)
    make_run(tmp_path / "whole", [(0, 1.0), (10, 5.0)], seed=3)
    make_run(tmp_path / "other", [(0, 3.0), (10, 7.0)], seed=4)
    names = [str(tmp_path / name) for name in ("copy", "whole", "other", "other")]
    main(["plot", *names])
    curve = drawn["whole (2 seeds)"]
    assert (list(curve.mean), list(curve.low)) == ([2.0, 6.0], [1.0, 5.0])
    said = " ".join(capsys.readouterr().err.split())
    assert f"{names[0]} has the configuration and the seed of {names[1]}: it is a copy, and does not count." in said
    assert f"{names[2]} has the configuration and the seed of {names[2]}" in said
    main(["plot", names[2], names[2]])
    assert list(drawn["other"].low or ()) == []


def test_nothing_of_another_picture_is_written_over(tmp_path, capsys):
    runs = [str(make_run(tmp_path / str(i), [(0, float(i))], seed=i).path) for i in range(2)]
    mine = tmp_path / "0" / "learning_curve.png"
    mine.write_text("the picture of the demo")
    main(["plot", runs[0]])
    main(["plot", runs[0]])  # from the log of the run alone, so that it is drawn anew
    assert mine.read_text() == "the picture of the demo"
    main(["plot", *runs])
    assert (tmp_path / "learning_curves.png").is_file()
    assert "learning_curves.png exists" in fails(capsys, "plot", *runs)
    message = fails(capsys, "plot", runs[0], "--out", str(mine))
    assert "exists: choose another place with --out, or write over it with --replace." in message
    main(["plot", runs[0], "--out", str(mine), "--replace"])
    assert mine.read_bytes().startswith(b"\x89PNG")


def test_bars_have_one_scale_and_rows_left_out_are_counted(tmp_path, capsys, monkeypatch):
    make_run(tmp_path / "low", [(i, i / 10) for i in range(0, 400, 10)])
    make_run(tmp_path / "high", [(0, 100.0), (10, 50.0)], env="probe:counting")
    monkeypatch.setenv("COLUMNS", "120")
    main(["plot", "low", "high"])
    printed = capsys.readouterr().out
    scale = "bar: from 0 to 100, the same in all tables"
    assert printed.count(scale) == 2
    assert printed.count(f"{scale}; 12 of 40 rows") == 1
    bars = [line.count("█") for line in printed.splitlines() if "█" in line or " 50 " in line]
    assert max(bars) == 30
    assert 15 in bars
    main(["plot", "high"])
    assert "bar: from 50 to 100 " in capsys.readouterr().out


@pytest.mark.parametrize("columns", ["40", "80"])
def test_tables_fit_on_the_screen(tmp_path, capsys, monkeypatch, columns):
    make_run(tmp_path / "run", [(i * 10**6, -1234.5 * i) for i in range(20)])
    monkeypatch.setenv("COLUMNS", columns)
    main(["plot", "run"])
    table = capsys.readouterr().out.splitlines()[:-1]
    assert max(map(len, table)) <= int(columns)
    assert any("19,000,000" in line and "-2.346e+04" in line for line in table)
    assert any("█" in line for line in table)
