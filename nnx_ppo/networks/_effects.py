"""The module that an intervention becomes: it changes what passes through, and keeps the time of the episode."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nnx_ppo._pytree import expand_to, fold_time
from nnx_ppo.networks._checks import describe_input
from nnx_ppo.networks._dtypes import zero_loss
from nnx_ppo.networks._keys import initial_keys, key_sequence, next_keys, own_stream
from nnx_ppo.networks._ring_buffer import episode_age
from nnx_ppo.networks._wrapping import LayerWrapper
from nnx_ppo.networks.types import Carry, StatefulModule, StatefulModuleOutput


class InterventionArray(nnx.Variable):
    """Numbers of an intervention. Being variables, they are arguments of compiled programs, and no constants."""


@dataclasses.dataclass(frozen=True)
class Now:
    """When and where samples are; leaves ``[S]``, one entry per sample.

    Attributes:
        time: step of the episode, int32.
        env: number of the environment, int32, or ``None`` where nothing depends on it.
        keys: PRNG keys of this step, or ``None`` where nothing is drawn.
    """

    time: jax.Array
    env: jax.Array | None
    keys: jax.Array | None


@dataclasses.dataclass(frozen=True)
class Law:
    """What one intervention does, without its numbers: hashable, and equal for interventions of one kind.

    Attributes:
        name: of the intervention, for layer tables.
        change: ``(x, arrays, now, function) -> new x`` for all units, ``[S, ...]``.
        function: the user's function of time, for ``change``.
        when: the user's function of time that says whether the intervention acts.
        draws: whether ``change`` needs keys.
        n_envs: number of environments it was made for, ``None`` for any.
    """

    name: str
    change: Callable[..., jax.Array]
    function: Callable[[Any], Any] | None = None
    when: Callable[[Any], Any] | None = None
    draws: bool = False
    n_envs: int | None = None


class Effect(StatefulModule):
    """Applies interventions, one after the other, to an array ``[B, ...]``.

    The carry is ``{"time": [B]}``, steps since the episode began; with noise also ``"key": [B]``, one PRNG key per
    environment, and with input that differs between environments ``"env": [B]``, their numbers.

    Args:
        bound: each intervention's law and arrays, or variables that hold them.
        shape: of one sample.
        seed: of the noise.
    """

    def __init__(self, bound: Sequence[tuple[Law, Mapping[str, Any]]], shape: tuple[int, ...], seed: int = 0):
        self.laws = tuple(law for law, _ in bound)
        self.shape = shape
        self.arrays = nnx.data(
            {
                f"{i}/{name}": array if isinstance(array, nnx.Variable) else InterventionArray(jnp.asarray(array))
                for i, (_, arrays) in enumerate(bound)
                for name, array in arrays.items()
            }
        )
        self.stream = own_stream(nnx.Rngs(seed)) if any(law.draws for law in self.laws) else None

    @property
    def table_name(self) -> str:
        """Names of the interventions."""
        return " + ".join(law.name for law in self.laws)

    def initialize_state(self, batch_size: int) -> Carry:
        state: dict[str, Any] = {"time": jnp.zeros(batch_size, jnp.int32)}
        if self.stream is not None:
            state |= initial_keys(self.stream, batch_size)
        for n_envs in (law.n_envs for law in self.laws if law.n_envs is not None):
            if n_envs != batch_size:
                raise ValueError(
                    f"Inject: the array was made for {n_envs} environments [T, {n_envs}, units], but the network runs "
                    f"in {batch_size}. Give an array [T, {batch_size}, units], or one for all of them, [T, units]."
                )
            state["env"] = jnp.arange(batch_size, dtype=jnp.int32)
        return state

    def reset_state(self, state: Carry) -> Carry:
        return {**state, "time": jnp.zeros_like(state["time"])}

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        self._check(x, 1)
        next_keys_, keys = ({}, None) if self.stream is None else next_keys({"key": state["key"]})
        next_state = {**state, "time": state["time"] + jnp.int32(1), **next_keys_}
        output = self._apply(x, Now(state["time"], state.get("env"), keys))
        return StatefulModuleOutput(next_state, output, zero_loss(x), {})

    def unroll(self, state: Carry, xs: Any, dones: jax.Array, rollout_extras: Any = None) -> StatefulModuleOutput:
        self._check(xs, 2)
        next_keys_, keys = ({}, None) if self.stream is None else key_sequence({"key": state["key"]}, len(dones))
        time, end = _episode_steps(state["time"], dones)
        env = jnp.broadcast_to(state["env"], dones.shape) if "env" in state else None
        output = self._apply(fold_time(xs), fold_time(Now(time, env, keys)))
        next_state = {**state, "time": end, **next_keys_}
        return StatefulModuleOutput(next_state, output.reshape(xs.shape), jnp.zeros(dones.shape, jnp.float32), {})

    def _apply(self, x: jax.Array, now: Now) -> jax.Array:
        for i, law in enumerate(self.laws):
            arrays = self._arrays_of(i, x.dtype)
            keys = None if now.keys is None else jax.vmap(lambda key: jax.random.fold_in(key, i))(now.keys)  # noqa: B023
            new = law.change(x, arrays, dataclasses.replace(now, keys=keys), law.function)
            acts = expand_to(_acts(law, arrays, now), x.ndim)
            x = jnp.where(acts & arrays["units"][None], new, x)
        return x

    def _arrays_of(self, i: int, dtype: Any) -> dict[str, jax.Array]:
        """Arrays of the i-th intervention; numbers are brought to the layer's dtype."""
        mine = {name.partition("/")[2]: v[...] for name, v in self.arrays.items() if name.startswith(f"{i}/")}
        return {name: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.inexact) else x for name, x in mine.items()}

    def _check(self, x: Any, n_lead: int) -> None:
        if getattr(x, "shape", (None,) * n_lead)[n_lead:] != self.shape or not hasattr(x, "ndim"):
            raise ValueError(
                f"{self.table_name}: made for a layer whose output has shape {('B', *self.shape)}, "
                f"got {describe_input(x)}. Give with_interventions the obs= that the network will see."
            )


jax.tree_util.register_dataclass(Now)


class Intervened(LayerWrapper):
    """A layer whose output is changed; carry ``{"layer": the layer's own, "effect": carry of the effect}``.

    Args:
        wrapped: the layer.
        effect: what changes its output.
        where: keys down to the array that is changed, where the output is a (nested) dict.
    """

    def __init__(self, wrapped: StatefulModule, effect: Effect, where: tuple[int | str, ...] = ()):
        super().__init__(wrapped)
        self.effect = effect
        self.where = where

    @property
    def table_name(self) -> str:
        """The layer, and what is done to it."""
        return f"{self.wrapped.table_name} + {self.effect.table_name}"

    @property
    def without_activation(self) -> Callable[[], "Intervened"]:
        """For layers that apply an activation: make the layer without it, and without the intervention."""
        strip = self.wrapped.without_activation  # type: ignore[attr-defined]
        return lambda: Intervened(strip(), Effect((), self.effect.shape), self.where)

    def initialize_state(self, batch_size: int) -> Carry:
        return {
            "layer": self.wrapped.initialize_state(batch_size),
            "effect": self.effect.initialize_state(batch_size),
        }

    def reset_state(self, state: Carry) -> Carry:
        return {
            "layer": self.wrapped.reset_state(state["layer"]),
            "effect": self.effect.reset_state(state["effect"]),
        }

    def layer_carry(self, state: Carry) -> Carry:
        wrapped = self.wrapped
        return wrapped.layer_carry(state["layer"]) if isinstance(wrapped, LayerWrapper) else state["layer"]

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        out = self.wrapped(state["layer"], x, rollout_extras)
        return self._changed(out, lambda part: self.effect(state["effect"], part))

    def unroll(self, state: Carry, xs: Any, dones: jax.Array, rollout_extras: Any = None) -> StatefulModuleOutput:
        out = self.wrapped.unroll(state["layer"], xs, dones, rollout_extras)
        return self._changed(out, lambda part: self.effect.unroll(state["effect"], part, dones))

    def _changed(self, out: StatefulModuleOutput, run: Callable[[Any], StatefulModuleOutput]) -> StatefulModuleOutput:
        part = out.output
        for key in self.where:
            part = part[key]
        changed = run(part)
        next_state = {"layer": out.next_state, "effect": changed.next_state}
        return out.replace(next_state=next_state, output=_put(out.output, self.where, changed.output))


def _put(tree: Any, where: Sequence[int | str], value: Any) -> Any:
    if not where:
        return value
    return {**tree, where[0]: _put(tree[where[0]], where[1:], value)}


def _acts(law: Law, arrays: Mapping[str, jax.Array], now: Now) -> jax.Array:
    """Whether an intervention acts on each sample, bool ``[S]``."""
    acts = jnp.ones(now.time.shape, bool)
    for name in ("when", "inject"):
        if name in arrays:
            acts = acts & (now.time < arrays[name].shape[0])
    if "when" in arrays:
        acts = acts & arrays["when"].at[now.time].get(mode="clip")
    if law.when is not None:
        acts = acts & jax.vmap(lambda time: jnp.asarray(law.when(time)).astype(bool).reshape(()))(now.time)  # type: ignore[misc]
    return acts


def _episode_steps(start: jax.Array, dones: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Step of the episode at each step ``[T, B]``, and after the last one ``[B]``, from those at the first ``[B]``."""
    age = episode_age(dones)
    steps = jnp.arange(len(age), dtype=jnp.int32)[:, None]
    times = jnp.where(age > steps, start[None] + steps, age)  # older than the sequence: nothing ended in it so far
    return times[:-1], times[-1]
