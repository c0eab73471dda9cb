"""Checks of an input that several layers share."""

from typing import Any


def describe_input(x: Any) -> str:
    """Say in an error message what came: the shape of an array, the type of anything else."""
    shape = getattr(x, "shape", None)
    return f"a {type(x).__name__}" if shape is None else f"shape {shape}"


def check_features(owner: str, x: Any, in_features: int) -> None:
    """Refuse an input that is not an array ``[B, in_features]``."""
    if not hasattr(x, "shape"):
        raise TypeError(
            f"{owner}: expected an array [B, {in_features}], got a {type(x).__name__}. "
            "Put a Flattener or Filter in front to make one array of it."
        )
    if x.ndim < 2 or x.shape[-1] != in_features:
        raise ValueError(
            f"{owner}: expected an input [B, {in_features}] (in_features={in_features}), got shape {x.shape}."
        )
