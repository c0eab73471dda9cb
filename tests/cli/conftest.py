"""One small run for all tests that only read it."""

import pathlib

import pytest

from nnx_ppo.cli import main
from tests.cli.test_commands import TINY


@pytest.fixture(scope="session")
def kept_run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run of three evaluations that kept the checkpoint of each."""
    path = tmp_path_factory.mktemp("kept") / "run"
    keep_all = ["--keep-last", "None", "--keep-best", "None"]
    main(["train", *TINY, "--out", str(path), "--ppo.total-steps", "96", "--seed", "5", *keep_all])
    return path
