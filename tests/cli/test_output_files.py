"""What commands write: nothing is written over unasked, and a disk that is full leaves nothing and names the path.

A limit on the size of files, which the operating system enforces like a full disk, stands for the disk.
"""

import contextlib
import errno
import math
import resource

import jax
import numpy as np
import pytest

from nnx_ppo.cli import main
from nnx_ppo.cli.output_files import write_output
from nnx_ppo.recordings import open_recording
from nnx_ppo.recordings.store import RecordingWriter
from tests.cli.test_commands import fails


@contextlib.contextmanager
def no_file_above(n_bytes):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Programs compiled meanwhile must not go into the cache on disk, cut off at the limit, for the tests after this.
    cached_from = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_persistent_cache_min_compile_time_secs", math.inf)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", cached_from)


WRITERS = {
    "r.npz": ["record", "--n-envs", "8", "--max-steps", "40"],
    "c.png": ["plot"],
    "c.svg": ["plot"],
    "r.html": ["report", "--episodes", "2"],
}


def test_a_disk_too_full_for_an_empty_store_leaves_nothing(kept_run, tmp_path, capsys):
    out = tmp_path / "r.zarr"
    with no_file_above(100):
        message = fails(capsys, "record", str(kept_run), "--out", str(out), "--max-steps", "3")
    assert f"{out} cannot be written" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["r.npz", "c.png", "c.svg", "r.html"])
def test_a_full_disk_leaves_nothing_and_names_the_path(kept_run, tmp_path, capsys, name):
    command, *words = WRITERS[name]
    if command == "report":
        main(["record", str(kept_run), "--out", str(tmp_path / "r.zarr"), "--max-steps", "3", "--include", "memory"])
        words += ["--recording", str(tmp_path / "r.zarr")]
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / name
    main([command, str(kept_run), *words, "--out", str(tmp_path / name)])  # compiled, and larger than the limit
    assert (tmp_path / name).stat().st_size > 4000
    capsys.readouterr()
    with no_file_above(4000):
        message = fails(capsys, command, str(kept_run), *words, "--out", str(out))
    assert f"{out} cannot be written: make room there, or choose another place with --out" in message
    assert "File too large" in message
    assert list((tmp_path / "out").iterdir()) == []


def test_a_full_disk_leaves_a_store_that_says_how_much_is_complete(kept_run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("nnx_ppo.recordings.recorder.CHUNK_BYTES", 2**14)
    out = tmp_path / "r.zarr"
    append, calls = RecordingWriter.append, []

    def full_after_two(self, rows, attributes=None):
        calls.append(len(rows))
        with no_file_above(4000 if len(calls) > 2 else 2**30):
            append(self, rows, attributes)

    monkeypatch.setattr(RecordingWriter, "append", full_after_two)
    message = fails(capsys, "record", str(kept_run), "--out", str(out), "--n-envs", "8", "--max-steps", "200")
    assert f"{out} cannot be written" in message
    steps = open_recording(out).n_steps
    assert 0 < steps < 200
    assert f"The first {steps} steps of the recording are complete in {out}." in message
    main(["check", str(out)])


@pytest.mark.parametrize("name", ["r.npz", "r.zarr", "c.png", "r.html"])
def test_a_folder_that_cannot_be_made_is_named(kept_run, tmp_path, capsys, name):
    (tmp_path / "file").write_text("")
    command, *words = WRITERS.get(name, ["record"])
    out = tmp_path / "file" / name
    message = fails(capsys, command, str(kept_run), *words, "--out", str(out))
    assert f"{out} cannot be written" in message
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_write_output_leaves_the_old_file(tmp_path):
    path = tmp_path / "new" / "x.txt"
    write_output(path, lambda aside: aside.write_text("old"))

    def full(aside):
        aside.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        write_output(path, full)
    assert caught.value.__notes__ == [f"{path} cannot be written: make room there, or choose another place with --out."]
    assert [p.name for p in path.parent.iterdir()] == ["x.txt"]
    assert path.read_text() == "old"


def test_a_recording_in_a_file_is_checked_too(kept_run, tmp_path, capsys):
    path = tmp_path / "r.npz"
    main(["record", str(kept_run), "--out", str(path), "--n-envs", "2", "--max-steps", "3"])
    capsys.readouterr()
    main(["check", str(path)])
    assert "3 steps of 2 environments" in capsys.readouterr().out
    contents = bytearray(path.read_bytes())
    at = contents.index(b"memory.npy") + len("memory.npy") + 40
    contents[at] ^= 0xFF
    path.write_bytes(contents)
    assert "Damaged: memory does not have its checksum" in fails(capsys, "check", str(path), code=1)
    path.write_bytes(contents[:100])
    assert "or it is damaged" in fails(capsys, "check", str(path))
    assert "there is no recording" in fails(capsys, "check", str(tmp_path / "none.npz"))
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    assert "is no recording that nnx-ppo record made" in fails(capsys, "check", str(tmp_path / "other.npz"))


def test_a_run_is_no_recording(kept_run, tmp_path, capsys):
    for command in (["inspect"], ["check"], ["report", str(kept_run), "--recording"]):
        message = fails(capsys, *command, str(kept_run))
        assert f"{kept_run} is a run, and no recording: it has no recording yet" in message
    (kept_run / "recordings" / "a.npz").write_text("")
    try:
        message = fails(capsys, "inspect", str(kept_run))
    finally:
        (kept_run / "recordings" / "a.npz").unlink()
    assert f"name one of its recordings: {kept_run / 'recordings' / 'a.npz'}" in message


def test_a_full_disk_for_temporary_files_is_named(kept_run, tmp_path, capsys):
    with no_file_above(100):
        message = fails(capsys, "report", str(kept_run), "--episodes", "2", "--out", str(tmp_path / "r.html"))
    assert "report.zarr cannot be written: make room there, or choose another place for temporary files" in message
    assert list(tmp_path.iterdir()) == []
