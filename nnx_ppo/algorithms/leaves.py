"""Leaves by name: every array of a module or tree as NumPy, with what NumPy cannot say of it, and back again.

NumPy knows neither typed PRNG keys nor weak types nor that a leaf was a Python number; a :class:`LeafSpec` does.
"""

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nnx_ppo._pytree import PyTreeNode
from nnx_ppo.networks._children import Container
from nnx_ppo.networks.naming import path_string


@dataclasses.dataclass(frozen=True)
class LeafSpec:
    """What a leaf is, beside its numbers.

    Attributes:
        shape: of the stored array; for a PRNG key that of its key data.
        dtype: NumPy's name of the stored dtype, those of ``ml_dtypes`` (``bfloat16``, ...) included.
        key: implementation of a typed PRNG key (``threefry2x32``, ``rbg``, ...), else ``None``.
        weak: the array's type is weak: it takes on that of what it meets.
        python: ``bool``, ``int`` or ``float`` for a Python number, else ``None``.
    """

    shape: tuple[int, ...]
    dtype: str
    key: str | None = None
    weak: bool = False
    python: str | None = None

    def __str__(self) -> str:
        if self.python is not None:
            return f"Python {self.python}"
        kind = f"key<{self.key}>" if self.key is not None else self.dtype
        return f"{kind}{list(self.shape[:-1] if self.key is not None else self.shape)}"

    @property
    def identity(self) -> tuple[Any, ...]:
        """What has to agree for one leaf to take another's place."""
        return self.shape, self.dtype, self.key, self.python


Leaves = dict[str, tuple[np.ndarray, LeafSpec]]
"""Arrays in host memory by name."""

_PYTHON = {"bool": bool, "int": int, "float": float}


class StoredTree(PyTreeNode):
    """A tree whose structure is not known yet: its arrays by name; :func:`structured` gives it one.

    Attributes:
        leaves: arrays by name.
    """

    leaves: dict[str, Any]


def spec_of(leaf: Any) -> LeafSpec:
    """Describe a leaf: array, typed PRNG key, Python number, or ``jax.ShapeDtypeStruct``."""
    if type(leaf) in _PYTHON.values():
        return LeafSpec((), np.asarray(leaf).dtype.name, python=type(leaf).__name__)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return _spec_of_key(leaf)
    return LeafSpec(tuple(leaf.shape), leaf.dtype.name, weak=bool(getattr(leaf, "weak_type", False)))


def _spec_of_key(leaf: Any) -> LeafSpec:
    names = []

    # Traced, since of a mere ShapeDtypeStruct JAX does not tell the implementation.
    def read(key: jax.Array) -> jax.Array:
        names.append(str(jax.random.key_impl(key)))
        return jax.random.key_data(key)

    data = jax.eval_shape(read, leaf)
    return LeafSpec(tuple(data.shape), data.dtype.name, key=names[0])


def to_host(leaf: Any) -> tuple[np.ndarray, LeafSpec]:
    """Copy a leaf to host memory; what happens to the original later does not change the copy."""
    spec = spec_of(leaf)
    return np.array(jax.random.key_data(leaf) if spec.key is not None else leaf, copy=True), spec


def from_host(array: np.ndarray, spec: LeafSpec) -> Any:
    """Undo :func:`to_host`.

    Raises:
        ValueError: 64-bit numbers, while JAX is set to 32 bits.
    """
    if spec.python is not None:
        return _PYTHON[spec.python](array.item())
    wide = spec.dtype in ("float64", "int64", "uint64", "complex128")
    if wide and not getattr(jax.config, "jax_enable_x64"):  # noqa: B009 - the attribute exists at run time only
        raise ValueError(
            f"an array of {spec.dtype} was saved with 64-bit numbers, and JAX is set to 32 bits here: set "
            'jax.config.update("jax_enable_x64", True), or JAX_ENABLE_X64=1, before anything else.'
        )
    if spec.key is not None:
        return jax.random.wrap_key_data(jnp.array(array), impl=spec.key)
    return _weak(array) if spec.weak else jnp.array(array)


def _weak(array: np.ndarray) -> jax.Array:
    # JAX makes arrays of weak type from Python numbers only.
    if array.size == 0:
        return jnp.array(array)
    return jnp.stack([jnp.asarray(number) for number in array.ravel().tolist()]).reshape(array.shape)


def module_leaves(module: nnx.Pytree) -> dict[str, Any]:
    """All arrays of a module (or optimizer) by canonical path: of its variables, and bare ones."""
    flat = list(nnx.to_flat_state(nnx.state(module)))
    return {name: _value(leaf) for name, (_, leaf) in zip(_names(module, flat), flat, strict=True)}


def set_module_leaves(module: nnx.Pytree, values: Mapping[str, Any]) -> None:
    """Put arrays in place, by canonical path; what is not named stays."""
    flat = list(nnx.to_flat_state(nnx.state(module)))
    changed = []
    for name, (path, leaf) in zip(_names(module, flat), flat, strict=True):
        value = values.get(name, _value(leaf))
        if isinstance(leaf, nnx.Variable):
            leaf.set_value(value)
            value = leaf
        changed.append((path, value))
    nnx.update(module, nnx.from_flat_state(changed))


def _names(module: nnx.Pytree, flat: list[tuple[tuple[Any, ...], Any]]) -> list[str]:
    names = [path_string(_canonical(module, path)) for path, _ in flat]
    return names if len(set(names)) == len(names) else [path_string(path) for path, _ in flat]


def _canonical(module: Any, path: tuple[Any, ...]) -> list[Any]:
    """The path of a variable with its layer's canonical path in front: a container's children go by their keys."""
    keys: list[Any] = []
    node: Any = module
    for key in path:
        if not (isinstance(node, Container) and key == "modules"):
            keys.append(key)
        try:
            item = isinstance(node, Mapping | Sequence)
            node = operator.getitem(node, key) if item else getattr(node, key)
        except (AttributeError, LookupError, TypeError):
            node = None
    return keys


def _value(leaf: Any) -> Any:
    return leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf


def tree_leaves(tree: Any) -> dict[str, Any]:
    """All leaves of a tree by the notation that reaches them, for example ``.info['truncated']``."""
    if isinstance(tree, StoredTree):
        return dict(tree.leaves)
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def structured(tree: Any, like: Callable[[], Any], what: str) -> Any:
    """Give a :class:`StoredTree` the structure of ``like()``; any other tree is returned as it is.

    Args:
        tree: what was loaded.
        like: makes a tree of that structure, of arrays or ``jax.ShapeDtypeStruct``.
        what: what it is, for the message.

    Raises:
        ValueError: names, shapes or dtypes differ.
    """
    if not isinstance(tree, StoredTree):
        return tree
    wanted = like()
    expected = {name: spec_of(leaf) for name, leaf in tree_leaves(wanted).items()}
    found = {name: spec_of(leaf) for name, leaf in tree.leaves.items()}
    if differ := differences(found, expected):
        raise ValueError(f"{what} of the checkpoint do not fit; did something change since? {differ}.")
    treedef = jax.tree.structure(wanted)
    return jax.tree.unflatten(treedef, [tree.leaves[name] for name in expected])


def differences(saved: Mapping[str, LeafSpec], here: Mapping[str, LeafSpec], n_most: int = 8) -> str:
    """Where two sets of leaves differ, as words; empty where they do not."""
    lines = []
    for name in sorted(saved.keys() | here.keys()):
        a, b = saved.get(name), here.get(name)
        if a is None or b is None or a.identity != b.identity:
            lines.append(f"{name or 'itself'}: saved {a or 'nothing'}, here {b or 'nothing'}")
    more = [] if len(lines) <= n_most else [f"and {len(lines) - n_most} more"]
    return "; ".join(lines[:n_most] + more)
