"""A run folder: everything one training run leaves behind, and all that evaluation and recording need of it.

======================  ==============================================================================
``config.json``         environment, network and training configuration
``versions.json``       Python, packages, device, precision, git commit of the working directory
``metrics.jsonl``       the training log, see :class:`~nnx_ppo.algorithms.loggers.JsonLinesLogger`
``videos/``             films of one episode, if asked for
``tensorboard/``        the same for TensorBoard, if asked for
``wandb/``              the same for Weights & Biases, if asked for
``checkpoints/``         one folder per checkpoint, see :mod:`nnx_ppo.algorithms.checkpointing`
``recordings/``         where ``nnx-ppo record`` writes by default
======================  ==============================================================================

Files are written aside and then renamed, so that no reader ever sees half of one; only ``metrics.jsonl`` grows in
place, line by line.
"""

import contextlib
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import filelock

from nnx_ppo.algorithms.disk import write_aside
from nnx_ppo.algorithms.loggers import read_metrics
from nnx_ppo.cli.run_config import RunConfig, from_json, to_json
from nnx_ppo.cli.versions import collect_versions
from nnx_ppo.envs.errors import near_names

MOST_RUNS = 10
"""Runs that a message names."""
LOCK = ".lock"
"""File that the process which trains holds locked."""


class RunFolderError(ValueError):
    """A folder that cannot be a new run, or is no run."""


class RunFolder:
    """One run on disk. Make it with :meth:`create` or :meth:`open`.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: pathlib.Path):
        self.path = path

    @classmethod
    def create(cls, path: str | os.PathLike[str], config: RunConfig) -> "RunFolder":
        """Start a run: make the folder and write ``config.json`` and ``versions.json``.

        Raises:
            RunFolderError: the folder holds something already, or cannot be made or written.
        """
        folder = cls(pathlib.Path(path))
        to_json(config)
        _require_unused(folder.path)
        try:
            for name in ("checkpoints", "recordings"):
                (folder.path / name).mkdir(parents=True, exist_ok=True)
            write_aside(folder.path / "versions.json", lambda p: p.write_text(json.dumps(collect_versions(), indent=2)))
            folder.write_config(config)
        except OSError as error:
            raise RunFolderError(
                f"cannot write the run folder {folder.path} ({error.strerror}): choose another folder with --out."
            ) from error
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "RunFolder":
        """Open the folder of a run.

        Raises:
            RunFolderError: there is no run, naming the runs beside it.
        """
        folder = cls(pathlib.Path(path))
        if not (folder.path / "config.json").is_file():
            if (around := _run_around(folder.path)) is not None:
                raise RunFolderError(f"{folder.path} is no run folder, but lies in one: name {around}.")
            what = "has no config.json" if folder.path.exists() else "does not exist"
            raise RunFolderError(f"{folder.path} is no run folder: it {what}. {_runs_beside(folder.path)}")
        return folder

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process; the operating system lets go of it when the process ends, however it does.

        Raises:
            RunFolderError: another process trains in this folder, or it cannot be written.
        """
        lock = filelock.FileLock(self.path / LOCK, timeout=0)
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise RunFolderError(
                f"another process is training in {self.path}: wait until it ends, or choose another folder."
            ) from error
        except OSError as error:
            raise RunFolderError(f"cannot write the run folder {self.path} ({error.strerror}).") from error
        try:
            yield
        finally:
            lock.release()

    @property
    def checkpoints(self) -> pathlib.Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def recordings(self) -> pathlib.Path:
        """Folder of the recordings."""
        return self.path / "recordings"

    def config(self) -> RunConfig:
        """Read the configuration of the run."""
        try:
            return from_json((self.path / "config.json").read_text())
        except ValueError as error:
            raise RunFolderError(f"{self.path / 'config.json'} does not describe a run: {error}") from error

    def write_config(self, config: RunConfig) -> None:
        """Write ``config.json``, in place of one that is there."""
        text = to_json(config)
        write_aside(self.path / "config.json", lambda p: p.write_text(text))

    @property
    def metrics_file(self) -> pathlib.Path:
        """File of the training log."""
        return self.path / "metrics.jsonl"

    def metrics(self) -> list[dict[str, Any]]:
        """Read ``metrics.jsonl``, one dict per iteration; none where the run has not written it."""
        return read_metrics(self.metrics_file) if self.metrics_file.exists() else []


def _run_around(path: pathlib.Path) -> pathlib.Path | None:
    """The run that a file or folder lies in, at any depth."""
    return next((p for p in path.parents if path.exists() and (p / "config.json").is_file()), None)


def _runs_beside(path: pathlib.Path) -> str:
    runs = sorted(p.parent.name for p in path.absolute().parent.glob("*/config.json"))
    near = near_names(path.name, runs)
    if near:
        return f"Did you mean {' or '.join(str(path.with_name(name)) for name in near)}?"
    if not runs:
        return "Make one with nnx-ppo train."
    more = f" and {len(runs) - MOST_RUNS} more" if len(runs) > MOST_RUNS else ""
    return f"Runs beside it: {', '.join(runs[:MOST_RUNS])}{more}."


def unused_folder(path: pathlib.Path) -> pathlib.Path:
    """Return ``path``, or the first of ``path-2``, ``path-3``, ... that holds nothing."""
    number, candidate = 1, path
    while _in_use(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _in_use(path: pathlib.Path) -> bool:
    return path.exists() and not (path.is_dir() and all(entry.name == LOCK for entry in path.iterdir()))


def _require_unused(path: pathlib.Path) -> None:
    if path.exists() and not path.is_dir():
        raise RunFolderError(f"{path} is a file, and a run needs a folder: choose another with --out.")
    if _in_use(path):
        what = "a run" if (path / "config.json").exists() else "files"
        raise RunFolderError(
            f"{path} already holds {what}, which a new run would mix with its own: choose another folder with --out "
            f"(for example {unused_folder(path)}), or remove this one."
        )
