"""``nnx-ppo check``: whether a recording on disk is what was written."""

import dataclasses
import pathlib
import sys
from collections.abc import Sequence

from nnx_ppo.cli.console import stderr, stdout
from nnx_ppo.cli.options import RecordingPath
from nnx_ppo.cli.recording_file import NPZ, damaged_arrays, load_recording, require_recording
from nnx_ppo.recordings.check import check_recording
from nnx_ppo.recordings.progress import counting

EXIT_DAMAGED = 1


@dataclasses.dataclass(frozen=True)
class Check:
    """Read all of a recording and compare it with its checksums. Exits with 1 if anything is damaged."""

    recording: RecordingPath
    """What nnx-ppo record made, .zarr or .npz."""

    def run(self) -> None:
        """Check, and print what is complete and what is damaged."""
        require_recording(self.recording)
        if self.recording.suffix == NPZ and not self.recording.is_dir():
            _check_file(self.recording)
        else:
            _check_store(self.recording)


def _check_store(path: pathlib.Path) -> None:
    with counting("checking", "chunks") as on_progress:
        report = check_recording(path, on_progress=on_progress)
    state = "finished" if report.finished else "not finished, complete up to there"
    stdout.print(
        f"{path}: {report.n_steps:,} steps of {report.n_envs} environments, {state}; "
        f"{report.n_chunks:,} chunks of {report.n_arrays} arrays read.",
        soft_wrap=True,
    )
    _say_what_is_damaged(report.damage)
    stdout.print("Every chunk has its checksum.")


def _check_file(path: pathlib.Path) -> None:
    _say_what_is_damaged([f"{name} does not have its checksum" for name in damaged_arrays(path)])
    activations, dones = load_recording(path)
    steps, envs = dones.shape
    stdout.print(f"{path}: {steps:,} steps of {envs} environments, {len(activations) + 1} arrays read.", soft_wrap=True)
    stdout.print("Every array has its checksum.")


def _say_what_is_damaged(lines: Sequence[str]) -> None:
    if lines:
        stderr.print("\n".join(["Damaged:", *lines]), soft_wrap=True)
        sys.exit(EXIT_DAMAGED)
