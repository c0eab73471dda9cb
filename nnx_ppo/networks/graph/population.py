"""A population of units: it sums what its connections bring, applies its activation once, and remembers its output."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax

from nnx_ppo.networks import _ring_buffer
from nnx_ppo.networks._checks import describe_input
from nnx_ppo.networks._children import Container, Key
from nnx_ppo.networks._dtypes import as_float, default_float, float_dtype
from nnx_ppo.networks.activations import Activation, resolve_activation, without_activation
from nnx_ppo.networks.containers import Sequential
from nnx_ppo.networks.noise import GaussianNoise
from nnx_ppo.networks.types import Carry, StatefulModule, StatefulModuleOutput

EXTERNAL = ""
"""Key, in a population's input, of what comes from outside the graph."""

NOISE = "_noise"
"""Key of the noise among a population's children."""

EFFECT = "_effect"
"""Key of an intervention among a population's children."""

_NO_CONNECTIONS = (NOISE, EFFECT)


class Population(Container):
    """``activation(sum of transformed inputs + noise)``; the output is ``[B, size]``.

    Its children are the transforms of the incoming connections. Its input is a dict with the source's output for each
    of them, and what comes from outside under :data:`EXTERNAL`. The carry is ``{"inputs": {connection: carry},
    "buffer": ring buffer of past outputs}``, with ``()`` for a buffer that nobody reads.

    Args:
        name: name of the population, for errors.
        size: number of units.
        transforms: incoming connections.
        activation: function or name; ``None``: none.
        buffer_length: how many past outputs to remember.
        noise: added to the sum, before the activation; ``None``: none.
    """

    is_layer: ClassVar[bool] = True

    def __init__(
        self,
        name: str,
        size: int,
        transforms: Mapping[str, StatefulModule],
        activation: Activation = None,
        buffer_length: int = 0,
        noise: GaussianNoise | None = None,
    ):
        super().__init__(transforms if noise is None else {**transforms, NOISE: noise})
        self.name = name
        self.size = size
        self.activation = resolve_activation(activation)
        self.buffer_length = buffer_length

    @property
    def table_name(self) -> str:
        """The class, and what the population reads: ``Population <- retina, cortex@2`` (``@2``: two steps ago)."""
        sources = [str(key) for key in self.keys if key not in _NO_CONNECTIONS]
        name = f"Population <- {', '.join(sources)}" if sources else "Population"
        return f"{name} + {self.modules[EFFECT].table_name}" if EFFECT in self.keys else name

    def without_activation(self) -> "Population":
        """Return the same layer, sharing its parameters, without its activation function and without intervention."""
        twin = without_activation(self)
        object.__setattr__(twin, "keys", tuple(key for key in self.keys if key != EFFECT))
        return twin

    def with_effect(self, effect: StatefulModule) -> "Population":
        """Return the same layer, sharing its parameters, whose output goes through one more layer.

        What that returns is the population's output: what leaves it, what connections read, and what it remembers.

        Args:
            effect: ``[B, size] -> [B, size]``; it comes after those that are there already.
        """
        twin = copy.copy(self)
        if EFFECT in self.keys:
            effect = Sequential([self.modules[EFFECT], effect])
        else:
            object.__setattr__(twin, "keys", (*self.keys, EFFECT))
        object.__setattr__(twin, "modules", {**self.modules, EFFECT: effect})
        return twin

    def initialize_state(self, batch_size: int) -> Carry:
        sample = jax.ShapeDtypeStruct((self.size,), default_float())
        buffer = _ring_buffer.create(sample, self.buffer_length, batch_size) if self.buffer_length else ()
        return {"inputs": super().initialize_state(batch_size), "buffer": buffer}

    def reset_state(self, state: Carry) -> Carry:
        buffer = _ring_buffer.cleared(state["buffer"]) if self.buffer_length else ()
        return {"inputs": super().reset_state(state["inputs"]), "buffer": buffer}

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        out = super().__call__(state["inputs"], x, rollout_extras)
        buffer = _ring_buffer.push(state["buffer"], out.output) if self.buffer_length else ()
        return out.replace(next_state={"inputs": out.next_state, "buffer": buffer})

    def unroll(self, state: Carry, xs: Any, dones: jax.Array, rollout_extras: Any = None) -> StatefulModuleOutput:
        out = super().unroll(state["inputs"], xs, dones, rollout_extras)
        buffer = _ring_buffer.push_sequence(state["buffer"], out.output, dones) if self.buffer_length else ()
        return out.replace(next_state={"inputs": out.next_state, "buffer": buffer})

    def join(self, run: Callable[[Key, Any], Any], x: Any, n_lead: int) -> Any:
        parts = {key: run(key, x[key]) for key in self.keys if key not in _NO_CONNECTIONS}
        if EXTERNAL in x:
            parts[EXTERNAL] = as_float(x[EXTERNAL])
        for key, part in parts.items():
            self._check_part(key, part, n_lead)
        dtype = float_dtype(*parts.values())
        total, *others = (part.astype(dtype) for part in parts.values())
        for part in others:
            total = total + part
        if NOISE in self.keys:
            total = run(NOISE, total)
        output = total if self.activation is None else self.activation(total)
        return run(EFFECT, output) if EFFECT in self.keys else output

    def _check_part(self, key: Key, part: Any, n_lead: int) -> None:
        if getattr(part, "ndim", 0) != n_lead + 1 or part.shape[-1] != self.size:
            source = "the input from outside" if key == EXTERNAL else f"the transform of {key!r} -> {self.name!r}"
            raise ValueError(
                f"Population {self.name!r} has {self.size} units, so {source} must give an array [B, {self.size}], "
                f"got {describe_input(part)}."
            )
