"""Checkpoints are loaded: a whole training state to resume to the bit, or variables of the network alone."""

import os
import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

from nnx_ppo.algorithms.checkpoint_files import CheckpointError, Stored, read_about, read_arrays, stored_arrays
from nnx_ppo.algorithms.config_json import config_from_json
from nnx_ppo.algorithms.leaves import (
    StoredTree,
    differences,
    from_host,
    module_leaves,
    set_module_leaves,
    spec_of,
    structured,
)
from nnx_ppo.algorithms.snapshots import CARRY, ENV_STATES, KEY, NETWORKS, OPTIMIZER, part_of, random_settings
from nnx_ppo.algorithms.types import TrainingState
from nnx_ppo.networks.types import StatefulModule


def load_checkpoint(path: str | os.PathLike[str], networks: StatefulModule, optimizer: nnx.Optimizer) -> dict[str, Any]:
    """Load a training state to go on from: ``train_ppo(env, networks, ..., initial_state=loaded["training_state"])``.

    Nothing is changed where anything does not fit.

    Args:
        path: one checkpoint, ``.../step_0000500000``; see :func:`latest_checkpoint`.
        networks: of the same structure as the saved one; all its variables are set.
        optimizer: made as the saved one was (see :func:`~nnx_ppo.algorithms.ppo.new_training_state`), with the learning
            rate or schedule to go on with; all its variables are set.

    Returns:
        ``"training_state"``, a :class:`~nnx_ppo.algorithms.types.TrainingState` whose environment states get their
        classes where they are first used; ``"step"``; ``"config"`` as it was given to :func:`make_checkpoint_fn`;
        ``"log"``, the position of the logger; ``"description"`` as it was given, ``None`` where there is none.

    Raises:
        CheckpointError: there is no checkpoint, or networks and optimizer are not those that were saved; names paths
            and shapes that differ.
        DamagedCheckpointError: its files are not as they were written.
    """
    path = pathlib.Path(path)
    about = read_about(path)
    stored = stored_arrays(about)
    for part, module in ((NETWORKS, networks), (OPTIMIZER, optimizer)):
        require_same(path, part, part_of(stored, part), module)
    _warn_of_settings(path, about)
    values = _read(path, about, stored)
    carry = structured(
        StoredTree(part_of(values, CARRY)), lambda: _carry_of(networks, about["n_envs"]), "the network's states"
    )
    set_module_leaves(networks, part_of(values, NETWORKS))
    set_module_leaves(optimizer, part_of(values, OPTIMIZER))
    state = TrainingState(
        networks=networks,
        network_states=carry,
        env_states=StoredTree(part_of(values, ENV_STATES)),
        optimizer=optimizer,
        rng_key=values[KEY + ":"],
        steps_taken=about["steps"],
    )
    return {
        "training_state": state,
        "step": about["steps"],
        "config": config_from_json(about["config"]),
        "log": about["log"],
        "description": about.get("description"),
    }


def read_networks(path: pathlib.Path) -> tuple[dict[str, Stored], Any]:
    """What a checkpoint holds of the network, by canonical path, and a function that loads some of it.

    Raises:
        CheckpointError: there is no checkpoint.
        DamagedCheckpointError: its files are not as they were written.
    """
    about = read_about(path)
    stored = stored_arrays(about)

    def load(names: list[str]) -> dict[str, Any]:
        values = _read(path, about, {f"{NETWORKS}:{name}": stored[f"{NETWORKS}:{name}"] for name in names})
        return part_of(values, NETWORKS)

    return part_of(stored, NETWORKS), load


def require_same(path: pathlib.Path, part: str, stored: Mapping[str, Stored], module: nnx.Pytree) -> None:
    """Refuse a module with other variables than those saved.

    Raises:
        CheckpointError: naming paths and shapes that differ.
    """
    here = {name: spec_of(leaf) for name, leaf in module_leaves(module).items()}
    if differ := differences({name: entry.spec for name, entry in stored.items()}, here):
        raise CheckpointError(
            f"the {part} in {path} do not fit those given: {differ}. Make them as they were made when it was saved"
            + ("; to take over a part of them, use restore_networks." if part == NETWORKS else ".")
        )


def _read(path: pathlib.Path, about: dict[str, Any], stored: Mapping[str, Stored]) -> dict[str, Any]:
    arrays = read_arrays(path, about, stored)
    try:
        return {name: from_host(arrays[name], entry.spec) for name, entry in stored.items()}
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _carry_of(networks: StatefulModule, n_envs: int) -> Any:
    graphdef, variables = nnx.split(networks)
    return jax.eval_shape(lambda state: nnx.merge(graphdef, state).initialize_state(n_envs), variables)


def _warn_of_settings(path: pathlib.Path, about: dict[str, Any]) -> None:
    here = random_settings()
    differ = [f"{k} was {v}, is {here[k]}" for k, v in about["settings"].items() if k in here and here[k] != v]
    if differ:
        warnings.warn(
            f"{path} was saved under other settings of JAX ({'; '.join(differ)}): training will not go on to the bit.",
            stacklevel=3,
        )
