"""Recording: a copy of a network in which every leaf layer also reports its forward output.

A :class:`Recorder` is an ordinary module around a layer. Only the copy contains recorders, so an ordinary network pays
nothing, and what containers do with ``metrics`` anyway brings the recorded values to the top.
"""

import fnmatch
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nnx_ppo.networks import naming
from nnx_ppo.networks._wrapping import LayerWrapper, copy_network, leaf_layers
from nnx_ppo.networks.types import Carry, StatefulModule, StatefulModuleOutput

ACTIVATION_KEY = "__activation__"
"""Reserved key of ``metrics`` under which a recorder puts the forward output of its layer."""

Patterns = str | Sequence[str] | None


WHAT = ("output", "carry", "pre_activation")
"""What can be recorded of a layer."""


class Recorder(LayerWrapper):
    """Calls the layer it wraps, passes the result through unchanged, and adds the output to ``metrics``.

    Args:
        wrapped: the layer.
        what: see :func:`with_recording`.
    """

    def __init__(self, wrapped: StatefulModule, what: tuple[str, ...] = ("output",)):
        super().__init__(wrapped)
        self.what = what

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        run = lambda layer: layer(state, x, rollout_extras)  # noqa: E731
        return self._record(run(self.wrapped), run)

    def unroll(self, state: Carry, xs: Any, dones: jax.Array, rollout_extras: Any = None) -> StatefulModuleOutput:
        if "carry" in self.what:  # a layer's own unroll gives the last carry only
            return super().unroll(state, xs, dones, rollout_extras)
        run = lambda layer: layer.unroll(state, xs, dones, rollout_extras)  # noqa: E731
        return self._record(run(self.wrapped), run)

    def _record(
        self, out: StatefulModuleOutput, run: Callable[[StatefulModule], StatefulModuleOutput]
    ) -> StatefulModuleOutput:
        own = out.metrics if isinstance(out.metrics, dict) else {"metrics": out.metrics}
        value = out.output if self.what == ("output",) else self._parts(out, run)
        return out.replace(metrics={**own, ACTIVATION_KEY: value})

    def _parts(
        self, out: StatefulModuleOutput, run: Callable[[StatefulModule], StatefulModuleOutput]
    ) -> dict[str, Any]:
        parts: dict[str, Any] = {}
        if "output" in self.what:
            parts["output"] = out.output
        if "carry" in self.what and (carry := _without_keys(self._layer_carry(out.next_state))) is not None:
            parts["carry"] = carry
        if "pre_activation" in self.what and (strip := getattr(self.wrapped, "without_activation", None)) is not None:
            parts["pre_activation"] = run(strip()).output
        return parts

    def _layer_carry(self, state: Carry) -> Carry:
        return self.wrapped.layer_carry(state) if isinstance(self.wrapped, LayerWrapper) else state


def _without_keys(carry: Any) -> Any:
    """Drop PRNG keys, which are no activations, from a carry; positions in a tuple become keys of a dict."""
    if isinstance(carry, list | tuple):
        carry = dict(enumerate(carry))
    if isinstance(carry, Mapping):
        parts = {key: _without_keys(value) for key, value in carry.items()}
        return {key: part for key, part in parts.items() if part is not None} or None
    return None if carry is None or jnp.issubdtype(carry.dtype, jax.dtypes.prng_key) else carry


def with_recording(
    network: nnx.Module, *, include: Patterns = None, exclude: Patterns = None, what: Sequence[str] = ("output",)
) -> Any:
    """Return a copy of ``network`` whose every layer can be read; ``network`` itself stays as it is.

    The copy shares the parameters (and running statistics) with the original and follows it when training goes on. It
    owns its random streams and its train/eval mode.

    Args:
        network: a stateful network. One that already records is returned unchanged, with a warning.
        include: glob pattern or patterns on the canonical path (``"*/action/*"``); only matching layers are recorded.
        exclude: the same; matching layers are not recorded.
        what: with anything but the output alone, the activation of a layer is a dict with an entry for each:
            ``"output"``; ``"carry"``, the carry after the step (before a reset; without random keys; a tuple becomes
            a dict by position) of layers that have one; ``"pre_activation"``, the output without the activation
            function, of layers that apply one to their output.

    Raises:
        ValueError: no leaf layer, a pattern that matches nothing, patterns that leave no layer, or something in
            ``what`` that cannot be recorded.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from nnx_ppo.networks.factories import make_mlp_actor_critic
        >>> network = make_mlp_actor_critic(3, 1, [8], [8], nnx.Rngs(0))
        >>> recordable = with_recording(network)
        >>> recordable.eval()
        >>> out = recordable(recordable.initialize_state(2), jnp.ones((2, 3)))
        >>> extract_activations(out.metrics)[1]["action"][0].shape
        (2, 8)
    """
    if isinstance(what, str) or not what or not set(what) <= set(WHAT):
        raise ValueError(f"what must be a tuple with one or more of {list(WHAT)}, got {what!r}.")
    if is_recordable(network):
        warnings.warn("The network already records its activations; it is returned unchanged.", stacklevel=2)
        return network
    layers = leaf_layers(network)
    if not layers:
        raise ValueError(
            f"{type(network).__name__} has no layer to record: it contains no StatefulModule. "
            "Recording reads the output of StatefulModule layers; build the network from them."
        )
    chosen = choose_layers(list(layers), include, exclude)
    wrapped = {id(layers[path]) for path in chosen}
    return copy_network(
        network, lambda original, twin: Recorder(twin, tuple(what)) if id(original) in wrapped else twin
    )


def is_recordable(network: nnx.Module) -> bool:
    """Whether ``network`` came from :func:`with_recording`."""
    return any(isinstance(node, Recorder) for _, node in nnx.iter_graph(network))


def extract_activations(metrics: Any) -> Any:
    """Collect the recorded outputs from a network's ``metrics``.

    Args:
        metrics: ``StatefulModuleOutput.metrics`` of a network from :func:`with_recording`.

    Returns:
        Nested dict that mirrors the network, one array (or tree of arrays) per recorded layer, or ``None`` where
        nothing was recorded.
    """
    if not isinstance(metrics, Mapping):
        return None
    if ACTIVATION_KEY in metrics:
        return metrics[ACTIVATION_KEY]
    found = {key: extract_activations(value) for key, value in metrics.items()}
    return {key: value for key, value in found.items() if value is not None} or None


def choose_layers(paths: list[str], include: Patterns, exclude: Patterns) -> list[str]:
    """Return the paths that match ``include`` and not ``exclude``.

    Raises:
        ValueError: a pattern that matches nothing, or patterns that leave nothing.
    """
    chosen = [path for path in paths if include is None or path in _matches(paths, include, "include")]
    if exclude is not None:
        dropped = _matches(paths, exclude, "exclude")
        chosen = [path for path in chosen if path not in dropped]
    if not chosen:
        raise ValueError(
            f"include={include!r} and exclude={exclude!r} leave no layer to record; the layers are {paths}."
        )
    return chosen


def _matches(paths: list[str], patterns: str | Sequence[str], name: str) -> set[str]:
    found: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        hits = {path for path in paths if fnmatch.fnmatchcase(path, pattern)}
        if not hits:
            raise ValueError(
                f"{name}={pattern!r} matches no layer; near names: {naming.near_names(pattern, paths) or paths}."
            )
        found |= hits
    return found
