"""``nnx-ppo inspect``: what is in a recording, and how healthy each layer was."""

import dataclasses
from typing import Any

from nnx_ppo.cli.console import print_table, stdout
from nnx_ppo.cli.options import RecordingPath
from nnx_ppo.cli.recording_file import NPZ, load_recording, require_recording
from nnx_ppo.recordings.progress import counting
from nnx_ppo.recordings.reading import Recording, open_recording
from nnx_ppo.recordings.summary import summarize
from nnx_ppo.recordings.summary_tables import health_table


@dataclasses.dataclass(frozen=True)
class Inspect:
    """Print what a recording holds, and for each layer size, spread, peak, dead, saturated and dormant units."""

    recording: RecordingPath
    """What nnx-ppo record made, .zarr or .npz."""

    def run(self) -> None:
        """Read the recording chunk by chunk, and print."""
        require_recording(self.recording)
        if self.recording.suffix == NPZ:
            activations, dones = load_recording(self.recording)
            steps, envs = dones.shape
            stdout.print(f"{self.recording}: {steps:,} steps of {envs} environments", soft_wrap=True)
            source: dict[str, Any] = {"recording": activations, "dones": dones}
        else:
            recording = open_recording(self.recording)
            stdout.print("\n".join(describe_recording(recording)), soft_wrap=True)
            source = {"recording": recording}
        with counting("reading", "chunks") as on_progress:
            layers = summarize(**source, on_progress=on_progress)
        print_table(health_table(layers))


def describe_recording(recording: Recording) -> list[str]:
    """Lines that say what a recording holds and how it was made."""
    about = recording.attributes
    state = "finished" if recording.finished else "not finished: it was interrupted, or is still being written"
    episodes = int((recording.array("done") & recording.valid()).sum())
    lines = [
        f"{recording.path}: {recording.n_steps:,} steps of {recording.n_envs} environments, "
        f"{episodes:,} episodes ended; {state}",
        f"environment {about['env']}, reset {about['reset']}, key {about['key']['data']}",
        f"{recording.n_bytes / 1e6:,.1f} MB before compression, {recording.n_bytes_on_disk() / 1e6:,.1f} MB on disk",
    ]
    if rounding := about.get("rounding_error"):
        worst = max(rounding, key=rounding.__getitem__)
        lines.append(f"rounded to {about['dtype']}: largest error {rounding[worst]:.3g}, in layer {worst}")
    return lines
