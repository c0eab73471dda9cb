"""A training state as a flat dict of arrays, named ``part:path``, and the settings that its numbers depend on."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from nnx_ppo.algorithms.leaves import Leaves, module_leaves, to_host, tree_leaves
from nnx_ppo.algorithms.types import TrainingState

NETWORKS, OPTIMIZER, CARRY, ENV_STATES, KEY = "networks", "optimizer", "network_states", "env_states", "rng_key"


def snapshot(state: TrainingState) -> Leaves:
    """Copy all arrays of a training state to host memory, by name."""
    parts = {
        NETWORKS: module_leaves(state.networks),
        OPTIMIZER: module_leaves(state.optimizer),
        CARRY: tree_leaves(state.network_states),
        ENV_STATES: tree_leaves(state.env_states),
        KEY: {"": state.rng_key},
    }
    return {f"{part}:{name}": to_host(leaf) for part, leaves in parts.items() for name, leaf in leaves.items()}


def part_of(values: Mapping[str, Any], part: str) -> dict[str, Any]:
    """What belongs to one part, by the names that it has there."""
    return {name.removeprefix(part + ":"): value for name, value in values.items() if name.startswith(part + ":")}


def n_envs_of(state: TrainingState) -> int:
    """Number of environments, 0 if nothing in the state has that axis."""
    batched = [leaf for leaf in jax.tree.leaves((state.network_states, state.env_states)) if np.ndim(leaf)]
    return int(batched[0].shape[0]) if batched else 0


def random_settings() -> dict[str, Any]:
    """Settings of JAX on which the numbers that a seed gives depend."""
    names = ("jax_enable_x64", "jax_default_prng_impl", "jax_threefry_partitionable")
    return {name: getattr(jax.config, name) for name in names}
