"""What an intervention acts on, and whether the units and numbers that are given fit it."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Target:
    """The array that an intervention changes.

    Attributes:
        path: canonical path, as in recordings.
        shape: of one sample.
        dtype: of its numbers.
    """

    path: str
    shape: tuple[int, ...]
    dtype: Any

    @property
    def n_units(self) -> int:
        """Number of units; several feature axes count as one, flattened."""
        return int(np.prod(self.shape))

    @property
    def is_float(self) -> bool:
        """Whether it holds floats, not the numbers of discrete actions."""
        return bool(jnp.issubdtype(self.dtype, jnp.floating))


def unit_numbers(owner: str, units: Any, target: Target) -> np.ndarray:
    """Numbers of the chosen units, int ``[k]``."""
    if units is None:
        return np.arange(target.n_units)
    chosen = np.atleast_1d(np.asarray(units))
    has = f"{target.path!r} has {target.n_units} units, 0 to {target.n_units - 1}"
    if chosen.dtype == bool:
        if chosen.size != target.n_units:
            raise ValueError(f"{has}, so {owner} needs a mask of {target.n_units} entries, got {chosen.size}.")
        chosen = np.flatnonzero(chosen)
    if chosen.ndim != 1 or not chosen.size or not np.issubdtype(chosen.dtype, np.integer):
        raise ValueError(f"{has}: {owner} takes some of these numbers, or a mask with some true, got {units!r}.")
    if wrong := [int(unit) for unit in chosen if not 0 <= unit < target.n_units]:
        raise ValueError(f"{has}: {owner} cannot act on {wrong}.")
    if len(np.unique(chosen)) != len(chosen):
        raise ValueError(f"{target.path!r}: {owner} names a unit twice: {chosen.tolist()}.")
    return chosen


def spread(owner: str, value: Any, units: np.ndarray, target: Target) -> np.ndarray:
    """Put values, a number or one for each of the chosen units, into an array over all units, 0 elsewhere."""
    given = np.asarray(value)
    if given.shape not in ((), (len(units),)):
        raise ValueError(
            f"{target.path!r}: {owner} must be a number or one for each of {len(units)} units, "
            f"got shape {list(given.shape)}."
        )
    full = np.zeros(target.n_units, exact_dtype(owner, given, target))
    full[units] = given
    return full.reshape(target.shape)


def exact_dtype(owner: str, given: np.ndarray, target: Target) -> Any:
    """The dtype of the target, which must be able to hold the given values."""
    if given.dtype.kind not in "biuf" and not jnp.issubdtype(given.dtype, jnp.floating):
        raise ValueError(f"{target.path!r}: {owner} must be numbers, got an array of {given.dtype}.")
    if not target.is_float and not np.array_equal(given, given.astype(target.dtype)):
        raise ValueError(
            f"{target.path!r} holds whole numbers ({target.dtype}), such as discrete actions: {owner} must hold "
            f"whole numbers too."
        )
    return target.dtype


def time_mask(when: Any, target: Target) -> np.ndarray:
    """Return ``when`` as a bool array over the steps of an episode ``[T]``."""
    mask = np.asarray(when)
    if mask.dtype != bool or mask.ndim != 1 or not mask.size:
        raise ValueError(
            f"{target.path!r}: when must be a bool array [T] over the steps of an episode, or a function of the step, "
            f"got an array of {mask.dtype} with shape {list(mask.shape)}."
        )
    return mask


def require_float(intervention: object, target: Target) -> None:
    """Refuse a target of whole numbers."""
    if not target.is_float:
        raise ValueError(
            f"{target.path!r} holds whole numbers ({target.dtype}), such as discrete actions, which "
            f"{type(intervention).__name__} has no meaning for: use Clamp or Inject."
        )
