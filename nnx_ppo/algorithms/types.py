"""Shared data types of the algorithms: logging levels, what a rollout stores, what a training run holds."""

import enum
from typing import Any

from flax import nnx

from nnx_ppo._pytree import PyTreeNode
from nnx_ppo.envs.types import EnvState as EnvState
from nnx_ppo.envs.types import RLEnv as RLEnv
from nnx_ppo.networks.types import PPONetworkOutput


class LoggingLevel(enum.Flag):
    """Families of metrics; combine with ``|``. What each emits is listed on the "Metrics" page of the docs."""

    NONE = 0
    LOSSES = enum.auto()
    CRITIC_EXTRA = enum.auto()
    ACTOR_EXTRA = enum.auto()
    ROLLOUT_STATS = enum.auto()
    ROLLOUT_OBS = enum.auto()
    ENV_METRICS = enum.auto()
    NETWORK_METRICS = enum.auto()
    GRAD_NORM = enum.auto()
    WEIGHTS = enum.auto()
    THROUGHPUT = enum.auto()
    DIAGNOSTICS = enum.auto()
    BASIC = LOSSES
    ALL = (
        LOSSES | CRITIC_EXTRA | ACTOR_EXTRA | ROLLOUT_STATS | ENV_METRICS | NETWORK_METRICS
        | GRAD_NORM | WEIGHTS | THROUGHPUT
    )  # fmt: skip


class Transition(PyTreeNode):
    """One rollout, every leaf ``[T, N, ...]``: what the environments showed, what the network did, what came of it.

    Attributes:
        obs: observation that the action answers.
        network_output: the network's :class:`~nnx_ppo.networks.types.PPONetworkOutput` at the rollout's parameters.
        rewards: float, or (nested) dict of them.
        done: bool: the episode ended with this step, by termination or truncation.
        truncated: bool: it ended by a time limit.
        next_obs: true observation after the step; at the end of an episode the final one, not the next one's first.
        metrics: ``{"net": what the modules reported, "env": the environment's metrics after the step}``, each a flat
            dict by ``/``-joined path.
        rollout_extras: the network's snapshots for exact replay.
        final_values: value of the true final observation (with the carry it had) where ``truncated``, else 0; per
            critic head.
    """

    obs: Any
    network_output: PPONetworkOutput
    rewards: Any
    done: Any
    truncated: Any
    next_obs: Any
    metrics: Any
    rollout_extras: Any = None
    final_values: Any = None


class TrainingState(PyTreeNode):
    """Everything a training run consists of between two iterations.

    Attributes:
        networks: the network, an ``nnx.Module``.
        network_states: its carry, leaves ``[N, ...]``.
        env_states: environment states, leaves ``[N, ...]``.
        optimizer: ``nnx.Optimizer`` over the network's ``nnx.Param`` variables.
        rng_key: PRNG key of the training loop.
        steps_taken: environment steps so far (all environments together), a Python int.
    """

    networks: nnx.Module
    network_states: Any
    env_states: Any
    optimizer: nnx.Optimizer
    rng_key: Any
    steps_taken: int
