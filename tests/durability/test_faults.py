"""Full disks and folders that cannot be written: one message, older checkpoints as they were, and a way to go on.

A limit on the size of files, which the operating system enforces like a full disk, stands for the disk.
"""

import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import jax
import pytest

from nnx_ppo.algorithms.checkpoint_files import CheckpointError, complete_checkpoints
from nnx_ppo.algorithms.checkpointing import make_checkpoint_fn
from nnx_ppo.algorithms.loggers import read_metrics
from nnx_ppo.algorithms.ppo import new_training_state
from nnx_ppo.cli import main
from nnx_ppo.cli.run_folder import RunFolder, RunFolderError
from tests.cli.test_commands import TINY
from tests.helpers import RandomEnds, mlp

ROOT = pathlib.Path(__file__).parents[2]

FULL_DISK = """
import resource, sys
from nnx_ppo.algorithms import checkpoint_files
from nnx_ppo.cli import main


def limited(*args):
    # From the third checkpoint on, no file can be larger than its arrays are.
    limited.calls += 1
    if limited.calls == 3:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.RLIM_INFINITY))
    return save(*args)


save, limited.calls = checkpoint_files._save_arrays, 0
if sys.argv.pop(1) == "checkpoint":
    checkpoint_files._save_arrays = limited
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
main()
"""


def run(kind: str, *words: str) -> Any:
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir)}
    return subprocess.run(
        [sys.executable, "-c", FULL_DISK, kind, "train", *words],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip


def plain(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize("kind", ["checkpoint", "log"])
def test_a_full_disk_ends_the_run_with_a_message_and_the_run_goes_on(tmp_path, kind):
    out = tmp_path / "run"
    done = run(kind, *TINY, "--out", str(out), "--total-steps", str(32 * 300), "--keep-last", "9")
    assert done.returncode == 2, done.stderr
    message = plain(done.stderr)
    if kind == "checkpoint":
        assert "the checkpoint after 96 steps could not be written" in message
        assert "Earlier checkpoints are as they were" in message
        assert [path.name for path in complete_checkpoints(out / "checkpoints")] == [
            "step_0000000064", "step_0000000032",
        ]  # fmt: skip
        assert not list((out / "checkpoints").glob(".*"))
    else:
        assert "Traceback" not in message
        assert "OSError" in message
        assert "File too large" in message or "fits into" in message
    assert f"nnx-ppo train --resume {out}" in message
    latest = RunFolder.open(out).metrics()[-1]["steps"]
    main(["train", "--resume", str(out), "--total-steps", str(latest + 64)])
    steps = [row["steps"] for row in read_metrics(out / "metrics.jsonl")]
    assert steps == list(range(0, latest + 65, 32))


def test_a_full_disk_is_found_out_before_anything_is_written(tmp_path, monkeypatch):
    checkpoint_fn = make_checkpoint_fn(tmp_path)
    state = new_training_state(RandomEnds(), mlp(), 4, 0)
    checkpoint_fn(state, 1)
    checkpoint_fn.wait()
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    checkpoint_fn(state, 2)
    with pytest.raises(
        CheckpointError, match=r"No space left on device, 0\.\d MiB are to be written, 0\.0 MiB are free"
    ):
        checkpoint_fn.close()
    assert [path.name for path in tmp_path.iterdir()] == ["step_0000000001"]


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("mine")
    checkpoint_fn = make_checkpoint_fn(tmp_path / "file")
    checkpoint_fn(new_training_state(RandomEnds(), mlp(), 4, 0), 1)
    with pytest.raises(CheckpointError, match=r"after 1 steps could not be written in .*Not a directory"):
        checkpoint_fn.close()
    assert (tmp_path / "file").read_text() == "mine"
    lock = RunFolder(tmp_path / "file").locked()
    with pytest.raises(RunFolderError, match=r"cannot write the run folder .*file \("), lock:
        pass
