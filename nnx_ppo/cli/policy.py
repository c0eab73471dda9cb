"""A policy on disk: every variable of a network as arrays by Orbax, PRNG keys as key data, the rest as JSON.

The folder holds ``arrays/`` (one array per variable path) and ``policy.json`` (steps trained, and the implementation
of each PRNG key). Nothing is pickled, and nothing depends on the device that it was trained on.
"""

import json
import pathlib
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nnx_ppo.networks.naming import path_string


def save_policy(path: pathlib.Path, network: nnx.Module, steps: int) -> pathlib.Path:
    """Save all variables of ``network``: parameters, normaliser statistics, RNG keys and counts.

    Args:
        path: folder to write, replaced where it exists.
        network: the network.
        steps: environment steps it was trained for.
    """
    leaves = _leaves(network)
    arrays = {name: np.asarray(jax.random.key_data(x) if _is_key(x) else x) for name, x in leaves.items()}
    keys = {name: str(jax.random.key_impl(x)) for name, x in leaves.items() if _is_key(x)}
    aside = path.with_name(f".{path.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    with _checkpointer() as checkpointer:
        checkpointer.save((aside / "arrays").absolute(), arrays)
    (aside / "policy.json").write_text(json.dumps({"steps": steps, "keys": keys}, indent=2))
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.replace(old)
    aside.replace(path)
    shutil.rmtree(old, ignore_errors=True)
    return path


def load_policy(path: pathlib.Path, network: nnx.Module) -> int:
    """Load what :func:`save_policy` saved into ``network``, in place.

    Returns:
        Environment steps that the policy was trained for.

    Raises:
        ValueError: the saved variables are not those of ``network``; names the paths and shapes that differ.
    """
    about = json.loads((path / "policy.json").read_text())
    wanted = {
        name: np.zeros_like(jax.random.key_data(x)) if _is_key(x) else np.asarray(x)
        for name, x in _leaves(network).items()
    }
    with _checkpointer() as checkpointer:
        arrays = checkpointer.restore((path / "arrays").absolute())
    arrays = {name: np.asarray(x) for name, x in arrays.items()}
    _require_same(path, arrays, wanted)
    for name, variable in _variables(network).items():
        x = jnp.asarray(arrays[name])
        variable.set_value(jax.random.wrap_key_data(x, impl=about["keys"][name]) if name in about["keys"] else x)
    return int(about["steps"])


def _variables(network: nnx.Module) -> dict[str, nnx.Variable]:
    # Variables of the network itself, not of a copy, so that setting one sets the network's.
    nodes: Any = nnx.iter_graph(network)
    return {path_string(path): node for path, node in nodes if isinstance(node, nnx.Variable)}


def _leaves(network: nnx.Module) -> dict[str, Any]:
    return {name: variable.get_value() for name, variable in _variables(network).items()}


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _require_same(path: pathlib.Path, arrays: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    def shapes(tree: dict[str, np.ndarray]) -> dict[str, str]:
        return {name: f"{x.dtype}{list(x.shape)}" for name, x in tree.items()}

    saved, built = shapes(arrays), shapes(wanted)
    differ = [
        f"{name}: saved {saved.get(name, 'nothing')}, network has {built.get(name, 'nothing')}"
        for name in sorted(saved.keys() | built.keys())
        if saved.get(name) != built.get(name)
    ]
    if differ:
        raise ValueError(
            f"the policy in {path} does not fit the network that was built for it; did the function that makes the "
            "network, or the environment, change? " + "; ".join(differ)
        )


def _checkpointer() -> Any:
    import orbax.checkpoint as ocp

    return ocp.StandardCheckpointer()
