"""How environment and network of a checkpoint were made, and what of that ``config.json`` says otherwise now."""

import contextlib
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from nnx_ppo.algorithms.checkpoint_files import CheckpointError, DamagedCheckpointError, read_about
from nnx_ppo.algorithms.config_json import config_to_json, converter
from nnx_ppo.algorithms.restoring import load_networks
from nnx_ppo.cli.console import stderr
from nnx_ppo.cli.run_config import RunConfig
from nnx_ppo.networks.types import StatefulModule

POLICY = ("env", "env_args", "network")
"""Fields of a run that decide what its policy is and where it acts."""
TRAINING = (*POLICY, "reward_scale", "train_episode_length", "anneal_learning_rate")
"""Fields that training depends on, beside its own configuration."""


def describe_run(config: RunConfig) -> dict[str, Any]:
    """What a checkpoint keeps of a run, as values that JSON can hold."""
    data = converter().unstructure(config)
    return config_to_json({name: data[name] for name in TRAINING})


def changed_fields(saved: Any, config: RunConfig, names: tuple[str, ...] = TRAINING) -> list[str]:
    """Name the fields that are not as they were: ``"network.hidden_size was 64, is 32"``.

    Args:
        saved: what :func:`describe_run` returned then; checkpoints of before there was any hold ``None``.
        config: of the run now.
        names: fields to look at.
    """
    if not isinstance(saved, Mapping):
        return []
    was, now = _flat(saved, names), _flat(describe_run(config), names)
    return [f"{name} was {was[name]!r}, is {now[name]!r}" for name in was if name in now and was[name] != now[name]]


def load_policy_networks(path: pathlib.Path, network: StatefulModule, config: RunConfig) -> None:
    """Set the network from a checkpoint, and say what has changed in ``config.json`` since that was saved.

    Raises:
        CheckpointError: as :func:`~nnx_ppo.algorithms.restoring.load_networks`; a note names what has changed.
    """
    with naming_changes(path, config):
        load_networks(path, network)
    if changed := changed_fields(read_about(path).get("description"), config, POLICY):
        stderr.print(
            f"config.json is not what {path.name} was made with: {'; '.join(changed)}. The saved parameters act in "
            "what config.json describes.",
            style="yellow",
            soft_wrap=True,
        )


@contextlib.contextmanager
def naming_changes(path: pathlib.Path, config: RunConfig) -> Iterator[None]:
    """Add to the error of a checkpoint that does not fit what has changed in ``config.json`` since it was saved."""
    try:
        yield
    except DamagedCheckpointError:
        raise
    except CheckpointError as error:
        with contextlib.suppress(CheckpointError):
            if changed := changed_fields(read_about(path).get("description"), config, POLICY):
                error.add_note(f"config.json has changed since: {'; '.join(changed)}.")
        raise


def _flat(description: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """One entry per field; those of a part of the configuration under ``part.field``."""
    flat: dict[str, Any] = {}
    for name in names:
        value = description.get(name)
        if name == "network" and isinstance(value, Mapping):
            flat |= {f"network.{field}": entry for field, entry in value.items()}
        elif name in description:
            flat[name] = value
    return flat
