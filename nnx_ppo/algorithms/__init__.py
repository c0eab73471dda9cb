"""PPO for stateful networks: configuration, rollouts, training, evaluation, recording rollouts."""

from nnx_ppo.algorithms.config import EvalConfig as EvalConfig
from nnx_ppo.algorithms.config import PPOConfig as PPOConfig
from nnx_ppo.algorithms.config import TrainConfig as TrainConfig
from nnx_ppo.algorithms.config import TrainResult as TrainResult
from nnx_ppo.algorithms.config import VideoConfig as VideoConfig
from nnx_ppo.algorithms.config import VideoData as VideoData
from nnx_ppo.algorithms.fit import FitError as FitError
from nnx_ppo.algorithms.fit import check_fit as check_fit
from nnx_ppo.algorithms.ppo import gae as gae
from nnx_ppo.algorithms.ppo import new_training_state as new_training_state
from nnx_ppo.algorithms.ppo import ppo_step as ppo_step
from nnx_ppo.algorithms.ppo import train_ppo as train_ppo
from nnx_ppo.algorithms.rollout import eval_rollout as eval_rollout
from nnx_ppo.algorithms.rollout import record_activations_rollout as record_activations_rollout
from nnx_ppo.algorithms.rollout import unroll_env as unroll_env
from nnx_ppo.algorithms.types import EnvState as EnvState
from nnx_ppo.algorithms.types import LoggingLevel as LoggingLevel
from nnx_ppo.algorithms.types import RLEnv as RLEnv
from nnx_ppo.algorithms.types import TrainingState as TrainingState
from nnx_ppo.algorithms.types import Transition as Transition

__all__ = [
    "EnvState",
    "EvalConfig",
    "FitError",
    "LoggingLevel",
    "PPOConfig",
    "RLEnv",
    "TrainConfig",
    "TrainResult",
    "TrainingState",
    "Transition",
    "VideoConfig",
    "VideoData",
    "check_fit",
    "eval_rollout",
    "gae",
    "new_training_state",
    "ppo_step",
    "record_activations_rollout",
    "train_ppo",
    "unroll_env",
]
