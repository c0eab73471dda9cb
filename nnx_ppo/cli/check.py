"""``nnx-ppo check``: whether a recording on disk is what was written."""

import dataclasses
import pathlib
import sys

import tyro

from nnx_ppo.cli.console import stderr, stdout
from nnx_ppo.recordings.check import check_recording
from nnx_ppo.recordings.progress import counting

EXIT_DAMAGED = 1


@dataclasses.dataclass(frozen=True)
class Check:
    """Read every chunk of a recording and compare it with its checksum. Exits with 1 if anything is damaged."""

    recording: tyro.conf.Positional[pathlib.Path]
    """Folder that nnx-ppo record made."""

    def run(self) -> None:
        """Check, and print what is complete and what is damaged."""
        with counting("checking", "chunks") as on_progress:
            report = check_recording(self.recording, on_progress=on_progress)
        state = "finished" if report.finished else "not finished, complete up to there"
        stdout.print(
            f"{self.recording}: {report.n_steps:,} steps of {report.n_envs} environments, {state}; "
            f"{report.n_chunks:,} chunks of {report.n_arrays} arrays read.",
            soft_wrap=True,
        )
        if report.damage:
            stderr.print("\n".join(["Damaged:", *report.damage]), soft_wrap=True)
            sys.exit(EXIT_DAMAGED)
        stdout.print("Every chunk has its checksum.")
