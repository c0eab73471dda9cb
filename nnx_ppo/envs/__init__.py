"""Environments: the protocol, its check, batches of them, adapters, names, and probes with known answers."""

from nnx_ppo.envs.brax import BraxEnv as BraxEnv
from nnx_ppo.envs.check import EnvSpec as EnvSpec
from nnx_ppo.envs.check import EnvSpecError as EnvSpecError
from nnx_ppo.envs.check import check_env as check_env
from nnx_ppo.envs.errors import MissingExtraError as MissingExtraError
from nnx_ppo.envs.errors import UnknownEnvError as UnknownEnvError
from nnx_ppo.envs.gymnax import GymnaxEnv as GymnaxEnv
from nnx_ppo.envs.playground import make_playground as make_playground
from nnx_ppo.envs.probes import ActionReward as ActionReward
from nnx_ppo.envs.probes import ConstantReward as ConstantReward
from nnx_ppo.envs.probes import CountingEnv as CountingEnv
from nnx_ppo.envs.probes import DelayedReward as DelayedReward
from nnx_ppo.envs.probes import DiscreteActionReward as DiscreteActionReward
from nnx_ppo.envs.probes import MemoryCue as MemoryCue
from nnx_ppo.envs.probes import ObservationReward as ObservationReward
from nnx_ppo.envs.probes import RepeatPrevious as RepeatPrevious
from nnx_ppo.envs.probes import TreeEnv as TreeEnv
from nnx_ppo.envs.registry import list_envs as list_envs
from nnx_ppo.envs.registry import make_env as make_env
from nnx_ppo.envs.types import EnvState as EnvState
from nnx_ppo.envs.types import RLEnv as RLEnv
from nnx_ppo.envs.vector import Reading as Reading
from nnx_ppo.envs.vector import VectorEnv as VectorEnv
from nnx_ppo.envs.vector import vectorize as vectorize

__all__ = [
    "ActionReward",
    "BraxEnv",
    "ConstantReward",
    "CountingEnv",
    "DelayedReward",
    "DiscreteActionReward",
    "EnvSpec",
    "EnvSpecError",
    "EnvState",
    "GymnaxEnv",
    "MemoryCue",
    "MissingExtraError",
    "ObservationReward",
    "RLEnv",
    "Reading",
    "RepeatPrevious",
    "TreeEnv",
    "UnknownEnvError",
    "VectorEnv",
    "check_env",
    "list_envs",
    "make_env",
    "make_playground",
    "vectorize",
]
