"""Environment and trained policy of a run, rebuilt from its folder alone."""

import os
import pathlib

from nnx_ppo.algorithms.checkpoint_files import CheckpointError, steps_of
from nnx_ppo.algorithms.restoring import load_networks
from nnx_ppo.cli.networks import build_network
from nnx_ppo.cli.resume import newest
from nnx_ppo.cli.run_config import RunConfig
from nnx_ppo.cli.run_folder import RunFolder, RunFolderError
from nnx_ppo.envs import make_env
from nnx_ppo.envs.types import RLEnv
from nnx_ppo.networks.types import StatefulModule


def restore_run(path: str | os.PathLike[str]) -> tuple[RunFolder, RunConfig, RLEnv, StatefulModule]:
    """Return the folder, its configuration, a new environment and the network of the newest checkpoint.

    Raises:
        RunFolderError: there is no run, or no checkpoint in it.
        CheckpointError: the saved variables do not fit the network that the configuration describes.
    """
    folder = RunFolder.open(path)
    config = folder.config()
    env = make_env(config.env, **config.env_args)
    network = build_network(config.network, env, config.train.seed)
    _load_newest(folder.checkpoints, network)
    return folder, config, env, network


def load_policy(path: str | os.PathLike[str], networks: StatefulModule | None = None) -> StatefulModule:
    """Return a trained policy for inference, in ``eval()`` mode; nothing of the optimizer is loaded.

    Args:
        path: a run folder of ``nnx-ppo train``, one checkpoint in it, a folder that
            :func:`~nnx_ppo.algorithms.make_checkpoint_fn` filled, or one checkpoint in that. Of several checkpoints the
            newest is taken; one that is damaged is passed over.
        networks: network to fill, in place. A run folder says itself how its network is made; other checkpoints do not.

    Raises:
        CheckpointError: there is no checkpoint, or ``networks`` is missing or does not fit.
        RunFolderError: the configuration of the run cannot be read.
    """
    path = pathlib.Path(path)
    run = next((p for p in (path, path.parent, path.parent.parent) if (p / "config.json").is_file()), None)
    if networks is None:
        if run is None:
            raise CheckpointError(
                f"{path} does not say how its network is made: only a run folder of nnx-ppo train does. Make the "
                "network as it was made for training, and pass it as networks=."
            )
        config = RunFolder.open(run).config()
        networks = build_network(config.network, make_env(config.env, **config.env_args), config.train.seed)
    if steps_of(path) is not None:
        load_networks(path, networks)
    else:
        _load_newest(path / "checkpoints" if path == run else path, networks)
    networks.eval()
    return networks


def _load_newest(directory: pathlib.Path, network: StatefulModule) -> None:
    def load(path: pathlib.Path) -> bool:
        load_networks(path, network)
        return True

    if newest(directory, load) is None:
        raise RunFolderError(f"{directory} holds no checkpoint: the training ended before the first one was due.")
