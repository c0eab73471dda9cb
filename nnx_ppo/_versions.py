"""Versions of the interpreter and of packages, for what is written to disk."""

import importlib.metadata
import platform
from collections.abc import Iterable


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Version of ``python`` and of each package, ``None`` where one is missing."""
    return {"python": platform.python_version(), **{name: package_version(name) for name in packages}}


def package_version(name: str) -> str | None:
    """Version of an installed package, ``None`` where it is missing."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
