"""Errors about which environment was asked for: unknown names with near ones, missing extras with their command."""

import difflib
import importlib
import warnings
from collections.abc import Iterable
from types import ModuleType


class UnknownEnvError(ValueError):
    """No environment, family or factory has this name; the message lists near ones."""


class MissingExtraError(ImportError):
    """A package that only some environments need is not installed; the message gives the pip command."""


def near_names(name: str, known: Iterable[str], n: int = 5) -> list[str]:
    """Return up to ``n`` of the ``known`` names that look like ``name``, whatever the case, nearest first."""
    by_folded: dict[str, str] = {}
    for candidate in known:
        by_folded.setdefault(candidate.casefold(), candidate)
    return [by_folded[match] for match in difflib.get_close_matches(name.casefold(), by_folded, n=n, cutoff=0.5)]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the sentence that ends a message about an unknown ``name``: near names, else all known ones."""
    known = sorted(known)
    near = near_names(name, known)
    return f"Did you mean {' or '.join(near)}?" if near else f"Known are: {', '.join(known)}."


def import_extra(module: str, extra: str) -> ModuleType:
    """Import ``module``, which the optional dependencies ``extra`` install.

    Raises:
        MissingExtraError: the import fails.
    """
    try:
        with warnings.catch_warnings():
            # Brax imports JAXopt, whose farewell is not the user's to act on.
            warnings.filterwarnings("ignore", message="JAXopt is no longer maintained", category=DeprecationWarning)
            return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{extra} environments need the extra: pip install 'nnx-ppo[{extra}]' (importing {module} failed: {error})"
        ) from error
