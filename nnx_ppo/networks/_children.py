"""The one place that threads carry, extras, losses and metrics through the children of a container."""

import abc
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nnx_ppo.networks._dtypes import float_dtype
from nnx_ppo.networks.types import Carry, StatefulModule, StatefulModuleOutput

Key = int | str
"""Name of a child: a position, or a string."""


class Container(StatefulModule):
    """A module made of named children. A subclass says only, in :meth:`join`, how to feed them and how to join.

    The carry, ``rollout_extras`` and ``metrics`` of a container are dicts with one entry per child, under its key.
    """

    def __init__(self, children: Mapping[Any, StatefulModule] | Iterable[tuple[Any, StatefulModule]]):
        pairs = list(children.items() if isinstance(children, Mapping) else children)
        for key, child in pairs:
            _check_child(type(self).__name__, key, child)
        keys = [key for key, _ in pairs]
        if duplicates := sorted({str(key) for key in keys if keys.count(key) > 1}):
            raise ValueError(f"{type(self).__name__}: child names must be unique, but {duplicates} appear twice.")
        self.keys = tuple(keys)
        self.modules = nnx.data(dict(pairs))

    def named_children(self) -> dict[Key, StatefulModule]:
        """Children by key, in order."""
        return {key: self.modules[key] for key in self.keys}

    @abc.abstractmethod
    def join(self, run: Callable[[Key, Any], Any], x: Any, n_lead: int) -> Any:
        """Feed the children through ``run(key, input) -> output``, each once, and return the joined output.

        Args:
            run: runs one child.
            x: the container's input; leaves have ``n_lead`` leading axes (``[B]`` or ``[T, B]``).
            n_lead: 1 when stepping, 2 in sequence mode.
        """

    def __getitem__(self, key: Key) -> StatefulModule:
        if key not in self.keys:
            raise KeyError(f"{type(self).__name__} has no child {key!r}; its children are {list(self.keys)}.")
        return self.modules[key]

    def __len__(self) -> int:
        return len(self.keys)

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        return self._thread(lambda child, carry, y, extras: child(carry, y, extras), state, x, 1, rollout_extras)

    def unroll(self, state: Carry, xs: Any, dones: jax.Array, rollout_extras: Any = None) -> StatefulModuleOutput:
        return self._thread(
            lambda child, carry, y, extras: child.unroll(carry, y, dones, extras), state, xs, 2, rollout_extras
        )

    def initialize_state(self, batch_size: int) -> Carry:
        return {key: child.initialize_state(batch_size) for key, child in self.named_children().items()}

    def reset_state(self, state: Carry) -> Carry:
        return {key: child.reset_state(state[key]) for key, child in self.named_children().items()}

    def update_statistics(self, rollout_extras: Any) -> None:
        for key, child in self.named_children().items():
            child.update_statistics(None if rollout_extras is None else rollout_extras[key])

    def _thread(
        self, call: Callable[..., StatefulModuleOutput], state: Carry, x: Any, n_lead: int, rollout_extras: Any
    ) -> StatefulModuleOutput:
        outs: dict[Key, StatefulModuleOutput] = {}

        def run(key: Key, y: Any) -> Any:
            extras = None if rollout_extras is None else rollout_extras[key]
            outs[key] = call(self.modules[key], state[key], y, extras)
            return outs[key].output

        output = self.join(run, x, n_lead)
        none = jnp.zeros((), jnp.float32)
        losses = [none, *(jnp.asarray(out.regularization_loss) for out in outs.values())]
        dtype = float_dtype(*losses)
        return StatefulModuleOutput(
            next_state={key: out.next_state for key, out in outs.items()},
            output=output,
            regularization_loss=sum((loss.astype(dtype) for loss in losses[1:]), none.astype(dtype)),
            metrics={key: out.metrics for key, out in outs.items()},
            rollout_extras={key: out.rollout_extras for key, out in outs.items()},
        )


def named_or_dict(owner: str, children: Mapping[str, Any] | None, named: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read the two ways to give named children: keywords, or one positional dict."""
    if children is not None and named:
        raise TypeError(f"{owner} takes keywords or one dict of children, not both.")
    if children is not None and not isinstance(children, Mapping):
        raise TypeError(f"{owner} expected keywords or one dict of children, got a {type(children).__name__}.")
    result = named if children is None else children
    if not result:
        raise ValueError(f"{owner} needs at least one child.")
    return result


def _check_child(owner: str, key: Any, child: Any) -> None:
    if not isinstance(key, int | str) or isinstance(key, bool) or (isinstance(key, str) and not key):
        raise TypeError(f"{owner}: a child's name must be a non-empty string or a position, got {key!r}.")
    if not isinstance(child, StatefulModule):
        raise TypeError(
            f"{owner}: child {key!r} must be a StatefulModule, got {type(child).__name__}. "
            "Use Dense for a linear layer, or wrap your own computation in a StatefulModule subclass."
        )
