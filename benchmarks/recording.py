"""What it costs to record to disk: ``python -m benchmarks.recording speed``, and ``memory``.

``speed``: a rollout that is written, over the same rollout that is not; and the limits, which are the compressor alone
on the same values, and the disk alone with the same files. The two rollouts take turns in one process, so that a slow
moment of the machine hits both alike; the table shows medians over rounds, of ratios too. Processor time is that of all
threads together.

``memory``: the peak of resident memory while recording, less what is resident before, for one length and for ten times
that, each in processes of their own. The kernel keeps the peak (Linux only).
"""

import dataclasses
import itertools
import json
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import numpy as np
import tyro
from flax import nnx
from rich.console import Console
from rich.progress import track
from rich.table import Table

from nnx_ppo import make_env, make_lstm_actor_critic
from nnx_ppo.algorithms.rollout import recordable_copy
from nnx_ppo.cli.compilation_cache import enable_compilation_cache
from nnx_ppo.cli.parsing import Pairs
from nnx_ppo.networks._rng import as_key
from nnx_ppo.recordings import Recording, record
from nnx_ppo.recordings.chunk_files import compress
from nnx_ppo.recordings.chunks import NEVER, Program
from nnx_ppo.recordings.extra_fields import Extras
from nnx_ppo.recordings.recorder import LARGEST_ARRAY_BYTES

VALUES = 10_000_000


@dataclasses.dataclass(frozen=True)
class Options:
    """Measure what recording costs."""

    what: tyro.conf.Positional[Literal["speed", "memory", "memory-once"]]
    """speed, or memory; memory-once is one process of the latter."""
    env: str = "gymnax:Pendulum-v1"
    """Environment."""
    env_args: Pairs = dataclasses.field(default_factory=dict)
    """Overrides of the environment, e.g. impl=jax."""
    n_envs: tuple[int, ...] = (64,)
    """Environments in parallel."""
    units: tuple[int, ...] = (64,)
    """Sizes of the LSTM and of the layer in each head."""
    n_steps: int = 8000
    """Steps of each environment, for speed."""
    rounds: int = 5
    """Rounds, or processes for each length."""
    times: int = 1
    """For memory-once: ten million values of each layer, so many times."""
    folder: pathlib.Path | None = None
    """Where to write; by default the folder for temporary files, which may be no disk."""
    out: pathlib.Path = pathlib.Path(".cache/recording.json")
    """File for the results."""


def main(options: Options) -> None:
    """Measure; show and write each row as soon as it is there."""
    enable_compilation_cache()
    if options.what == "memory-once":
        print(peak_memory(options))
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    found: list[dict[str, Any]] = []
    for row in speed_rows(options) if options.what == "speed" else memory_rows(options):
        found.append(row)
        options.out.write_text(json.dumps(found, indent=2))
        Console().print(table_of(row, f"{options.env}: {options.what}"))
    Console().print(f"Results: {options.out}")


def table_of(row: dict[str, Any], title: str) -> Table:
    """One row, as a table of names and numbers."""
    table = Table(title=title, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in row.items():
        table.add_row(name, f"{value:.3g}" if isinstance(value, float) else str(value))
    return table


class Case:
    """One environment with one network, ready to run with and without writing."""

    def __init__(self, options: Options, n_envs: int, units: int):
        self.env = make_env(options.env, **options.env_args)
        sizes = (self.env.observation_size, self.env.action_size, units, [units], [units])
        self.network = make_lstm_actor_critic(*sizes, nnx.Rngs(0))
        self.n_envs = n_envs
        self._folder = tempfile.TemporaryDirectory(dir=options.folder)
        self.path = pathlib.Path(self._folder.name) / "recording.zarr"

    def record(self, n_steps: int, chunk_steps: int | None = None) -> Recording:
        """Record, in chunks of the default size where none is given."""
        options: dict[str, Any] = {"n_envs": self.n_envs, "chunk_steps": chunk_steps, "key": 0, "show_progress": False}
        return record(self.env, self.network, self.path, n_steps=n_steps, **options)

    def clean(self) -> None:
        """Throw the recording away."""
        shutil.rmtree(self.path)

    def rollout(self, recording: Recording) -> None:
        """Run the same program on the same chunks, and throw away what it computes."""
        size = recording.spans()[0].stop
        program = Program(
            self.env,
            recordable_copy(self.network),
            n_envs=self.n_envs,
            chunk_steps=size,
            restarts=True,
            dtype=None,
            extras=Extras(),
        )
        state = program.start(as_key(0))
        for span in recording.spans():
            state, rows, count = program.chunk(state, span.stop - span.start, NEVER, NEVER)
            del rows
            jax.block_until_ready(count)


def speed_rows(options: Options) -> Iterator[dict[str, Any]]:
    """One row for each number of environments and each size of network."""
    cases = list(itertools.product(options.n_envs, options.units))
    for n_envs, units in track(cases, "measuring", console=Console(stderr=True)):
        yield speed_row(options, n_envs, units)


def speed_row(options: Options, n_envs: int, units: int) -> dict[str, Any]:
    """Compile everything, then measure in turns."""
    case = Case(options, n_envs, units)
    recording = case.record(options.n_steps)
    case.rollout(recording)
    mb, on_disk = recording.n_bytes / 1e6, recording.n_bytes_on_disk() / 1e6
    chunk_steps = recording.spans()[0].stop
    compressor = [compressing(recording) for _ in range(options.rounds)]
    disk = [writing(recording) for _ in range(options.rounds)]
    case.clean()
    plain, written, fixed = [], [], []
    for _ in range(options.rounds):
        plain.append(timed(lambda: case.rollout(recording)))
        written.append(timed(lambda: case.record(options.n_steps)))
        case.clean()
        fixed.append(timed(lambda: case.record(1, chunk_steps)))
        case.clean()
    wall, cpu = np.moveaxis(np.median([plain, written, fixed], axis=1), 1, 0).tolist()
    ratios = np.median(np.divide(written, plain), axis=0).tolist()
    return {
        "environments": n_envs,
        "units": units,
        "steps of a chunk": chunk_steps,
        "MB": mb,
        "MB on disk": on_disk,
        "rollout (s)": wall[0],
        "recorded (s)": wall[1],
        "ratio": ratios[0],
        "one step recorded (s)": wall[2],
        "rollout (CPU s)": cpu[0],
        "recorded (CPU s)": cpu[1],
        "CPU ratio": ratios[1],
        "CPU ms per MB, beyond the rollout": 1e3 * (cpu[1] - cpu[0]) / mb,
        "recorded (MB/s)": mb / wall[1],
        "compressor (MB/s)": mb / float(np.median(compressor)),
        "disk (MB/s)": mb / float(np.median(disk, axis=0)[0]),
        "disk, CPU ms per MB": 1e3 * float(np.median(disk, axis=0)[1]) / mb,
    }


def compressing(recording: Recording) -> float:
    """Seconds that the compressor takes for all chunks, in this thread; reading them is not counted."""
    seconds = 0.0
    for path, span in itertools.product(recording.array_paths(), recording.spans()):
        rows = recording.array(path, span)
        start = time.perf_counter()
        compress(rows)
        seconds += time.perf_counter() - start
    return seconds


def writing(recording: Recording) -> np.ndarray:
    """Wall-clock and processor seconds that it takes to write the files once more; reading them is not counted."""
    total = np.zeros(2)
    with tempfile.TemporaryDirectory(dir=recording.path.parent) as folder:
        for i, file in enumerate(file for file in recording.path.rglob("*") if file.is_file()):
            contents, copy = file.read_bytes(), pathlib.Path(folder) / str(i)
            total += timed(lambda copy=copy, contents=contents: copy.write_bytes(contents))
    return total


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Wall-clock seconds, and processor seconds of all threads."""
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    call()
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def memory_rows(options: Options) -> list[dict[str, Any]]:
    """One row for each length; the processes take turns."""
    peaks: dict[int, list[float]] = {1: [], 10: []}
    for _ in track(range(options.rounds), "measuring", console=Console(stderr=True)):
        for times, found in peaks.items():
            command = [sys.executable, "-m", "benchmarks.recording", "memory-once", "--env", options.env]
            command += ["--times", str(times), "--n-envs", str(options.n_envs[0]), "--units", str(options.units[0])]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found.append(float(done.stdout))
    return [
        {
            "million values of each layer": 10 * times,
            "peak beyond the start (MB), median": float(np.median(found)),
            "lowest": min(found),
            "highest": max(found),
        }
        for times, found in peaks.items()
    ]


def peak_memory(options: Options) -> float:
    """Peak of resident memory while recording, beyond what is resident once everything is compiled, MB."""
    case = Case(options, options.n_envs[0], options.units[0])
    n_steps = VALUES * options.times // (options.n_envs[0] * options.units[0])
    chunk_steps = LARGEST_ARRAY_BYTES // (4 * options.n_envs[0] * options.units[0])
    case.record(2 * chunk_steps, chunk_steps)
    case.clean()
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    case.record(n_steps, chunk_steps)
    peak = resident("VmHWM") - before
    case.clean()
    return peak


def resident(name: str) -> float:
    """Resident memory of this process, MB: ``VmRSS`` now, ``VmHWM`` the peak since it was reset."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024 / 1e6


if __name__ == "__main__":
    main(tyro.cli(Options))
