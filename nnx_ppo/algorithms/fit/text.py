"""Trees of arrays in words, for error messages: shapes and dtypes, and where two of them differ."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp


def unbatched(tree: Any, n: int | None = None) -> str:
    """Leaves without the axis ``[n]`` in front, as words; ``None`` for no axis that would be known."""
    if n is None:
        return ""
    found = jax.tree_util.tree_leaves_with_path(tree)
    return _listing(f"{_name(path)} as {leaf_text(leaf)}" for path, leaf in found if jnp.shape(leaf)[:1] != (n,))


def changes(first: Any, second: Any, when_first: str = "before", when_second: str = "after") -> str:
    """Leaves in which two trees differ, as words; empty where they have one structure, shapes and dtypes."""
    a, b = ({_name(p): leaf_text(x) for p, x in jax.tree_util.tree_leaves_with_path(tree)} for tree in (first, second))
    lines = [
        f"{name} is {a.get(name, 'not there')} {when_first} and {b.get(name, 'not there')} {when_second}"
        for name in dict.fromkeys([*a, *b])
        if a.get(name) != b.get(name)
    ]
    if not lines and jax.tree.structure(first) != jax.tree.structure(second):
        lines = [f"it is {jax.tree.structure(first)} {when_first} and {jax.tree.structure(second)} {when_second}"]
    return _listing(lines)


def _listing(lines: Iterable[str], n_most: int = 4) -> str:
    lines = list(lines)
    return "; ".join(lines[:n_most] + ([f"and {len(lines) - n_most} more"] if len(lines) > n_most else []))


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path) or "the only leaf"


def leaf_text(leaf: Any) -> str:
    """Dtype and shape of an array, the type of anything else."""
    if isinstance(leaf, bool | int | float):
        return f"a Python {type(leaf).__name__}"
    return f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "dtype") else f"a {type(leaf).__name__}"


def describe_spec(tree: Any) -> str:
    """Shapes and dtypes of a tree in one line, ``{'camera': float32[8, 8]}``."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key!r}: {describe_spec(value)}" for key, value in tree.items()) + "}"
    return f"{tree.dtype}{list(tree.shape)}" if hasattr(tree, "shape") else type(tree).__name__


def describe_keys(tree: Any) -> str:
    """Names of a tree's leaves in one line."""
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    return "(a single one)" if names == [""] else "{" + ", ".join(names) + "}"
