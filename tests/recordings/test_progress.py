"""Progress as bars on a terminal, which a test otherwise does not have, and as lines in the log of a batch job."""

import time

import numpy as np
import pytest

from nnx_ppo.recordings.progress import Lines, RecordingProgress, busy, counting


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")


def test_a_bar_whose_total_is_not_known_yet(capsys):
    with counting("reading", "chunks"):
        pass
    assert "reading" in capsys.readouterr().err


def test_a_bar_shows_what_is_done_and_of_how_much(capsys):
    with counting("reading", "chunks") as on_progress:
        on_progress(3, 7)
    assert "3 of 7 chunks" in capsys.readouterr().err


def test_a_recording_shows_its_steps_and_its_episodes(capsys):
    rows = {"episode": {"": np.zeros((5, 2), np.int32)}, "done": {"": np.zeros((5, 2), bool)}}
    with RecordingProgress(2, 40, None, show=True) as progress:
        progress.update(rows)
    assert "10 of 80 environment steps" in capsys.readouterr().err
    rows = {"episode": {"": np.array([[0, 0]])}, "done": {"": np.array([[True, False]])}}
    with RecordingProgress(2, None, 3, show=True) as progress:
        progress.update(rows)
        progress.verifying()
    drawn = capsys.readouterr().err
    assert "1 of 6 episodes" in drawn
    assert "verifying" in drawn


def test_a_batch_job_gets_a_line_now_and_then(capsys):
    slept, seconds = [], iter([0.0, 30.2, 95.0])

    def sleep(duration):
        slept.append(duration)
        return len(slept) > 2

    progress = iter(["3", "9"])
    lines = Lines(lambda: f"reading: {next(progress)} of 9 chunks", sleep=sleep, clock=lambda: next(seconds))
    lines.run()
    assert slept == [30.0] * 3
    assert capsys.readouterr().err == "reading: 3 of 9 chunks, 0:30 so far\nreading: 9 of 9 chunks, 1:35 so far\n"


@pytest.fixture
def batch_job(monkeypatch):
    monkeypatch.delenv("FORCE_COLOR")
    monkeypatch.setattr("nnx_ppo.recordings.progress.SECONDS_BETWEEN_LINES", 0.02)


def wait_for_a_line(capsys, word):
    seen = ""
    deadline = time.monotonic() + 20
    while word not in seen and time.monotonic() < deadline:
        time.sleep(0.02)
        seen += capsys.readouterr().err
    return seen


def test_lines_follow_what_a_bar_would_show(batch_job, capsys):
    with counting("reading", "chunks") as on_progress:
        assert "reading, 0:00 so far\n" in wait_for_a_line(capsys, "reading")
        on_progress(3, 7)
        assert "reading: 3 of 7 chunks, 0:00 so far\n" in wait_for_a_line(capsys, "3 of 7")
    with busy("evaluating 64 episodes"):
        assert "evaluating 64 episodes, 0:00 so far\n" in wait_for_a_line(capsys, "evaluating")
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr().err == "", "nothing is printed once it is done"


def test_a_recording_that_is_not_to_be_shown_prints_nothing(batch_job, capsys):
    with RecordingProgress(2, 40, None, show=False):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_what_is_not_counted_shows_that_it_goes_on(capsys):
    with busy("evaluating"):
        pass
    assert "evaluating" in capsys.readouterr().err
