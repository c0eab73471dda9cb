"""Output that nobody reads, that cannot be written or that is not there; Ctrl-C before there is a command."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from nnx_ppo.cli import main
from nnx_ppo.cli.console import stderr, stdout

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def consoles_that_speak(monkeypatch):
    """They belong to the process, and fall silent for good when their reader has gone."""
    for console in (stdout, stderr):
        monkeypatch.setattr(console, "quiet", False)


def end_of_a_pipe_that_nobody_reads():
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


@pytest.mark.parametrize("words", [["--version"], ["plot", "--help"]])
def test_a_reader_that_has_gone_ends_the_command_without_a_word(words, monkeypatch, capsys):
    with end_of_a_pipe_that_nobody_reads() as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit) as caught:
            main(words)
    assert caught.value.code == 141
    assert capsys.readouterr().err == ""


def test_a_reader_of_progress_may_go(monkeypatch):
    with end_of_a_pipe_that_nobody_reads() as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        stderr.print("Compiling.")
    assert stderr.quiet


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", [["--version"], ["plot", "--help"]])
def test_output_that_cannot_be_written_is_one_message(words, monkeypatch, capsys):
    with open("/dev/full", "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit) as caught:
            main(words)
    assert caught.value.code == 2
    assert "Standard output cannot be written." in capsys.readouterr().err


def test_a_process_without_streams_does_its_work(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    main(["--version"])
    with pytest.raises(SystemExit) as caught:
        main(["eval", "nowhere"])
    assert caught.value.code == 2
    for stream in (sys.stdout, sys.stderr):
        stream.close()


def test_what_a_terminal_has_no_letters_for_does_not_end_the_command(monkeypatch, tmp_path):
    with open(tmp_path / "out", "w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with pytest.raises(SystemExit) as caught:
            main(["eval", "Lauf-ä"])
    assert caught.value.code == 2
    assert "Lauf-? is no run folder" in (tmp_path / "out").read_text("ascii")


SLOW_PACKAGE = """
import time

print("importing", flush=True)
for _ in range(600):
    try:
        time.sleep(0.1)
    except BaseException:  # an import that catches everything
        pass
"""


def test_ctrl_c_while_the_package_is_imported_is_one_line(tmp_path):
    (tmp_path / "nnx_ppo").mkdir()
    (tmp_path / "nnx_ppo" / "__init__.py").write_text(SLOW_PACKAGE)
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import nnx_ppo_command as c; c.main()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == "Interrupted.\n"


def test_the_program_runs_the_command_line():
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; import nnx_ppo_command as c; c.main()"
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "jax" in done.stdout
