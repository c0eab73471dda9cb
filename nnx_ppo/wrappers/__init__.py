"""Environments around environments: pure, they never change the state they are given."""

from nnx_ppo.wrappers import episode_wrapper as episode_wrapper
from nnx_ppo.wrappers import reward_scaling_wrapper as reward_scaling_wrapper
from nnx_ppo.wrappers.base import Wrapper as Wrapper
from nnx_ppo.wrappers.episode_wrapper import EpisodeWrapper as EpisodeWrapper
from nnx_ppo.wrappers.reward_scaling_wrapper import RewardScalingWrapper as RewardScalingWrapper

__all__ = ["EpisodeWrapper", "RewardScalingWrapper", "Wrapper"]
