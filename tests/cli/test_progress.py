"""The progress bar says what it is busy with, the reward, the speed and the time left."""

import io
import time

import pytest
from rich.console import Console

from nnx_ppo.cli.progress import TrainingProgress


@pytest.mark.parametrize("width", [40, 74, 75])
def test_nothing_is_cut_off_on_a_narrow_terminal(width):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=width, color_system=None)
    with TrainingProgress(10**9, console) as progress:
        progress.on_phase("evaluating")
        progress.log({"eval/episode_reward/mean": -12345.6}, 10**8)
        progress._progress.refresh()
    text = screen.getvalue()
    assert "…" not in text
    assert "evaluating" in text
    assert "10%" in text
    assert "reward -12,345.6" in text


def test_a_terminal_sees_phase_reward_speed_and_time_left():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    with TrainingProgress(1000, console) as progress:
        progress.on_phase("compiling")
        progress._progress.refresh()
        assert "compiling" in screen.getvalue()
        progress.on_phase("training")
        for steps in (100, 200, 300):
            progress.log({"eval/episode_reward/mean": steps / 2.0}, steps)
        progress._progress.refresh()
    text = screen.getvalue()
    assert "30%" in text
    assert "reward 150.0" in text
    assert "steps/s" in text
    assert "left" in text
    assert "…" not in text, "nothing is cut off in a terminal of 80 columns"


def test_the_clock_starts_after_the_first_iteration():
    progress = TrainingProgress(1000, Console(file=io.StringIO(), force_terminal=True))
    (task,) = progress._progress.tasks
    progress.log({}, 0)
    assert task.start_time is None
    progress.log({}, 100)
    assert task.start_time is not None


def test_a_file_gets_one_line_per_evaluation_and_one_for_compiling():
    log = io.StringIO()
    with TrainingProgress(1000, Console(file=log)) as progress:
        progress.on_phase("compiling")
        progress.log({"eval/episode_reward/mean": -1.5}, 0)
        progress.log({"losses/total": 1.0}, 100)
        progress.log({"eval/episode_reward/mean": float("nan")}, 200)
    lines = [" ".join(line.split()) for line in log.getvalue().splitlines()]
    assert lines == [
        "Compiling.",
        "0 steps evaluation reward -1.50",
        "200 steps evaluation reward nan",
    ]


def test_numbers_that_are_not_finite_are_pointed_out_once():
    console = Console(file=io.StringIO(), width=300)
    with TrainingProgress(100, console) as progress:
        progress.log({"nonfinite": 0.0}, 10)
        assert "Warning" not in console.file.getvalue()
        progress.log({"nonfinite": 3.0}, 20)
        progress.log({"nonfinite": 3.0}, 30)
    assert console.file.getvalue().count("Warning: 3 numbers of the training log are not finite at 20 steps") == 1


def test_a_file_gets_a_line_now_and_then_between_evaluations(monkeypatch, capsys):
    monkeypatch.setattr("nnx_ppo.recordings.progress.SECONDS_BETWEEN_LINES", 0.02)
    with TrainingProgress(1000, Console(file=io.StringIO())) as progress:
        progress.on_phase("compiling")
        seen, deadline = "", time.monotonic() + 20
        while "compiling, 0:00 so far" not in seen and time.monotonic() < deadline:
            time.sleep(0.02)
            seen += capsys.readouterr().err
        progress.on_phase("training")
        progress.log({"losses/total": 1.0}, 300)
        while "300" not in seen and time.monotonic() < deadline:
            time.sleep(0.02)
            seen += capsys.readouterr().err
    assert "compiling, 0:00 so far" in seen
    assert "training: 300 of 1,000 steps, 0:00 so far" in seen
