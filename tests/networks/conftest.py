"""Fixtures of the network tests."""

from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture
def without_type_checks() -> Iterator[None]:
    """Let wrong types through to the library's own message; the tests' type checker would refuse them before."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
