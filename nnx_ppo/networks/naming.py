"""Canonical layer paths: one string per layer, the same in activations, metrics, checkpoints and the layer table."""

import dataclasses
import difflib
import functools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nnx_ppo.networks._children import Container
from nnx_ppo.networks.containers import Sequential
from nnx_ppo.networks.types import Carry, StatefulModule, StatefulModuleOutput

Path = tuple[int | str, ...]
"""Keys from the network down to one of its layers."""

_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
_ESCAPE = re.compile(r"%([0-9A-F]{2})")


def path_string(path: Iterable[int | str]) -> str:
    """Join keys into a canonical path, ``(1, "action", 0) -> "1/action/0"``; :func:`parse_path` is its inverse.

    Keys are joined by ``/``. Percent-encoding keeps that lossless: ``/`` and ``%`` inside a string key are written
    ``%2F`` and ``%25``, and of a string key that looks like an integer the first character is encoded (the string
    ``"12"`` is ``%312``, the integer 12 is ``12``). An empty string key is ``%``. The path of the network itself is
    the empty string.
    """
    return "/".join(_encode(key) for key in path)


def parse_path(string: str) -> Path:
    """Split a canonical path into its keys, ``"1/action/0" -> (1, "action", 0)``.

    Raises:
        ValueError: an empty key, or a ``%`` that starts no escape.
    """
    if not string:
        return ()
    return tuple(_decode(part, string) for part in string.split("/"))


def _encode(key: int | str) -> str:
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    if not isinstance(key, str):
        raise TypeError(f"A key of a path must be an integer or a string, got {key!r}.")
    if not key:
        return "%"
    if _INTEGER.fullmatch(key):
        return f"%{ord(key[0]):02X}{key[1:]}"
    return key.replace("%", "%25").replace("/", "%2F")


def _decode(part: str, string: str) -> int | str:
    if part == "%":
        return ""
    if _INTEGER.fullmatch(part):
        return int(part)
    if not part or "%" in _ESCAPE.sub("", part):
        raise ValueError(f"{string!r} is not a canonical path: {part!r} is empty or holds a '%' that escapes nothing.")
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), part)


def flatten_activations(activations: Any) -> dict[str, Any]:
    """Flatten nested activations to ``{canonical path: array}``; :func:`unflatten_activations` is its inverse.

    Dicts are branches, everything else (an empty dict too) is a leaf. The activation of a sampler is a dict, so that
    it takes two entries, ``".../action"`` and ``".../log_likelihood"``.

    Raises:
        TypeError: ``None`` (what ``extract_activations`` returns where nothing was recorded), or a key that is neither
            an integer nor a string.

    Example:
        >>> flatten_activations({0: 1.0, 1: {"action": {0: 2.0}}})
        {'0': 1.0, '1/action/0': 2.0}
    """
    if activations is None:
        raise TypeError("Expected nested activations, got None: nothing was recorded. Apply with_recording first.")
    return {path_string(path): leaf for path, leaf in _walk_dict((), activations)}


def unflatten_activations(flat: Mapping[str, Any]) -> Any:
    """Rebuild nested activations from ``{canonical path: array}``; integer keys are integers again.

    Raises:
        ValueError: a path that is not canonical, or one that runs through another's array.
    """
    root: dict[str, Any] = {}
    for string, leaf in flat.items():
        # The whole tree hangs below one extra key, so that a lone leaf with the empty path is no special case.
        *branches, last = ("root", *parse_path(string))
        node: Any = root
        for key in branches:
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                raise ValueError(f"The path {string!r} runs through another entry's array; the paths are {list(flat)}.")
        if last in node:
            raise ValueError(f"The path {string!r} is both an array and a branch; the paths are {list(flat)}.")
        node[last] = leaf
    return root.get("root", {})


def _walk_dict(path: Path, node: Any) -> Iterator[tuple[Path, Any]]:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _walk_dict((*path, key), value)
    else:
        yield path, node


def near_names(name: str, candidates: Iterable[str], n: int = 3) -> list[str]:
    """Return up to ``n`` candidates that resemble ``name``, best first."""
    return difflib.get_close_matches(name, list(candidates), n=n, cutoff=0.4)


def named_modules(network: nnx.Module, *, into_layers: bool = True) -> dict[str, StatefulModule]:
    """Return every stateful module of a network by canonical path, containers and the network itself (``""``) included.

    Children of a container go by their keys. Of any other module, modules held by attributes go by the attribute's
    name, and inside lists and dicts by index and key. A module used in two places has two paths.

    Args:
        network: any module.
        into_layers: also list what is inside of modules that count as one layer (``is_layer``).
    """
    return {path_string(path): module for path, module in _walk_modules((), network, frozenset(), into_layers)}


def _walk_modules(
    path: Path, module: nnx.Module, above: frozenset[int], into_layers: bool
) -> Iterator[tuple[Path, StatefulModule]]:
    if isinstance(module, StatefulModule):
        yield path, module
        if module.is_layer and not into_layers:
            return
    above = above | {id(module)}
    for slot in slots(module):
        if id(slot.module) not in above:
            yield from _walk_modules((*path, *slot.path), slot.module, above, into_layers)


@dataclasses.dataclass(frozen=True)
class Slot:
    """A place in a module that holds another stateful module."""

    path: Path
    module: StatefulModule
    put: Callable[[Any], None]


def slots(module: nnx.Module) -> Iterator[Slot]:
    """Yield the places of a module's children; what ``put`` gets takes the child's place."""
    if isinstance(module, Container):
        for key in module.keys:
            yield Slot((key,), module.modules[key], functools.partial(operator.setitem, module.modules, key))
    else:
        yield from _slots_in_attributes((), module)


def _slots_in_attributes(path: Path, module: nnx.Pytree) -> Iterator[Slot]:
    for name, value in list(vars(module).items()):
        yield from _slots_in((*path, name), value, functools.partial(setattr, module, name))


def _slots_in(path: Path, value: Any, put: Callable[[Any], None]) -> Iterator[Slot]:
    if isinstance(value, StatefulModule):
        yield Slot(path, value, put)
    elif isinstance(value, MutableMapping):
        for key in list(value):
            yield from _slots_in((*path, key), value[key], functools.partial(operator.setitem, value, key))
    elif isinstance(value, MutableSequence):
        for i, item in enumerate(value):
            yield from _slots_in((*path, i), item, functools.partial(operator.setitem, value, i))
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from _slots_in((*path, i), item, functools.partial(_put_in_tuple, value, put, i))
    elif isinstance(value, nnx.Module):
        yield from _slots_in_attributes(path, value)


def _put_in_tuple(value: tuple[Any, ...], put: Callable[[Any], None], i: int, item: Any) -> None:
    put(value[:i] + (item,) + value[i + 1 :])


@dataclasses.dataclass(frozen=True)
class LayerRow:
    """One line of :class:`LayerTable`."""

    path: str
    """Canonical path."""
    layer: str
    """Class of the layer; for a population of a graph also what it reads."""
    output: str
    """Shape of its output, ``"?"`` where no example observation is known."""
    parameters: int
    """Numbers in its ``nnx.Param`` variables."""
    carry: str
    """Shapes of its carry."""


@dataclasses.dataclass(frozen=True)
class LayerTable:
    """The layers of a network; ``print`` it, or print it with rich."""

    rows: tuple[LayerRow, ...]
    """One row per leaf layer, in order."""
    parameters: int
    """Numbers in all ``nnx.Param`` variables of the network, shared ones counted once."""

    def __str__(self) -> str:
        cells = [self.header(), *self.cells()]
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table(*self.header())
        for row in self.cells():
            table.add_row(*map(Text, row))  # plain text: a shape in brackets is no markup
        return table

    @staticmethod
    def header() -> tuple[str, ...]:
        """Titles of the columns."""
        return "path", "layer", "output", "parameters", "carry"

    def cells(self) -> list[tuple[str, ...]]:
        """Text of every cell, the line of totals last."""
        rows = [(row.path, row.layer, row.output, f"{row.parameters:,}", row.carry) for row in self.rows]
        return [*rows, ("total", "", "", f"{self.parameters:,}", "")]


def describe(network: StatefulModule, obs: Any = None, batch_size: int = 1) -> LayerTable:
    """Tabulate the layers of a network: path, class, output shape, parameters, carry.

    Nothing is computed, and the network (its random streams included) stays as it is.

    Args:
        network: any stateful network.
        obs: example observation *without* batch axis, a tree of arrays or ``jax.ShapeDtypeStruct``. Where the network
            begins with a layer that knows its input size, it may be left out.
        batch_size: ``B`` of the shapes shown.

    Example:
        >>> from flax import nnx
        >>> from nnx_ppo.networks.factories import make_mlp
        >>> print(describe(make_mlp([3, 8, 2], nnx.Rngs(0))))
        path   layer  output  parameters  carry
        0      Dense  [1, 8]  32          -
        1      Dense  [1, 2]  18          -
        total                 50
    """
    obs = _example_input(network) if obs is None else obs
    outputs, carries = _abstract_run(network, obs, batch_size)
    rows = tuple(
        LayerRow(path, layer.table_name, _shapes(outputs.get(path)), _n_parameters(layer), _shapes(carries[path]))
        for path, layer in _leaf_modules(network).items()
    )
    return LayerTable(rows, _n_parameters(network))


def layer_outputs(network: StatefulModule, obs: Any = None) -> dict[str, Any]:
    """Return what each leaf layer puts out, as trees of ``jax.ShapeDtypeStruct`` *without* batch axis, by path.

    Nothing is computed. Empty where ``obs`` is not given and the first layer does not tell.

    Args:
        network: any stateful network.
        obs: as in :func:`describe`.
    """
    outputs, _ = _abstract_run(network, _example_input(network) if obs is None else obs, 1)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), outputs)


def _leaf_modules(network: StatefulModule) -> dict[str, StatefulModule]:
    modules = named_modules(network, into_layers=False)
    return {path: module for path, module in modules.items() if module.is_layer or not any(True for _ in slots(module))}


def _n_parameters(module: nnx.Module) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(module, nnx.Param)))


def _example_input(network: StatefulModule) -> Any:
    """Shapes of one sample, read off the first layer; ``None`` where it does not tell."""
    head: Any = network
    while isinstance(head, Sequential) or hasattr(head, "wrapped"):
        head = head[0] if isinstance(head, Sequential) else head.wrapped
    if isinstance(shape := getattr(head, "shape", None), tuple | dict):
        is_shape = lambda node: isinstance(node, tuple)  # noqa: E731
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, jnp.float32), shape, is_leaf=is_shape)
    if isinstance(width := getattr(head, "in_features", None), int):
        return jax.ShapeDtypeStruct((width,), jnp.float32)
    return None


def _abstract_run(network: StatefulModule, obs: Any, batch_size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Output and carry of each leaf layer as trees of ``jax.ShapeDtypeStruct``, by path."""
    graphdef, variables = nnx.split(network)

    def carries_of(variables: Any) -> dict[str, Any]:
        layers = _leaf_modules(nnx.merge(graphdef, variables))
        return {path: layer.initialize_state(batch_size) for path, layer in layers.items()}

    def outputs_of(variables: Any, x: Any) -> dict[str, Any]:
        copy, outputs = nnx.merge(graphdef, variables), _Outputs()
        state = copy.initialize_state(batch_size)
        _probe(copy, outputs)(state, x)
        return outputs.by_path

    carries = jax.eval_shape(carries_of, variables)
    if obs is None:
        return {}, carries
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((batch_size, *leaf.shape), leaf.dtype), obs)
    return jax.eval_shape(outputs_of, variables, batch), carries


class _Outputs:
    """Where probes put what they saw; hashable by identity, since modules hold it as static data."""

    def __init__(self) -> None:
        self.by_path: dict[str, Any] = {}


class _Probe(StatefulModule):
    """Calls the layer it stands for and notes its output."""

    def __init__(self, wrapped: StatefulModule, path: str, outputs: _Outputs):
        self.wrapped = wrapped
        self.path = path
        self.outputs = outputs

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        out = self.wrapped(state, x, rollout_extras)
        self.outputs.by_path[self.path] = out.output
        return out


def _probe(module: StatefulModule, outputs: _Outputs, path: Path = ()) -> StatefulModule:
    """Put a probe around every leaf layer of ``module``, in place."""
    places = [] if module.is_layer else list(slots(module))
    if not places:
        return _Probe(module, path_string(path), outputs)
    for slot in places:
        if not isinstance(slot.module, _Probe):
            slot.put(_probe(slot.module, outputs, (*path, *slot.path)))
    return module


def _shapes(tree: Any) -> str:
    if tree is None:
        return "?"
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return ", ".join(" ".join([*_names(path), str(list(leaf.shape))]) for path, leaf in leaves) or "-"


def _names(path: Any) -> list[str]:
    """The dict keys on a path; positions in tuples and the like say nothing to a reader."""
    keys = [str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey)]
    return ["/".join(keys)] if keys else []
