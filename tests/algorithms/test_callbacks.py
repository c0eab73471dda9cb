"""Loggers: what was logged is read back from the files by means that the loggers do not share."""

import io
import json
import math
import pathlib
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from nnx_ppo.algorithms.callbacks import video_file_fn, wandb_video_fn
from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig, VideoData
from nnx_ppo.algorithms.loggers import (
    JsonLinesLogger,
    TableLogger,
    TensorBoardLogger,
    WandbLogger,
    log_to,
    read_metrics,
)
from nnx_ppo.algorithms.ppo import train_ppo
from tests.helpers import RandomEnds, mlp

ROOT = pathlib.Path(__file__).parents[2]
BEYOND_INT32 = 2**31 + 1
ROWS: list[tuple[dict[str, Any], int]] = [
    ({"losses/total": 0.5, "n": 3, "flag": True}, 0),
    ({"losses/total": float("nan"), "up": float("inf"), "down": float("-inf")}, 2**24 + 1),
    ({"late": np.float32(0.1), "jax": jnp.asarray(2, jnp.int32), "zero_d": np.array(7)}, BEYOND_INT32),
    ({}, BEYOND_INT32 + 1),
    ({"losses/total": 1.0}, 5),
]
EXPECTED = [
    {"losses/total": 0.5, "n": 3.0, "flag": 1.0},
    {"losses/total": math.nan, "up": math.inf, "down": -math.inf},
    {"late": float(np.float32(0.1)), "jax": 2.0, "zero_d": 7.0},
    {},
    {"losses/total": 1.0},
]
STEPS = [steps for _, steps in ROWS]


def same(a: Any, b: Any) -> bool:
    """Equality in which NaN equals NaN."""
    return repr(a) == repr(b)


def log_rows(logger: Any) -> None:
    with logger:
        for metrics, steps in ROWS:
            logger(metrics, steps)


def test_json_lines_are_json_and_read_back(tmp_path):
    path = tmp_path / "deep" / "metrics.jsonl"
    log_rows(JsonLinesLogger(path))

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is no JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]
    assert lines[0] == {"steps": 0, "losses/total": 0.5, "n": 3.0, "flag": 1.0}
    assert lines[1] == {"steps": 2**24 + 1, "losses/total": "NaN", "up": "Infinity", "down": "-Infinity"}
    rows = read_metrics(path)
    assert same(rows, [{"steps": steps, **row} for steps, row in zip(STEPS, EXPECTED, strict=True)])
    assert all(type(value) is float for row in rows for name, value in row.items() if name != "steps")
    assert all(type(row["steps"]) is int for row in rows)


def test_a_torn_line_is_left_out_and_the_file_goes_on_after_it(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with JsonLinesLogger(path) as logger:
        logger({"x": 1.0}, 1)
        logger({"x": 2.0}, 2)
    path.write_bytes(path.read_bytes()[:-4])
    assert read_metrics(path) == [{"steps": 1, "x": 1.0}]
    with JsonLinesLogger(path) as logger:
        logger({"x": 3.0}, 3)
    assert read_metrics(path) == [{"steps": 1, "x": 1.0}, {"steps": 3, "x": 3.0}]


def test_lines_survive_kill_9(tmp_path):
    path = tmp_path / "metrics.jsonl"
    code = (
        "import itertools, sys\n"
        "from nnx_ppo.algorithms.loggers import JsonLinesLogger\n"
        "logger = JsonLinesLogger(sys.argv[1])\n"
        "for i in itertools.count():\n"
        "    logger({f'metric/{k}': float(i) for k in range(100)}, i)\n"
        "    print(i, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 200:
            break
    process.send_signal(signal.SIGKILL)
    confirmed = [int(line), *(int(each) for each in process.stdout.read().split("\n")[:-1])][-1]
    process.stdout.close()
    process.wait()
    rows = read_metrics(path)
    assert [row["steps"] for row in rows] == list(range(len(rows)))
    assert len(rows) > confirmed
    assert all(len(row) == 101 and row["metric/99"] == row["steps"] for row in rows)


def test_what_is_not_a_scalar_is_named(tmp_path):
    with JsonLinesLogger(tmp_path / "m.jsonl") as logger:
        with pytest.raises(TypeError, match=r"metric 'w' must be a scalar, got an array of shape \[3\]"):
            logger({"w": np.zeros(3)}, 0)
        with pytest.raises(TypeError, match="metric 'w' must be a scalar, got 'high'"):
            logger({"w": "high"}, 0)


def test_a_closed_logger_says_so(tmp_path):
    logger = JsonLinesLogger(tmp_path / "m.jsonl")
    logger.close()
    logger.close()
    with pytest.raises(ValueError, match=r"m\.jsonl is closed: make a new one"):
        logger({}, 0)


def event_records(folder: pathlib.Path) -> Iterator[Any]:
    """Scalars of an event file: records of length, checksum, contents, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = folder.glob("events.out.tfevents.*")
    data, position = path.read_bytes(), 0
    while position < len(data):
        (length,) = struct.unpack_from("<Q", data, position)
        event = Event.FromString(data[position + 12 : position + 12 + length])
        position += 16 + length
        for value in event.summary.value:
            yield event.step, value.tag, value.simple_value


def test_tensorboard_holds_every_scalar_at_its_step(tmp_path):
    log_rows(TensorBoardLogger(tmp_path / "tb"))
    expected = [
        (steps, name, float(np.float32(value)))
        for steps, row in zip(STEPS, EXPECTED, strict=True)
        for name, value in row.items()
    ]
    assert same(list(event_records(tmp_path / "tb")), expected)


def wandb_records(folder: pathlib.Path) -> list[Any]:
    """Records of an offline run; its file is written by another process, which may lag behind."""
    (path,) = folder.rglob("*.wandb")
    deadline = time.monotonic() + 20
    while True:
        records = wandb_records_now(path)
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            return records
        assert time.monotonic() < deadline, "the run has not ended"
        time.sleep(0.1)


def wandb_records_now(path: pathlib.Path) -> list[Any]:
    """What a file holds: a log of 32 KiB blocks, pieces with checksum, length and kind."""
    from wandb.proto import wandb_internal_pb2

    data, position, whole, records = path.read_bytes(), 7, b"", []
    assert data[:4] == b":W&B"
    while position + 7 <= len(data):
        if (left := 32768 - position % 32768) < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            records.append(record)
            whole = b""
    return records


@pytest.fixture
def offline(tmp_path):
    return {"mode": "offline", "dir": str(tmp_path), "project": "tests"}


def history(records: list[Any]) -> list[dict[str, Any]]:
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]


def exit_code(records: list[Any]) -> int:
    (code,) = [record.exit.exit_code for record in records if record.WhichOneof("record_type") == "exit"]
    return code


def test_wandb_holds_every_row_with_its_steps(tmp_path, offline):
    log_rows(WandbLogger(**offline))
    records = wandb_records(tmp_path)
    rows = history(records)
    assert [row.pop("steps") for row in rows] == STEPS
    assert [sorted(row) for row in rows] == [sorted(row) for row in EXPECTED]
    assert same([float(row["losses/total"]) for row in rows if "losses/total" in row], [0.5, math.nan, 1.0])
    axes = [record.metric for record in records if record.WhichOneof("record_type") == "metric"]
    assert [(metric.glob_name, metric.step_metric) for metric in axes if metric.glob_name] == [("*", "steps")]
    assert exit_code(records) == 0


def test_wandb_is_told_that_a_run_failed(tmp_path, offline):

    def run() -> None:
        with WandbLogger(**offline) as logger:
            logger({"x": 1.0}, 1)
            raise RuntimeError("diverged")

    with pytest.raises(RuntimeError, match="diverged"):
        run()
    records = wandb_records(tmp_path)
    assert history(records) == [{"x": 1, "steps": 1}]
    assert exit_code(records) == 1


def film(step: int) -> VideoData:
    return VideoData(np.zeros((3, 16, 16, 3), np.uint8), step=step, episode_reward=0.0, episode_length=2)


def test_wandb_gets_videos_between_the_rows_of_a_log_by_step(tmp_path, offline):
    import wandb

    with wandb.init(**offline) as run:
        video_fn = wandb_video_fn(fps=50)
        for steps in (100, 200, 300):
            if steps > 100:
                video_fn(film(steps))
            wandb.log({"x": steps / 2}, step=steps)
        folder = pathlib.Path(run.dir)
    rows = [row for row in history(wandb_records(tmp_path)) if row]
    assert [row["x"] for row in rows] == [50, 100, 150]
    paths = [folder / row["eval_video/path"] for row in rows if "eval_video/path" in row]
    assert len(paths) == 2
    assert all(b"ftyp" in path.read_bytes()[:12] for path in paths)


def test_wandb_gets_videos_of_two_runs_in_one_logger(tmp_path, offline):
    with WandbLogger(**offline) as logger:
        video_fn = wandb_video_fn("film")
        for steps in (100, BEYOND_INT32, 100):
            video_fn(film(steps))
            logger({"x": 1.0}, steps)
    rows = history(wandb_records(tmp_path))
    assert [row["steps"] for row in rows if "film/path" in row] == [100, BEYOND_INT32, 100]
    assert [row["steps"] for row in rows if "x" in row] == [100, BEYOND_INT32, 100]


def test_a_video_without_a_wandb_run_says_so():
    with pytest.raises(ValueError, match=r"needs a W&B run: call wandb\.init"):
        wandb_video_fn()(film(1))


def test_a_table_shows_the_latest_of_each(tmp_path):
    screen = io.StringIO()
    log_rows(TableLogger(console=Console(file=screen, force_terminal=True, width=60, color_system=None)))
    last = screen.getvalue().rsplit("metric", 1)[1]
    cells = [line.replace("│", " ").split() for line in last.splitlines()]
    assert ["losses/total", "1", "5"] in cells
    assert ["late", "0.1", f"{BEYOND_INT32:,}"] in cells
    assert ["up", "inf", f"{2**24 + 1:,}"] in cells
    assert screen.getvalue().endswith("\x1b[?25h"), "the cursor is shown again"


def test_a_table_can_choose():
    screen = io.StringIO()
    with TableLogger(["losses/*"], Console(file=screen)) as logger:
        logger({"losses/total": 1.0, "grad_norm": 2.0}, 1)
    assert "losses/total" in screen.getvalue()
    assert "grad_norm" not in screen.getvalue()


def test_log_to_gives_each_the_row_and_closes_all_even_where_one_fails(tmp_path):
    class Broken(JsonLinesLogger):
        def close(self, failed: bool = False) -> None:
            super().close(failed)
            raise OSError("disk full")

    first, broken, last = (kind(tmp_path / f"{i}") for i, kind in enumerate((JsonLinesLogger, Broken, JsonLinesLogger)))
    rows: list[Any] = []
    with pytest.raises(OSError, match="disk full"), log_to(first, broken, last, lambda m, s: rows.append(m)) as log_fn:
        log_fn({"x": 1.0}, 1)
    assert rows == [{"x": 1.0}]
    assert [read_metrics(logger.path) for logger in (first, broken, last)] == [[{"steps": 1, "x": 1.0}]] * 3
    for logger in (first, broken, last):
        with pytest.raises(ValueError, match="is closed"):
            logger({}, 1)


def test_what_training_logged_before_a_failure_is_there_and_two_runs_share_a_logger(tmp_path):
    config = TrainConfig(
        ppo=PPOConfig(n_envs=4, rollout_length=5, total_steps=60, n_epochs=2, n_minibatches=2, learning_rate=1e-2),
        eval=EvalConfig(every_steps=30, n_envs=3, max_episode_length=6, logging_percentiles=(50,)),
    )
    env, seen = RandomEnds(), []

    def fail(metrics: dict[str, Any], steps: int) -> None:
        seen.append((metrics, steps))
        if len(seen) == 7:
            raise KeyboardInterrupt

    def two_runs() -> None:
        with log_to(JsonLinesLogger(tmp_path / "m.jsonl"), TensorBoardLogger(tmp_path / "tb"), fail) as log_fn:
            for _ in range(2):
                train_ppo(env, mlp(), config, log_fn=log_fn)

    with pytest.raises(KeyboardInterrupt):
        two_runs()
    rows = read_metrics(tmp_path / "m.jsonl")
    assert [row["steps"] for row in rows] == [0, 20, 40, 60, 0, 20, 40]
    assert [{name: row[name] for name in row if name != "steps"} for row in rows] == [metrics for metrics, _ in seen]
    scalars = list(event_records(tmp_path / "tb"))
    assert len(scalars) == sum(len(metrics) for metrics, _ in seen)
    assert [step for step, tag, _ in scalars if tag == "eval/nonfinite"] == [0, 40, 60, 0, 40]


@pytest.mark.parametrize(
    ("module", "make", "command"),
    [
        ("tensorboardX", lambda path: TensorBoardLogger(path), r"pip install 'nnx-ppo\[tensorboard\]'"),
        ("wandb", lambda path: WandbLogger(), r"pip install 'nnx-ppo\[wandb\]'"),
        ("wandb", lambda path: wandb_video_fn(), r"pip install 'nnx-ppo\[wandb\]'"),
        ("imageio_ffmpeg", lambda path: wandb_video_fn(), r"pip install 'nnx-ppo\[video\]'"),
        ("imageio_ffmpeg", lambda path: video_file_fn(path), r"pip install 'nnx-ppo\[video\]'"),
    ],
)
def test_a_missing_package_is_named_with_its_command(module, make, command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=command):
        make(tmp_path)
