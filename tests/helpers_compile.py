"""Counts what JAX compiles."""

import contextlib
import logging
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """Collect one line per XLA compilation (served from the persistent cache or not) inside the block."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = record.getMessage()
            if message.startswith("Compiling "):
                lines.append(message)

    handler = Handler()
    logger = logging.getLogger("jax")
    before = jax.config.jax_log_compiles
    propagate = logger.propagate
    jax.config.update("jax_log_compiles", True)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield lines
    finally:
        jax.config.update("jax_log_compiles", before)
        logger.removeHandler(handler)
        logger.propagate = propagate
