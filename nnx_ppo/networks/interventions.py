"""Interventions: a copy of a network in which chosen units are silenced, held, scaled, disturbed or driven."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import nnx

from nnx_ppo.networks import naming
from nnx_ppo.networks._effects import Effect, Intervened
from nnx_ppo.networks._intervention_kinds import Ablate, AddNoise, Clamp, Inject, Intervention, Scale
from nnx_ppo.networks._intervention_targets import Target
from nnx_ppo.networks._wrapping import copy_network, leaf_layers, replace_layer
from nnx_ppo.networks.adapter import is_sample
from nnx_ppo.networks.graph import Population
from nnx_ppo.networks.recording import Recorder
from nnx_ppo.networks.types import StatefulModule

__all__ = ["Ablate", "AddNoise", "Clamp", "Inject", "Intervention", "Scale", "with_interventions"]


def with_interventions(
    network: nnx.Module,
    interventions: Mapping[str, Any],
    *,
    obs: Any = None,
) -> Any:
    """Return a copy of ``network`` in which units do what you say; ``network`` itself stays as it is.

    The copy shares the parameters (and running statistics) with the original and follows it when training goes on. It
    owns its random streams and its train/eval mode. It runs wherever the original does: step by step, in ``unroll``,
    in evaluations and recordings. A recording of it shows what is left after the intervention, whichever of the two
    was applied first. Copies that differ in units and numbers alone share compiled programs.

    What is changed is the output of a layer, as all that read it receive it. In a population graph this includes
    connections with delay, which remember the changed output. Of an action sampler it is the action; the
    log-likelihood stays that of the action that was drawn.

    Args:
        network: a stateful network, ordinary, recordable, or with interventions already: new ones come after those.
        interventions: by canonical path, as in recordings: an intervention, or a list of them, each of which acts on
            the result of the one before.
        obs: example observation *without* batch axis, a tree of arrays or ``jax.ShapeDtypeStruct``. It may be left out
            where the network begins with a layer that knows its input size.

    Raises:
        ValueError: a path that is no layer, units that the layer does not have, an array that does not fit, or an
            output that cannot be changed in this way.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from nnx_ppo.networks import make_mlp
        >>> lesioned = with_interventions(make_mlp([3, 8, 2], nnx.Rngs(0)), {"0": Clamp(units=[3, 7], value=0.5)})
        >>> hidden = lesioned[0](lesioned[0].initialize_state(1), jnp.ones((1, 3))).output
        >>> hidden[0, 3].item(), hidden[0, 7].item()
        (0.5, 0.5)
    """
    layers = leaf_layers(network)
    if not layers:
        raise ValueError(f"{type(network).__name__} has no layer to intervene on: it contains no StatefulModule.")
    outputs = naming.layer_outputs(network, obs)  # type: ignore[arg-type]
    twin = copy_network(network)
    for path, given in interventions.items():
        several = tuple(given) if isinstance(given, list | tuple) else (given,)
        if not several or not all(isinstance(each, Intervention) for each in several):
            raise ValueError(f"{path!r}: expected an intervention such as Ablate(), or several, got {given!r}.")
        layer_path, where = _find(path, layers, outputs)
        target = _target(path, where, outputs.get(layer_path), layers[layer_path])
        seed = sum(getattr(each, "seed", 0) for each in several)
        effect = Effect([each.bind(target) for each in several], target.shape, seed)
        twin = replace_layer(twin, naming.parse_path(layer_path), lambda layer: _put_at(layer, effect, where))  # noqa: B023
    return twin


def _put_at(layer: StatefulModule, effect: Effect, where: tuple[int | str, ...]) -> StatefulModule:
    if isinstance(layer, Recorder):
        return Recorder(_put_at(layer.wrapped, effect, where), layer.what)
    # Inside a population the change comes before the buffer, from which delayed connections read.
    return layer.with_effect(effect) if isinstance(layer, Population) else Intervened(layer, effect, where)


def _find(path: str, layers: Mapping[str, Any], outputs: Mapping[str, Any]) -> tuple[str, tuple[int | str, ...]]:
    """Split a path into that of a layer, and what comes below it in the layer's output."""
    if not isinstance(path, str):
        raise ValueError(f"a path must be a string such as {next(iter(layers))!r}, got {path!r}.")
    keys = naming.parse_path(path)
    for n in range(len(keys), -1, -1):
        if (layer := naming.path_string(keys[:n])) in layers:
            break
    else:
        inside = [name for name in layers if name.startswith(f"{path}/") or not path]
        if inside:
            raise ValueError(f"{path!r} is no layer but holds several: name one of {inside}.")
        raise ValueError(f"there is no layer {path!r}; near names: {naming.near_names(path, layers) or list(layers)}.")
    known = naming.flatten_activations(outputs[layer]) if layer in outputs else {}
    if n == len(keys) and is_sample(outputs.get(layer)):
        return layer, ("action",)
    below = naming.path_string(keys[n:])
    if layer in outputs and below not in known:
        names = [f"{layer}/{name}" if name else layer for name in known]
        raise ValueError(
            f"there is no array {path!r} in what {layer!r} puts out; near names: "
            f"{naming.near_names(path, names) or names}."
        )
    return layer, keys[n:]


def _target(path: str, where: tuple[int | str, ...], output: Any, layer: StatefulModule) -> Target:
    inner = layer.wrapped if isinstance(layer, Recorder) else layer
    if output is None and isinstance(inner, Population):
        return Target(path, (inner.size,), np.dtype(np.float32))
    if output is None:
        raise ValueError(
            f"the network does not tell how many units {path!r} has: give obs=, an example observation without batch "
            "axis (jax.ShapeDtypeStruct will do)."
        )
    if is_sample(output) and where[:1] != ("action",):
        raise ValueError(f"{path!r} follows from the action: intervene on that, or on the layers below it.")
    array: Any = output
    for key in where:
        array = array[key]
    if not hasattr(array, "shape"):
        raise ValueError(f"{path!r}: the layer puts out a {type(array).__name__}, and interventions change an array.")
    return Target(path, tuple(array.shape), array.dtype)
