"""PPO for stateful networks in JAX and Flax NNX, and the recording of their activations."""

from nnx_ppo.algorithms import EvalConfig as EvalConfig
from nnx_ppo.algorithms import LoggingLevel as LoggingLevel
from nnx_ppo.algorithms import NonFiniteError as NonFiniteError
from nnx_ppo.algorithms import PPOConfig as PPOConfig
from nnx_ppo.algorithms import TrainConfig as TrainConfig
from nnx_ppo.algorithms import TrainResult as TrainResult
from nnx_ppo.algorithms import VideoConfig as VideoConfig
from nnx_ppo.algorithms import eval_rollout as eval_rollout
from nnx_ppo.algorithms import record_activations_rollout as record_activations_rollout
from nnx_ppo.algorithms import train_ppo as train_ppo
from nnx_ppo.envs import make_env as make_env
from nnx_ppo.networks import describe as describe
from nnx_ppo.networks import extract_activations as extract_activations
from nnx_ppo.networks import make_lstm_actor_critic as make_lstm_actor_critic
from nnx_ppo.networks import make_mlp_actor_critic as make_mlp_actor_critic
from nnx_ppo.networks import with_recording as with_recording

__all__ = [
    "EvalConfig",
    "LoggingLevel",
    "NonFiniteError",
    "PPOConfig",
    "TrainConfig",
    "TrainResult",
    "VideoConfig",
    "describe",
    "eval_rollout",
    "extract_activations",
    "make_env",
    "make_lstm_actor_critic",
    "make_mlp_actor_critic",
    "record_activations_rollout",
    "train_ppo",
    "with_recording",
]
