"""JAX's compilation cache on disk, so that the second run of a command starts in seconds."""

import os
import pathlib

import jax


def enable_compilation_cache() -> None:
    """Turn the cache on, in the user's cache folder, unless JAX has been told of a folder already.

    ``JAX_COMPILATION_CACHE_DIR`` chooses another one; a folder that cannot be written leaves the cache off.
    """
    if getattr(jax.config, "jax_compilation_cache_dir", None):
        return
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    folder = pathlib.Path(base) / "nnx_ppo" / "jax"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
