"""MuJoCo Playground environments, with the time limit that their own configuration asks for."""

import contextlib
import io
from typing import Any, NamedTuple

import jax

from nnx_ppo.envs.errors import UnknownEnvError, did_you_mean, import_extra
from nnx_ppo.envs.foreign import ForeignEnv
from nnx_ppo.envs.time_limit import EpisodeWrapper


def make_playground(name: str, **config_overrides: Any) -> EpisodeWrapper:
    """Make a MuJoCo Playground environment that ends by its time limit.

    Args:
        name: registered name such as ``"CartpoleBalance"``.
        **config_overrides: entries of the environment's configuration (nested ones as ``**{"a.b": value}``), such as
            ``episode_length`` in steps. On a CPU ``impl`` is ``"jax"`` unless it is given: the Warp implementation
            needs an NVIDIA GPU.

    Returns:
        The environment; the library's own is ``.unwrapped``.

    Raises:
        MissingExtraError: playground is not installed.
        UnknownEnvError: no environment of this name.
        ValueError: an override names no entry of the configuration, or has the wrong type for it.
    """
    registry = import_extra("mujoco_playground", "playground").registry
    known = playground_names()
    if name not in known:
        raise UnknownEnvError(f"playground has no environment {name!r}. {did_you_mean(name, known)}")
    config = registry.get_default_config(name)
    if "impl" in config and jax.default_backend() == "cpu":
        config_overrides = {"impl": "jax", **config_overrides}
    _refuse_unknown(name, config, config_overrides)
    try:
        config.update_from_flattened_dict(config_overrides)
    except TypeError as error:
        raise ValueError(f"{name}: a configuration entry has the wrong type: {error}") from error
    return EpisodeWrapper(PlaygroundEnv(registry.load(name, config=config)), max_len=int(config.episode_length))


class PlaygroundEnv(ForeignEnv):
    """A Playground environment that says what drawing it needs: a whole state is hundreds of times as large."""

    def render_state(self, state: Any) -> Any:
        """Return what ``render`` reads of ``state``; all of it where the environment has a ``render`` of its own."""
        general = import_extra("mujoco_playground", "playground").MjxEnv
        if type(self.unwrapped).render is not general.render:
            return state
        return Pose(PoseData(*(getattr(state.data, name) for name in PoseData._fields)))

    def render(self, trajectory: Any, **kwargs: Any) -> Any:
        """Draw a list of states; without Playground's progress bar, which would run across ours."""
        with contextlib.redirect_stderr(io.StringIO()):
            return self.unwrapped.render(trajectory, **kwargs)


class PoseData(NamedTuple):
    """What MuJoCo needs to place everything."""

    qpos: Any
    qvel: Any
    mocap_pos: Any
    mocap_quat: Any
    xfrc_applied: Any


class Pose(NamedTuple):
    """Stands for a state while a film is drawn."""

    data: PoseData


def playground_names() -> list[str]:
    """Return the registered names.

    Raises:
        MissingExtraError: playground is not installed.
    """
    return list(import_extra("mujoco_playground", "playground").registry.ALL_ENVS)


def _refuse_unknown(name: str, config: Any, overrides: dict[str, Any]) -> None:
    known = _flat_keys(config)
    for key in overrides:
        if key not in known:
            raise ValueError(f"{name} has no configuration entry {key!r}. {did_you_mean(key, known)}")


def _flat_keys(config: Any, prefix: str = "") -> list[str]:
    keys = []
    for key, value in config.items():
        keys.append(prefix + key)
        if hasattr(value, "items"):
            keys += _flat_keys(value, f"{prefix}{key}.")
    return keys
