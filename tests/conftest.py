"""Strict JAX for every test: no implicit promotion, and one compilation cache for all runs and workers."""

import contextlib
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


@pytest.fixture(autouse=True)
def relax_promotion(request: pytest.FixtureRequest) -> Iterator[None]:
    """Allow implicit promotion in the tests marked ``relaxed_promotion``, and in no other."""
    with contextlib.ExitStack() as stack:
        if request.node.get_closest_marker("relaxed_promotion") is not None:
            stack.enter_context(jax.numpy_dtype_promotion("standard"))
            stack.enter_context(jax.numpy_rank_promotion("allow"))
        yield
