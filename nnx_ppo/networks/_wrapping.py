"""Modules around layers, put into a copy of a network that shares the parameters with the original."""

import copy
from collections.abc import Callable
from typing import Any, ClassVar

from flax import nnx

from nnx_ppo.networks import naming
from nnx_ppo.networks.types import Carry, StatefulModule


class LayerWrapper(StatefulModule):
    """Base of the modules that stand around one layer, at its place and under its path.

    Args:
        wrapped: the layer.
    """

    is_layer: ClassVar[bool] = True

    def __init__(self, wrapped: StatefulModule):
        self.wrapped = wrapped

    @property
    def table_name(self) -> str:
        """What layer tables call the layer."""
        return self.wrapped.table_name

    def initialize_state(self, batch_size: int) -> Carry:
        return self.wrapped.initialize_state(batch_size)

    def reset_state(self, state: Carry) -> Carry:
        return self.wrapped.reset_state(state)

    def update_statistics(self, rollout_extras: Any) -> None:
        self.wrapped.update_statistics(rollout_extras)

    def layer_carry(self, state: Carry) -> Carry:
        """Return the part of the carry that is the layer's own."""
        return state


def leaf_layers(network: nnx.Module) -> dict[str, StatefulModule]:
    """Return every StatefulModule that contains no other or counts as one layer, by canonical path."""
    modules = naming.named_modules(network, into_layers=False)
    return {path: module for path, module in modules.items() if _is_leaf(module)}


def _is_leaf(module: nnx.Module) -> bool:
    return isinstance(module, StatefulModule) and (
        module.is_layer
        or not any(isinstance(node, StatefulModule) and node is not module for _, node in nnx.iter_graph(module))
    )


def copy_network(network: Any, wrap: Callable[[Any, Any], Any] = lambda original, twin: twin) -> Any:
    """Copy the module objects; share their variables, except the random streams, which the copy owns.

    Args:
        network: any module.
        wrap: called with each module and its copy, which it returns, as it is or with another module around it.
    """
    return _copy(network, wrap, {})


def replace_layer(network: Any, path: naming.Path, make: Callable[[StatefulModule], StatefulModule]) -> Any:
    """Return ``network`` with ``make(layer)`` at ``path``; modules on the way are copied, everything else is shared.

    So a module that is used in two places is replaced at the one that the path names.

    Args:
        network: what :func:`copy_network` returned.
        path: keys down to the layer, which is there.
        make: what to put there.
    """
    if not path:
        return make(network)
    twin = _copy_module(network, _copy_containers)
    for slot in naming.slots(twin):
        if slot.path == path[: len(slot.path)]:
            slot.put(replace_layer(slot.module, path[len(slot.path) :], make))
            return twin
    raise KeyError(f"there is no module at {naming.path_string(path)!r} in {type(network).__name__}.")


def _copy(node: Any, wrap: Callable[[Any, Any], Any], memo: dict[int, Any]) -> Any:
    if id(node) in memo:
        return memo[id(node)]
    if isinstance(node, nnx.RngState):
        result: Any = copy.copy(node)
    elif isinstance(node, nnx.Variable):
        return node
    elif isinstance(node, nnx.Pytree):
        result = wrap(node, _copy_module(node, lambda child: _copy(child, wrap, memo)))
    elif _is_plain_container(node):
        result = _copy_container(node, lambda child: _copy(child, wrap, memo))
    else:
        return node
    memo[id(node)] = result
    return result


def _copy_containers(node: Any) -> Any:
    return _copy_container(node, _copy_containers) if _is_plain_container(node) else node


def _is_plain_container(node: Any) -> bool:
    return isinstance(node, dict) or (isinstance(node, list | tuple) and not hasattr(node, "_fields"))


def _copy_container(node: Any, copy_child: Callable[[Any], Any]) -> Any:
    if isinstance(node, dict):
        return type(node)({key: copy_child(value) for key, value in node.items()})
    return type(node)(copy_child(value) for value in node)


def _copy_module(module: Any, copy_child: Callable[[Any], Any]) -> Any:
    twin = copy.copy(module)
    for name, value in vars(module).items():
        if not name.startswith("_pytree__"):  # NNX's own bookkeeping of which attributes hold arrays
            object.__setattr__(twin, name, copy_child(value))
    return twin
