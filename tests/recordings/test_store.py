"""Nothing is lost: whatever ends a writer, the store opens, and what it says is complete is right."""

import pathlib
import resource
import subprocess
import sys

import filelock
import jax
import numpy as np
import pytest
import xarray
import zarr

from nnx_ppo.recordings import RecordingError, check_recording, open_recording
from nnx_ppo.recordings.store import RecordingWriter

ROOT = pathlib.Path(__file__).parents[2]
N, CHUNK = 2, 4


def shapes():
    struct = jax.ShapeDtypeStruct
    return {
        "layers": {"1/hidden": struct((N, 3), np.float32), "2": struct((N, 5), np.float32)},
        "valid": {"": struct((N,), bool)},
    }


def rows(start, stop, rng=None):
    """Rows that are known from their number."""
    t = np.arange(start, stop, dtype=np.float32)[:, None, None]
    layers = {"1/hidden": t + np.arange(3, dtype=np.float32) + np.zeros((1, N, 1), np.float32)}
    layers["2"] = -t * np.ones((1, N, 5), np.float32) if rng is None else rng.random((stop - start, N, 5), np.float32)
    return {"layers": layers, "valid": {"": np.ones((stop - start, N), bool)}}


def writer(path, **options):
    return RecordingWriter(pathlib.Path(path), shapes(), chunk_steps=CHUNK, attributes={"mark": 7}, **options)


def write(path, n_chunks=2, **options):
    with writer(path, **options) as w:
        for i in range(n_chunks):
            w.append(rows(i * CHUNK, (i + 1) * CHUNK))
        w.finish()


def assert_right(path, *, finished=None):
    """The store opens by itself and by xarray, agrees with itself, and holds the rows that it should."""
    recording = open_recording(path)
    n = recording.n_steps
    tree = xarray.open_datatree(path, engine="zarr")
    assert tree["valid"].shape[0] == tree["layers/2/activation"].shape[0] == n
    assert recording.attributes["complete_steps"] == n
    for label, x in rows(0, n)["layers"].items():
        np.testing.assert_array_equal(recording.layer(label), x)
    assert check_recording(path).damage == ()
    if finished is not None:
        assert recording.finished is finished
    return n


def test_a_finished_store(tmp_path):
    with writer(tmp_path / "r.zarr") as w:
        assert assert_right(tmp_path / "r.zarr", finished=False) == 0
        w.append(rows(0, 4))
        assert assert_right(tmp_path / "r.zarr", finished=False) == 4
        w.append(rows(4, 7), {"more": 1})
        w.finish({"last": 2})
    assert assert_right(tmp_path / "r.zarr", finished=True) == 7
    assert open_recording(tmp_path / "r.zarr").attributes["complete_steps"] == 7
    assert [open_recording(tmp_path / "r.zarr").attributes[name] for name in ("mark", "more", "last")] == [7, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["r.zarr"]
    report = check_recording(tmp_path / "r.zarr")
    assert (report.n_steps, report.n_envs, report.n_arrays, report.n_chunks) == (7, N, 3, 6)


def steps_without_the_root(path):
    """What a program sees that reads the metadata of each array, and not that of the root."""
    root = zarr.open_group(path, mode="r", use_consolidated=False)
    (n_steps,) = {array.shape[0] for _, array in root.members(max_depth=None) if isinstance(array, zarr.Array)}
    return n_steps


def test_the_metadata_of_each_array_follows_when_the_writer_is_left(tmp_path):
    with writer(tmp_path / "r") as w:
        w.append(rows(0, 4))
        assert steps_without_the_root(tmp_path / "r") == 0
        w.append(rows(4, 8))
    assert steps_without_the_root(tmp_path / "r") == 8
    write(tmp_path / "r", replace=True, n_chunks=3)
    assert steps_without_the_root(tmp_path / "r") == 12


def test_a_chunk_after_the_last_one_is_an_error(tmp_path):
    with writer(tmp_path / "r") as w:
        w.append(rows(0, 3))
        with pytest.raises(ValueError, match="after a chunk of 3 steps, and not 4, the recording is at its end"):
            w.append(rows(3, 7))


def test_a_chunk_is_what_zarr_would_have_written(tmp_path):
    """The last chunk, which is short, and values of all kinds, against Zarr's own writer."""
    kinds = {"float16": np.float16, "float64": np.float64, "int32": np.int32, "bool": bool}
    values = {name: np.arange(7 * N * 3).reshape(7, N, 3).astype(dtype) for name, dtype in kinds.items()}
    shape = {name: jax.ShapeDtypeStruct((N, 3), dtype) for name, dtype in kinds.items()}
    valid = {"": jax.ShapeDtypeStruct((N,), bool)}
    with RecordingWriter(tmp_path / "r", {"layers": shape, "valid": valid}, chunk_steps=CHUNK, attributes={}) as w:
        for t in (0, CHUNK):
            part = {name: x[t : t + CHUNK] for name, x in values.items()}
            w.append({"layers": part, "valid": {"": np.ones((len(part["bool"]), N), bool)}})
        w.finish()
    for name, x in values.items():
        array = zarr.open_group(tmp_path / "r")[f"layers/{name}/activation"]
        np.testing.assert_array_equal(array[:], x, strict=True)
        ours = [chunk_file(tmp_path / "r", f"layers/{name}/activation", i).read_bytes() for i in (0, 1)]
        array[:] = x
        theirs = [chunk_file(tmp_path / "r", f"layers/{name}/activation", i).read_bytes() for i in (0, 1)]
        assert ours == theirs


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_exception_keeps_what_is_complete_and_says_so(tmp_path, error):
    def interrupted():
        with writer(tmp_path / "r.zarr") as w:
            w.append(rows(0, 4))
            raise error("stop")

    with pytest.raises(error, match="stop") as caught:
        interrupted()
    assert caught.value.__notes__ == [f"The first 4 steps of the recording are complete in {tmp_path / 'r.zarr'}."]
    assert assert_right(tmp_path / "r.zarr", finished=False) == 4
    write(tmp_path / "r.zarr", replace=True)  # the lock is free again


def test_a_full_disk_keeps_what_is_complete(tmp_path):
    """No file may grow beyond 4 kB, which the second chunk, of random numbers, does."""

    def fill():
        with RecordingWriter(tmp_path / "r", big, chunk_steps=500, attributes={}) as w:
            w.append({"layers": {"0": np.zeros((500, N, 5), np.float32)}, "valid": {"": np.ones((500, N), bool)}})
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
            w.append({"layers": {"0": noise}, "valid": {"": np.ones((500, N), bool)}})

    big = {"layers": {"0": jax.ShapeDtypeStruct((N, 5), np.float32)}, "valid": {"": jax.ShapeDtypeStruct((N,), bool)}}
    noise = np.random.default_rng(0).random((500, N, 5), np.float32)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(OSError, match="File too large"):
            fill()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    recording = open_recording(tmp_path / "r")
    assert (recording.n_steps, recording.attributes["complete_steps"], recording.finished) == (500, 500, False)
    assert not recording.layer("0").any()
    assert check_recording(tmp_path / "r").damage == ()


KILLED = """
import itertools, os, pathlib, shutil, signal, sys
sys.path[:0] = [{root!r}]
from nnx_ppo.recordings import store
from tests.recordings.test_store import CHUNK, rows, writer, write

path, replace = pathlib.Path({path!r}), {replace}


def half_then(write):
    def replacement(file, *args):
        write(file, *args)
        if next(count) == moment:
            os.truncate(file, os.path.getsize(file) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    return replacement


def die_before(n):
    global count, moment
    count, moment = itertools.count(1), n

    def mortal(call):
        def replacement(*args, **kwargs):
            # What renames a file of Zarr's does not count where folders are replaced.
            if (not replace or os.path.isdir(args[0]) or call is rmtree) and next(count) == n:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return replacement

    rmtree = shutil.rmtree
    if replace:
        shutil.rmtree = mortal(rmtree)
    # Metadata is written aside, and then replaces what is there; chunks are written where they are.
    os.replace, os.rename = mortal(os.replace), mortal(os.rename)
    if not replace:
        store.write_chunk = mortal(half_then(store.write_chunk))


for n in itertools.count(1):
    folder = path / str(n)
    folder.mkdir()
    child = os.fork()
    if not child:
        if replace:
            write(folder / "r", n_chunks=1)
        die_before(n)
        write(folder / "r", n_chunks=2, replace=replace)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
print(n - 1)
"""


def run_killed(tmp_path, *, replace):
    code = KILLED.format(root=str(ROOT), path=str(tmp_path), replace=replace)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_a_kill_at_any_write_leaves_a_store_that_is_right(tmp_path):
    n_moments = run_killed(tmp_path, replace=False)
    assert n_moments > 20
    complete = []
    for n in range(1, n_moments + 1):
        path = tmp_path / str(n) / "r"
        if path.exists():
            complete.append(assert_right(path))
    assert set(complete) == {0, 4, 8}
    assert complete == sorted(complete)
    write(tmp_path / "1" / "r")  # the lock of the dead holds nobody up
    assert assert_right(tmp_path / "1" / "r", finished=True) == 8


def test_a_kill_while_replacing_leaves_the_old_or_the_new(tmp_path):
    n_moments = run_killed(tmp_path, replace=True)
    left = []
    for n in range(1, n_moments + 1):
        path = tmp_path / str(n) / "r"
        if not path.exists():  # between two renames: the next writer puts it right, and then finds the path taken
            with pytest.raises(RecordingError, match="exists"):
                writer(path)
        left.append(assert_right(path, finished=True))
    assert [p.name for p in (tmp_path / "3").iterdir() if p.name != ".r.lock"] == ["r"]
    assert left == [4, 4, 8, 8]  # before the new store is made, before the old one goes, between the two, after


def test_a_path_that_is_taken_is_refused_unless_it_is_to_be_replaced(tmp_path):
    write(tmp_path / "r", n_chunks=1)
    with pytest.raises(RecordingError, match="exists: choose another path, or put the new one in its place"):
        writer(tmp_path / "r")
    with writer(tmp_path / "r", replace=True) as w:
        w.append(rows(0, 4))
        w.append(rows(4, 8))
        assert assert_right(tmp_path / "r", finished=True) == 4
        w.finish()
    assert assert_right(tmp_path / "r", finished=True) == 8
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


def test_only_a_recording_is_ever_replaced(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    zarr.create_group(tmp_path / "other")
    for name in ("thesis", "other"):
        with pytest.raises(RecordingError, match="is no recording, and only a recording can be replaced"):
            writer(tmp_path / name, replace=True)
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"


def test_a_path_in_use_is_refused(tmp_path):
    with writer(tmp_path / "r") as w:
        with pytest.raises(RecordingError, match="is being written by another recording"):
            writer(tmp_path / "r", replace=True)
        w.append(rows(0, 4))
        w.finish()
    assert assert_right(tmp_path / "r", finished=True) == 4
    with filelock.FileLock(tmp_path / ".r.lock"), pytest.raises(RecordingError, match="is being written"):
        writer(tmp_path / "r", replace=True)


def chunk_file(path, array="layers/2/activation", chunk=1):
    return path / array / f"c.{chunk}.0.0"


@pytest.mark.parametrize("position", [0, 20, -1])
def test_a_flipped_bit_is_found_and_located(tmp_path, position):
    write(tmp_path / "r")
    file = chunk_file(tmp_path / "r")
    contents = bytearray(file.read_bytes())
    contents[position] ^= 1
    file.write_bytes(contents)
    (line,) = check_recording(tmp_path / "r").damage
    assert line == "layers/2/activation, chunk 1 (steps 4 to 7) does not have its checksum"
    if position == 20:  # what is written is what Zarr itself checks
        with pytest.raises(ValueError, match=r"is damaged in 'layers/2/activation' .*checksum.*nnx-ppo check"):
            open_recording(tmp_path / "r").layer("2")


def test_a_missing_chunk_and_a_short_one_are_found(tmp_path):
    write(tmp_path / "r")
    chunk_file(tmp_path / "r").unlink()
    short = chunk_file(tmp_path / "r", "layers/1/hidden/activation", 0)
    short.write_bytes(short.read_bytes()[:10])
    damage = check_recording(tmp_path / "r").damage
    assert len(damage) == 2
    assert damage[0] == "layers/1/hidden/activation, chunk 0 (steps 0 to 3) does not have its checksum"
    assert damage[1] == "layers/2/activation, chunk 1 (steps 4 to 7) is missing"


def test_chunks_of_zeros_are_written_so_that_a_missing_one_is_no_zero(tmp_path):
    with writer(tmp_path / "r") as w:
        w.append(jax.tree.map(np.zeros_like, rows(0, 4)))
        w.finish()
    assert check_recording(tmp_path / "r").damage == ()
    assert chunk_file(tmp_path / "r", chunk=0).exists()


def test_damage_right_after_writing_is_an_error_and_not_finished(tmp_path):
    with writer(tmp_path / "r") as w:
        w.append(rows(0, 4))
        chunk_file(tmp_path / "r", chunk=0).unlink()
        with pytest.raises(RecordingError, match="damaged right after it was written: layers/2/activation, chunk 0"):
            w.finish()
    assert not open_recording(tmp_path / "r").finished


def test_what_is_no_recording_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no recording"):
        open_recording(tmp_path / "nothing")
    with pytest.raises(ValueError, match="it is no Zarr group that can be read"):
        open_recording(tmp_path)
    zarr.create_group(tmp_path / "group")
    with pytest.raises(ValueError, match="is a Zarr group, but no recording"):
        open_recording(tmp_path / "group")
    write(tmp_path / "r")
    zarr.open_group(tmp_path / "r").attrs["format_version"] = 99
    with pytest.raises(ValueError, match="has format version 99, and this nnx_ppo reads up to 1"):
        open_recording(tmp_path / "r")
