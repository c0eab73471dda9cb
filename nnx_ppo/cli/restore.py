"""Environment and trained policy of a run, rebuilt from its folder alone."""

import os

from nnx_ppo.cli.networks import build_network
from nnx_ppo.cli.run_config import RunConfig
from nnx_ppo.cli.run_folder import RunFolder
from nnx_ppo.envs import make_env
from nnx_ppo.envs.types import RLEnv
from nnx_ppo.networks.types import StatefulModule


def restore_run(path: str | os.PathLike[str]) -> tuple[RunFolder, RunConfig, RLEnv, StatefulModule]:
    """Return the folder, its configuration, a new environment and the trained network.

    Raises:
        RunFolderError: there is no run, or no policy in it.
        ValueError: the saved variables do not fit the network that the configuration describes.
    """
    folder = RunFolder.open(path)
    config = folder.config()
    env = make_env(config.env, **config.env_args)
    network = build_network(config.network, env, config.train.seed)
    folder.load_policy(network)
    return folder, config, env, network
