"""What a recording keeps of the environment beside observation and reward: fields of its state, or functions of it."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp


class Extras:
    """What else to keep, beside what every recording holds. Compared by content, so that programs are reused.

    Args:
        names: paths into the environment state, such as ``"metrics/speed"`` or ``"data/qpos"``.
        functions: by name, functions of the state of a single environment.
    """

    def __init__(self, names: tuple[str, ...] = (), functions: Mapping[str, Callable[[Any], Any]] | None = None):
        self.names = names
        self.functions = tuple((functions or {}).items())

    def __hash__(self) -> int:
        return hash((self.names, self.functions))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Extras) and (self.names, self.functions) == (other.names, other.functions)

    def read(self, before: Any, after: Any) -> dict[str, Any]:
        """Read batched states; ``metrics`` describe the step and come from after it, all else from before it."""
        found = {name: _follow(after if name.split("/")[0] == "metrics" else before, name) for name in self.names}
        found |= {name: jax.vmap(function)(before) for name, function in self.functions}
        return jax.tree.map(_raw, found)


def _follow(state: Any, name: str) -> Any:
    node = state
    for part in name.split("/"):
        if isinstance(node, Mapping):
            known = {str(key): value for key, value in node.items()}
        elif isinstance(node, list | tuple) and not hasattr(node, "_fields"):
            known = {str(i): value for i, value in enumerate(node)}
        else:
            known = _fields(node)
        if part not in known:
            raise ValueError(f"extras: the environment state has no {name!r}; instead of {part!r} there is {[*known]}.")
        node = known[part]
    return node


def _fields(node: Any) -> dict[str, Any]:
    names = getattr(node, "__dataclass_fields__", None) or getattr(node, "_fields", None) or vars(node)
    return {name: getattr(node, name) for name in names}


def _raw(leaf: Any) -> jax.Array:
    leaf = jnp.asarray(leaf)
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
