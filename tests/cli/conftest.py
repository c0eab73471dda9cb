"""One small run for all tests that only read it, and a screen that folds no path."""

import pathlib

import pytest

from nnx_ppo.cli import console, main
from tests.cli.test_commands import TINY


@pytest.fixture(autouse=True)
def wide_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the paths of temporary files are; a test of a narrow screen sets ``COLUMNS`` after this."""
    for each in (console.stdout, console.stderr):
        # Of a console that was made while COLUMNS was set, as workers of pytest-xdist are, it is that width for ever.
        monkeypatch.setattr(each, "_width", None)
    monkeypatch.setenv("COLUMNS", "400")


@pytest.fixture(scope="session")
def kept_run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run of three evaluations that kept the checkpoint of each."""
    path = tmp_path_factory.mktemp("kept") / "run"
    keep_all = ["--keep-last", "None", "--keep-best", "None"]
    main(["train", *TINY, "--out", str(path), "--ppo.total-steps", "96", "--seed", "5", *keep_all])
    return path
