"""A recording takes the memory of two chunks and of what the compressor holds, however long it is."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
N_ENVS, UNITS, CHUNK_STEPS = 64, 256, 32
LARGEST_ARRAY = CHUNK_STEPS * N_ENVS * UNITS * 4 / 1e6

MEASURE = f"""
import pathlib, sys, tempfile

sys.path[:0] = [{str(ROOT)!r}]
from flax import nnx

from nnx_ppo.envs import make_env
from nnx_ppo.networks import make_mlp_actor_critic
from nnx_ppo.recordings import record
from nnx_ppo.recordings.store import n_threads


def resident(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024 / 1e6


def beyond_start(n_chunks):
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak, VmHWM, begins anew
    start = resident("VmRSS")
    with tempfile.TemporaryDirectory() as folder:
        options = dict(n_envs={N_ENVS}, n_steps=n_chunks * {CHUNK_STEPS}, chunk_steps={CHUNK_STEPS}, key=0)
        recording = record(env, network, folder + "/r", **options)
        return resident("VmHWM") - start, recording.n_bytes / 1e6, n_chunks


env = make_env("probe:counting")
network = make_mlp_actor_critic(1, 1, [{UNITS}], [{UNITS}], nnx.Rngs(0))
beyond_start(2)  # compiles
short = sorted(beyond_start(10) for _ in range(3))[1]
long = beyond_start(100)
print(short[0], *long, n_threads())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's count of the peak is that of Linux")
def test_the_peak_is_the_same_for_ten_times_the_length():
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    of_short, peak, recorded, n_chunks, threads = map(float, done.stdout.split())
    two_chunks = 2 * recorded / n_chunks
    # Every thread of the compressor holds one array as it may become, and as it became.
    most = two_chunks + 2 * threads * LARGEST_ARRAY
    assert recorded > 20 * most
    assert peak < 1.2 * most
    # Newer versions of JAX keep what the recording before took, and then hardly anything is beyond the start.
    assert peak <= max(1.1 * of_short, most / 2)
