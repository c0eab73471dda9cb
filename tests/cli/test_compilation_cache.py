"""The compilation cache is on for the commands, where the user wants it."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
CODE = (
    "import jax\n"
    "from nnx_ppo.cli.compilation_cache import enable_compilation_cache\n"
    "enable_compilation_cache()\n"
    "print(jax.config.jax_compilation_cache_dir)\n"
)


def cache_folder(**variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("JAX_COMPILATION_CACHE_DIR", "XDG_CACHE_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**environment, **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_it_lies_in_the_users_cache_folder(tmp_path):
    assert cache_folder(XDG_CACHE_HOME=str(tmp_path)) == str(tmp_path / "nnx_ppo" / "jax")
    assert (tmp_path / "nnx_ppo" / "jax").is_dir()


def test_what_jax_was_told_wins(tmp_path):
    assert cache_folder(JAX_COMPILATION_CACHE_DIR=str(tmp_path / "mine")) == str(tmp_path / "mine")


def test_a_folder_that_cannot_be_made_leaves_it_off(tmp_path):
    (tmp_path / "file").write_text("")
    assert cache_folder(XDG_CACHE_HOME=str(tmp_path / "file")) == "None"
