"""Time limit for any environment; defined beside the environments, since their adapters need it too."""

from nnx_ppo.envs.time_limit import TIME_LIMIT_KEY as TIME_LIMIT_KEY
from nnx_ppo.envs.time_limit import EpisodeWrapper as EpisodeWrapper

__all__ = ["TIME_LIMIT_KEY", "EpisodeWrapper"]
