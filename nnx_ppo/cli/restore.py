"""Environment and trained policy of a run, rebuilt from its folder alone."""

import os
import pathlib
from typing import NamedTuple

from nnx_ppo.algorithms.checkpoint_files import CheckpointError, steps_of
from nnx_ppo.algorithms.restoring import load_networks
from nnx_ppo.cli.networks import build_network
from nnx_ppo.cli.resume import newest
from nnx_ppo.cli.run_config import RunConfig
from nnx_ppo.cli.run_description import load_policy_networks
from nnx_ppo.cli.run_folder import RunFolder, RunFolderError
from nnx_ppo.envs import make_env
from nnx_ppo.envs.types import RLEnv
from nnx_ppo.networks.types import StatefulModule


class Restored(NamedTuple):
    """A run, rebuilt from its folder.

    Attributes:
        folder: of the run.
        config: of the run.
        env: a new environment.
        network: the network, with the variables of the checkpoint.
        checkpoint: folder of the checkpoint.
    """

    folder: RunFolder
    config: RunConfig
    env: RLEnv
    network: StatefulModule
    checkpoint: pathlib.Path


def restore_run(path: str | os.PathLike[str]) -> tuple[RunFolder, RunConfig, RLEnv, StatefulModule]:
    """Return the folder, its configuration, a new environment and the network of the newest checkpoint.

    Raises:
        RunFolderError: there is no run, or no checkpoint in it.
        CheckpointError: the saved variables do not fit the network that the configuration describes.
    """
    return restore_checkpoint(path)[:4]


def restore_checkpoint(path: str | os.PathLike[str], checkpoint: pathlib.Path | None = None) -> Restored:
    """Return what :func:`restore_run` does, and which checkpoint it is.

    Args:
        path: run folder.
        checkpoint: one of its checkpoints; ``None`` for the newest that is not damaged.

    Raises:
        RunFolderError: there is no run, or no checkpoint in it.
        CheckpointError: the saved variables do not fit the network that the configuration describes.
    """
    folder = RunFolder.open(path)
    config = folder.config()
    env = make_env(config.env, **config.env_args)
    network = build_network(config.network, env, config.train.seed)
    if checkpoint is None:
        checkpoint = _load_newest(folder.checkpoints, network, config)
    else:
        load_policy_networks(checkpoint, network, config)
    return Restored(folder, config, env, network, checkpoint)


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
    if not path.exists():
        raise CheckpointError(f"there is no folder {path}.")
    if path.is_file():
        raise CheckpointError(f"{path} is a file, and a run and a checkpoint are folders: name {_folder_of(path)}.")
    run = next((p for p in (path, path.parent, path.parent.parent) if (p / "config.json").is_file()), None)
    config = None
    if networks is None:
        if run is None:
            raise CheckpointError(
                f"{path} does not say how its network is made: only a run folder of nnx-ppo train does. Make the "
                "network as it was made for training, and pass it as networks=."
            )
        config = RunFolder.open(run).config()
        networks = build_network(config.network, make_env(config.env, **config.env_args), config.train.seed)
    if steps_of(path) is not None:
        _load(path, networks, config)
    else:
        _load_newest(path / "checkpoints" if path == run else path, networks, config)
    networks.eval()
    return networks


def _folder_of(file: pathlib.Path) -> pathlib.Path:
    """The checkpoint or else the run that a file lies in, or else its folder."""
    folders = file.parents
    checkpoint = next((p for p in folders if steps_of(p) is not None), None)
    return checkpoint or next((p for p in folders if (p / "config.json").is_file()), folders[0])


def _load(path: pathlib.Path, network: StatefulModule, config: RunConfig | None) -> None:
    if config is None:
        load_networks(path, network)
    else:
        load_policy_networks(path, network, config)


def _load_newest(directory: pathlib.Path, network: StatefulModule, config: RunConfig | None) -> pathlib.Path:
    def load(path: pathlib.Path) -> pathlib.Path:
        _load(path, network, config)
        return path

    loaded = newest(directory, load)
    if loaded is None:
        raise RunFolderError(f"{directory} holds no checkpoint: the training ended before the first one was due.")
    return loaded
