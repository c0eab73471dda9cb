"""PPO for stateful networks: configuration, rollouts, training, evaluation, recording rollouts."""

from nnx_ppo.algorithms.callbacks import video_file_fn as video_file_fn
from nnx_ppo.algorithms.callbacks import wandb_video_fn as wandb_video_fn
from nnx_ppo.algorithms.checkpoint_files import CheckpointError as CheckpointError
from nnx_ppo.algorithms.checkpoint_files import DamagedCheckpointError as DamagedCheckpointError
from nnx_ppo.algorithms.checkpoint_loading import load_checkpoint as load_checkpoint
from nnx_ppo.algorithms.checkpointing import CheckpointWriter as CheckpointWriter
from nnx_ppo.algorithms.checkpointing import latest_checkpoint as latest_checkpoint
from nnx_ppo.algorithms.checkpointing import make_checkpoint_fn as make_checkpoint_fn
from nnx_ppo.algorithms.config import EvalConfig as EvalConfig
from nnx_ppo.algorithms.config import PPOConfig as PPOConfig
from nnx_ppo.algorithms.config import TrainConfig as TrainConfig
from nnx_ppo.algorithms.config import TrainResult as TrainResult
from nnx_ppo.algorithms.config import VideoConfig as VideoConfig
from nnx_ppo.algorithms.config import VideoData as VideoData
from nnx_ppo.algorithms.fit import FitError as FitError
from nnx_ppo.algorithms.fit import check_fit as check_fit
from nnx_ppo.algorithms.loggers import JsonLinesLogger as JsonLinesLogger
from nnx_ppo.algorithms.loggers import Logger as Logger
from nnx_ppo.algorithms.loggers import TableLogger as TableLogger
from nnx_ppo.algorithms.loggers import TensorBoardLogger as TensorBoardLogger
from nnx_ppo.algorithms.loggers import WandbLogger as WandbLogger
from nnx_ppo.algorithms.loggers import log_to as log_to
from nnx_ppo.algorithms.loggers import read_metrics as read_metrics
from nnx_ppo.algorithms.nonfinite import NonFiniteError as NonFiniteError
from nnx_ppo.algorithms.ppo import gae as gae
from nnx_ppo.algorithms.ppo import new_training_state as new_training_state
from nnx_ppo.algorithms.ppo import ppo_step as ppo_step
from nnx_ppo.algorithms.ppo import train_ppo as train_ppo
from nnx_ppo.algorithms.restoring import RestoreReport as RestoreReport
from nnx_ppo.algorithms.restoring import load_networks as load_networks
from nnx_ppo.algorithms.restoring import restore_networks as restore_networks
from nnx_ppo.algorithms.rollout import eval_rollout as eval_rollout
from nnx_ppo.algorithms.rollout import record_activations_rollout as record_activations_rollout
from nnx_ppo.algorithms.rollout import unroll_env as unroll_env
from nnx_ppo.algorithms.types import EnvState as EnvState
from nnx_ppo.algorithms.types import LoggingLevel as LoggingLevel
from nnx_ppo.algorithms.types import RLEnv as RLEnv
from nnx_ppo.algorithms.types import TrainingState as TrainingState
from nnx_ppo.algorithms.types import Transition as Transition

__all__ = [
    "CheckpointError",
    "CheckpointWriter",
    "DamagedCheckpointError",
    "EnvState",
    "EvalConfig",
    "FitError",
    "JsonLinesLogger",
    "Logger",
    "LoggingLevel",
    "NonFiniteError",
    "PPOConfig",
    "RLEnv",
    "RestoreReport",
    "TableLogger",
    "TensorBoardLogger",
    "TrainConfig",
    "TrainResult",
    "TrainingState",
    "Transition",
    "VideoConfig",
    "VideoData",
    "WandbLogger",
    "check_fit",
    "eval_rollout",
    "gae",
    "latest_checkpoint",
    "load_checkpoint",
    "load_networks",
    "log_to",
    "make_checkpoint_fn",
    "new_training_state",
    "ppo_step",
    "read_metrics",
    "record_activations_rollout",
    "restore_networks",
    "train_ppo",
    "unroll_env",
    "video_file_fn",
    "wandb_video_fn",
]
