"""What the methods of a module of the user's must take and return, and what to say where they do not."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx

from nnx_ppo.algorithms.fit.text import leaf_text
from nnx_ppo.algorithms.fit.watch import title
from nnx_ppo.networks.naming import named_modules
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput


class FitError(ValueError):
    """The network does not keep the contract of a module, or its input or output does not match the environment's."""


TAKES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "__call__": (("state", "x"), ("rollout_extras",)),
    "initialize_state": (("batch_size",), ()),
    "reset_state": (("state",), ()),
    "unroll": (("state", "xs", "dones"), ("rollout_extras",)),
    "update_statistics": (("rollout_extras",), ()),
}
"""Positional parameters of each method of a module, and those that may be left out."""


def signature_fault(module: str, method: str, function: Callable[..., Any]) -> str | None:
    """What to say of a method that does not take what a container gives it.

    Args:
        module: whose it is.
        method: its name.
        function: the method as its class has it.
    """
    parameters, optional = TAKES[method]
    signature = inspect.signature(function)
    try:
        signature.bind("self", *parameters)
        signature.bind("self", *parameters, *optional)
    except TypeError as error:
        names = ", ".join(["self", *parameters, *(f"{name}=None" for name in optional)])
        return f"{module} defines {method}{signature}, expected {method}({names}): {error}."
    return None


def require_hashable(networks: StatefulModule, graphdef: Any) -> None:
    """Refuse modules that hold what cannot tell one compiled program from another.

    Raises:
        FitError: naming the module and its attribute.
    """
    try:
        hash(graphdef)
        return
    except TypeError as error:
        cause = error
    found = (
        (title(path, module), name, value)
        for path, module in named_modules(networks).items()
        for name, value in vars(module).items()
        if not _is_hashable(value) and not _holds_data(value)
    )
    who, name, value = next(found, ("A module of the network", "", None))
    what = f", self.{name} = {value!r}" if name else ""
    raise FitError(
        f"{who} holds something that cannot be hashed{what} ({cause}). What modules hold beside arrays and modules "
        "tells compiled programs apart: make it a tuple, a dataclass with frozen=True, or nnx.data(...) where it holds "
        "arrays."
    ) from None


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _holds_data(value: Any) -> bool:
    leaves = jax.tree.leaves(value, is_leaf=lambda node: isinstance(node, nnx.Variable | nnx.Pytree))
    return any(isinstance(leaf, nnx.Variable | nnx.Pytree | jax.Array | np.ndarray) for leaf in leaves)


def output_fault(out: Any, method: str) -> str | None:
    """What is wrong with the kind of thing that a call returned."""
    if not isinstance(out, StatefulModuleOutput):
        return (
            f"returns {_kind(out)} from {method}, expected a StatefulModuleOutput(next_state=..., output=..., "
            "regularization_loss=jnp.zeros(()), metrics={})."
        )
    loss = out.regularization_loss
    return None if hasattr(loss, "dtype") or isinstance(loss, int | float) else loss_fault(loss)


def loss_fault(loss: Any) -> str:
    """What to say of a regularization loss that is none."""
    return (
        f"returns {_kind(loss)} as regularization_loss, expected a scalar or one number per sample, [B]: sum over the "
        "other axes; jnp.zeros(()) where there is none."
    )


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    return f"an array {leaf_text(value)}" if hasattr(value, "dtype") else f"a {type(value).__name__}"
