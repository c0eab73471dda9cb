"""Base of the wrappers; defined beside the environments, since their adapters build on it too."""

from nnx_ppo.envs.wrapper import Wrapper as Wrapper

__all__ = ["Wrapper"]
