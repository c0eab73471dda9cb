"""What can be done to units: silence, hold, scale, disturb or drive them."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nnx_ppo.networks._effects import Law, Now
from nnx_ppo.networks._intervention_targets import (
    Target,
    exact_dtype,
    require_float,
    spread,
    time_mask,
    unit_numbers,
)
from nnx_ppo.networks._keys import normal


@dataclasses.dataclass(frozen=True, eq=False)
class Intervention(abc.ABC):
    """Base of the interventions. A subclass says in :meth:`bind` what becomes of the units."""

    def bind(self, target: Target) -> tuple[Law, dict[str, Any]]:
        """Return what to do, hashable, and the arrays that it is done with."""
        units, when = getattr(self, "units", None), getattr(self, "when", None)
        chosen = unit_numbers(type(self).__name__, units, target)
        law, arrays = self._law(target, chosen)
        mask = np.zeros(target.n_units, bool)
        mask[chosen] = True
        arrays["units"] = mask.reshape(target.shape)
        if callable(when):
            law = dataclasses.replace(law, when=when)
        elif when is not None:
            arrays["when"] = time_mask(when, target)
        return law, arrays

    @abc.abstractmethod
    def _law(self, target: Target, units: np.ndarray) -> tuple[Law, dict[str, Any]]:
        """Return the law and its arrays for the numbers of the chosen units, int ``[k]``."""


@dataclasses.dataclass(frozen=True, eq=False)
class Ablate(Intervention):
    """Silence units: their output is 0.

    Args:
        units: numbers of the units, or a bool mask over all; by default the whole layer. Several feature axes count as
            one, flattened.
        when: at which steps of the episode: bool array ``[T]`` (false from ``T`` on), or a function of the step, int32
            ``[]``, to a bool; by default always.
    """

    units: Any = None
    when: Any = dataclasses.field(default=None, kw_only=True)

    def _law(self, target: Target, units: np.ndarray) -> tuple[Law, dict[str, Any]]:
        require_float(self, target)
        return Law("Ablate", _ablate), {}


@dataclasses.dataclass(frozen=True, eq=False)
class Clamp(Intervention):
    """Hold units at a value.

    Args:
        units: see :class:`Ablate`; ``None``: the whole layer.
        value: a number, or one for each of the units.
        when: see :class:`Ablate`.
    """

    units: Any
    value: Any
    when: Any = dataclasses.field(default=None, kw_only=True)

    def _law(self, target: Target, units: np.ndarray) -> tuple[Law, dict[str, Any]]:
        return Law("Clamp", _clamp), {"value": spread("Clamp: value", self.value, units, target)}


@dataclasses.dataclass(frozen=True, eq=False)
class Scale(Intervention):
    """Multiply units by a factor; a factor of 0 gives 0, also of what is not finite.

    Args:
        units: see :class:`Ablate`; ``None``: the whole layer.
        factor: a number, or one for each of the units. Or an ``nnx.Variable`` with the shape of the layer's output,
            which the copy shares: change its numbers, and nothing is compiled anew.
        when: see :class:`Ablate`.
    """

    units: Any
    factor: Any
    when: Any = dataclasses.field(default=None, kw_only=True)

    def _law(self, target: Target, units: np.ndarray) -> tuple[Law, dict[str, Any]]:
        require_float(self, target)
        if not isinstance(self.factor, nnx.Variable):
            return Law("Scale", _scale), {"factor": spread("Scale: factor", self.factor, units, target)}
        if self.factor.shape != target.shape:
            raise ValueError(
                f"{target.path!r}: Scale: a factor that is a variable must have the shape of the layer's output, "
                f"{list(target.shape)}, got {list(self.factor.shape)}."
            )
        return Law("Scale", _scale), {"factor": self.factor}


@dataclasses.dataclass(frozen=True, eq=False)
class AddNoise(Intervention):
    """Add normal noise, new at each step, in training and in eval mode alike.

    Every environment has its own PRNG key, in the carry. Rollouts, evaluations and recordings derive it from their key.

    Args:
        std: standard deviation, a number or one for each of the units.
        units: see :class:`Ablate`.
        when: see :class:`Ablate`.
        seed: where the keys come from when you make the carry yourself.
    """

    std: Any
    units: Any = None
    when: Any = dataclasses.field(default=None, kw_only=True)
    seed: int = dataclasses.field(default=0, kw_only=True)

    def _law(self, target: Target, units: np.ndarray) -> tuple[Law, dict[str, Any]]:
        require_float(self, target)
        std = spread("AddNoise: std", self.std, units, target)
        if not (std >= 0).all():
            raise ValueError(f"{target.path!r}: AddNoise: std must be at least 0, got {self.std!r}.")
        return Law("AddNoise", _add_noise, draws=True), {"std": std}


@dataclasses.dataclass(frozen=True, eq=False)
class Inject(Intervention):
    """Put an activity of your own in the place of that of units, over the time of the episode.

    Args:
        activity: array ``[T, k]`` for ``k`` units, or ``[T, B, k]`` with one for each of ``B`` environments; from step
            ``T`` on the layer's own output passes. Or a function of the step of the episode, int32 ``[]``, that returns
            ``[k]``, or one number for all.
        units: see :class:`Ablate`; the order is that of the activity's last axis.
        when: see :class:`Ablate`.
    """

    activity: Any
    units: Any = None
    when: Any = dataclasses.field(default=None, kw_only=True)

    def _law(self, target: Target, units: np.ndarray) -> tuple[Law, dict[str, Any]]:
        if callable(self.activity):
            return Law("Inject", _inject_function, function=self.activity), {"index": units.astype(np.int32)}
        given = np.asarray(self.activity)
        if given.ndim not in (2, 3) or given.shape[-1] != len(units) or not len(given):
            raise ValueError(
                f"{target.path!r}: Inject: expected an array [T, {len(units)}] or [T, B, {len(units)}] for "
                f"{len(units)} units, got shape {list(given.shape)}."
            )
        full = np.zeros((*given.shape[:-1], target.n_units), exact_dtype("Inject: activity", given, target))
        full[..., units] = given
        n_envs = given.shape[1] if given.ndim == 3 else None
        return Law("Inject", _inject_array, n_envs=n_envs), {"inject": full.reshape(*given.shape[:-1], *target.shape)}


Function = Callable[[Any], Any] | None
Arrays = Mapping[str, jax.Array]


def _ablate(x: jax.Array, arrays: Arrays, now: Now, function: Function) -> jax.Array:
    return jnp.zeros_like(x)


def _clamp(x: jax.Array, arrays: Arrays, now: Now, function: Function) -> jax.Array:
    return jnp.broadcast_to(arrays["value"], x.shape)


def _scale(x: jax.Array, arrays: Arrays, now: Now, function: Function) -> jax.Array:
    factor = jnp.broadcast_to(arrays["factor"], x.shape)
    return jnp.where(factor == 0, jnp.zeros_like(x), x * factor)


def _add_noise(x: jax.Array, arrays: Arrays, now: Now, function: Function) -> jax.Array:
    assert now.keys is not None
    return x + jnp.broadcast_to(arrays["std"], x.shape) * normal(now.keys, x.shape[1:], x.dtype)


def _inject_array(x: jax.Array, arrays: Arrays, now: Now, function: Function) -> jax.Array:
    activity = arrays["inject"]
    where = (now.time,) if activity.ndim == x.ndim else (now.time, now.env)
    return activity.at[where].get(mode="clip").astype(x.dtype)


def _inject_function(x: jax.Array, arrays: Arrays, now: Now, function: Function) -> jax.Array:
    index = arrays["index"]

    def at(time: jax.Array) -> jax.Array:
        value = jnp.asarray(function(time)).astype(x.dtype)  # type: ignore[misc]
        if value.shape not in ((), index.shape):
            raise ValueError(
                f"Inject: the function must return a number, or one for each of {index.size} units, "
                f"got shape {list(value.shape)}."
            )
        return jnp.broadcast_to(value, index.shape)

    values = jax.vmap(at)(now.time)
    return x.reshape(len(x), -1).at[:, index].set(values).reshape(x.shape)
