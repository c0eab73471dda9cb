"""A training process that is killed (SIGKILL) twenty times, also within a checkpoint or a row, ends to the bit.

One run is killed again and again and resumed each time. It has to go on from the newest complete checkpoint, and to end
with the very log and state of a run that nobody touched.
"""

import os
import pathlib
import random
import re
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np

from nnx_ppo.algorithms.checkpoint_files import (
    complete_checkpoints,
    read_about,
    read_arrays,
    steps_of,
    stored_arrays,
)
from nnx_ppo.algorithms.loggers import read_metrics
from tests.cli.test_commands import TINY

ROOT = pathlib.Path(__file__).parents[2]
KILLS = 20
ITERATIONS = 1200
TRAIN = [
    *TINY, "--ppo.total-steps", str(32 * ITERATIONS), "--eval.every-steps", str(32 * 100),
    "--checkpoint-every-steps", str(32 * 7), "--anneal-learning-rate",
]  # fmt: skip

# Slows the process down where a kill is to hit: within a checkpoint, around its renaming, in the middle of a row.
SLOW = """
import sys, time
from nnx_ppo.algorithms import checkpoint_files, loggers
from nnx_ppo.cli import main


def slowly(function, before, after):
    def call(*args):
        time.sleep(before)
        result = function(*args)
        time.sleep(after)
        return result
    return call


class InHalves:
    closed = False

    def __init__(self, file):
        self.file = file

    def write(self, data):
        half = len(data) // 2
        n = self.file.write(data[:half])
        time.sleep(0.003)
        return n + self.file.write(data[half:])

    def close(self):
        self.file.close()


def open_slowly(self, *args, **options):
    opened(self, *args, **options)
    self._file = InHalves(self._file)


opened = loggers.JsonLinesLogger.__init__
loggers.JsonLinesLogger.__init__ = open_slowly
checkpoint_files._save_arrays = slowly(checkpoint_files._save_arrays, 0.02, 0.05)
checkpoint_files._put_in_place = slowly(checkpoint_files._put_in_place, 0.05, 0.0)
checkpoint_files.remove_checkpoint = slowly(checkpoint_files.remove_checkpoint, 0.02, 0.0)
main()
"""
FAST = "from nnx_ppo.cli import main; main()"


def start(program: str, *words: str) -> "subprocess.Popen[str]":
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        # Each life compiles the same programs, small ones too.
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, "-c", program, "train", *words]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def finish(process: "subprocess.Popen[str]") -> str:
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return err


def wait_for(process: "subprocess.Popen[str]", condition: Any) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.002)


def kill(process: "subprocess.Popen[str]", run: pathlib.Path, how: str, rng: random.Random) -> None:
    """Kill at a random moment of a kind: before training is under way, in a checkpoint, or anywhere."""
    log, checkpoints = run / "metrics.jsonl", run / "checkpoints"
    if how == "start":
        time.sleep(rng.uniform(0.0, 2.5))
    else:
        size = log.stat().st_size if log.exists() else 0
        wait_for(process, lambda: log.exists() and log.stat().st_size > size + 2000)
        if how == "anywhere":
            time.sleep(rng.uniform(0.0, 1.0))
        else:
            wait_for(process, lambda: any(checkpoints.glob(".*.partial")))
            time.sleep(rng.uniform(0.0, 0.15))
    process.kill()
    process.communicate()


def state_of(run: pathlib.Path) -> dict[str, np.ndarray]:
    """All arrays of the last checkpoint."""
    newest = complete_checkpoints(run / "checkpoints")[0]
    about = read_about(newest)
    assert about["steps"] == 32 * ITERATIONS
    return read_arrays(newest, about, stored_arrays(about))


def test_twenty_kills(tmp_path):
    rng = random.Random(0)
    whole, run = tmp_path / "whole", tmp_path / "run"
    finish(start(FAST, *TRAIN, "--out", str(whole)))

    kinds = [["start", "checkpoint", "anywhere", "checkpoint"][i % 4] for i in range(KILLS)]
    newest, in_checkpoint, in_row = 0, 0, 0
    process = start(SLOW, *TRAIN, "--out", str(run))
    wait_for(process, (run / "config.json").exists)
    for kind in kinds:
        kill(process, run, kind, rng)
        complete = complete_checkpoints(run / "checkpoints")
        before, newest = newest, (steps_of(complete[0]) or 0) if complete else 0
        assert newest >= before
        in_checkpoint += any((run / "checkpoints").glob(".*"))
        rows = (run / "metrics.jsonl").read_bytes() if (run / "metrics.jsonl").exists() else b""
        in_row += not rows.endswith(b"\n")
        process = start(SLOW, "--resume", str(run))
    kill(process, run, "anywhere", rng)
    complete = complete_checkpoints(run / "checkpoints")
    err = finish(start(FAST, "--resume", str(run)))
    found = re.search(r"Going on from the checkpoint after ([\d,]+) steps", err)
    assert found is not None
    assert int(found[1].replace(",", "")) == steps_of(complete[0])
    assert in_checkpoint >= 5, "too few kills hit a checkpoint that was being written"
    assert in_row >= 1, "no kill hit a row that was being written"
    assert newest < 32 * ITERATIONS, "the run ended before the kills did"

    assert (run / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert len(read_metrics(run / "metrics.jsonl")) == ITERATIONS + 1
    expected, ended = state_of(whole), state_of(run)
    assert expected.keys() == ended.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(array, ended[name], err_msg=name)
    assert not list((run / "checkpoints").glob(".*"))
