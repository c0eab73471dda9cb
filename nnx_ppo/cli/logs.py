"""Where the training log of a run goes, and where it goes on when the run is resumed."""

import contextlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from nnx_ppo.algorithms.loggers import JsonLinesLogger, Logger, TensorBoardLogger, WandbLogger, log_to
from nnx_ppo.cli.console import stderr
from nnx_ppo.cli.run_config import RunConfig, to_json
from nnx_ppo.cli.run_folder import RunFolder

Destination = Literal["jsonl", "tensorboard", "wandb"]
LOGGED = "last_logged_steps"
"""Entry of a position: steps of the last row that ``metrics.jsonl`` held when the run stopped, ``None`` for none."""


def require_packages(destinations: Sequence[str]) -> None:
    """Find out before anything is written.

    Raises:
        ImportError: the package of a destination is missing.
    """
    for destination, package in (("tensorboard", "tensorboardX"), ("wandb", "wandb")):
        if destination in destinations and importlib.util.find_spec(package) is None:
            raise ImportError(f"--log {destination} needs {package}: pip install 'nnx-ppo[{destination}]'")


def open_loggers(folder: RunFolder, config: RunConfig, steps: int, position: Mapping[str, Any]) -> Logger:
    """Open the destinations of ``config.log``; what they hold of later steps than ``steps`` is dropped.

    Args:
        folder: of the run.
        config: of the run.
        steps: environment steps taken so far.
        position: where the log stood then, as the checkpoint kept it.
    """
    make = {"jsonl": _jsonl, "tensorboard": _tensorboard, "wandb": _wandb}
    # Before the file is cut back; and it comes first, so that what W&B has got of each row is in the file.
    position = {**position, LOGGED: _last_logged(folder)}
    loggers: list[Logger] = []
    with contextlib.ExitStack() as opened:
        for name in sorted(set(config.log), key=list(make).index):
            loggers.append(make[name](folder, config, steps, position))
            opened.callback(loggers[-1].close, failed=True)
        opened.pop_all()
    return log_to(*loggers)


def _jsonl(folder: RunFolder, config: RunConfig, steps: int, position: Mapping[str, Any]) -> Logger:
    keep, path = position.get("jsonl_bytes", 0), folder.metrics_file
    there = path.stat().st_size if path.exists() else 0
    if there < keep:
        stderr.print(f"{path} is shorter than it was at the checkpoint: rows are lost.", style="yellow")
    return JsonLinesLogger(path, keep_bytes=keep)


def _tensorboard(folder: RunFolder, config: RunConfig, steps: int, position: Mapping[str, Any]) -> Logger:
    # TensorBoard has no row at all before the first, so that a new run has nothing to drop.
    return TensorBoardLogger(folder.path / "tensorboard", purge_step=steps + 1 if steps else None)


def _wandb(folder: RunFolder, config: RunConfig, steps: int, position: Mapping[str, Any]) -> Logger:
    options: dict[str, Any] = {"project": "nnx-ppo", "name": folder.path.name, "dir": str(folder.path)}
    if "wandb_run_id" in position:
        # The resumed run repeats to the bit the rows that came after the checkpoint.
        options |= {"id": position["wandb_run_id"], "resume": "allow", "resume_after": position[LOGGED]}
    return WandbLogger(**options, config=json.loads(to_json(config)))


def _last_logged(folder: RunFolder) -> int | None:
    """Steps of the last whole row of the log; a torn one had not been passed on."""
    rows = folder.metrics()
    return int(rows[-1]["steps"]) if rows else None
