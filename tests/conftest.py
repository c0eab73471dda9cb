"""Strict JAX for every test: no implicit promotion, and one compilation cache for all runs and workers."""

import contextlib
import gc
import os
import pathlib
from collections.abc import Iterator

import jax
import pytest

_CACHE = pathlib.Path(os.environ.get("JAX_COMPILATION_CACHE_DIR", pathlib.Path(__file__).parents[1] / ".cache" / "jax"))

jax.config.update("jax_compilation_cache_dir", str(_CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# On a GPU, as the library itself does: what tests compile on their own is compared with it.
jax.config.update("jax_default_matmul_precision", "highest")
# W&B reads its environment once per process, whichever test comes first; no test may look for an account.
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_SILENT"] = "true"


MOST_MEMORY = 4 * 2**30
"""Resident bytes of a worker above which it lets go of what it compiled; hundreds of files share one process."""


@pytest.fixture(autouse=True, scope="module")
def bounded_memory() -> Iterator[None]:
    """After a test file, drop compiled programs where they have become too many; they are in the cache on disk."""
    yield
    memory = pathlib.Path("/proc/self/statm")  # in pages; only Linux has it
    if memory.exists() and int(memory.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > MOST_MEMORY:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(autouse=True)
def relax_promotion(request: pytest.FixtureRequest) -> Iterator[None]:
    """Allow implicit promotion in the tests marked ``relaxed_promotion``, and in no other."""
    with contextlib.ExitStack() as stack:
        if request.node.get_closest_marker("relaxed_promotion") is not None:
            stack.enter_context(jax.numpy_dtype_promotion("standard"))
            stack.enter_context(jax.numpy_rank_promotion("allow"))
        yield
