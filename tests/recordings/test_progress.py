"""Progress bars as they are drawn on a terminal; a test otherwise has none, where nothing is drawn at all."""

import numpy as np
import pytest

from nnx_ppo.recordings.progress import RecordingProgress, counting


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")


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
