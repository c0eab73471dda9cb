"""Brax environments, with a time limit in place of Brax's own wrappers."""

import warnings
from typing import Any

from nnx_ppo.envs.errors import UnknownEnvError, did_you_mean, import_extra
from nnx_ppo.envs.foreign import ForeignEnv, default_promotion
from nnx_ppo.envs.time_limit import EpisodeWrapper


class BraxEnv(EpisodeWrapper):
    """One Brax environment that ends by its own rules or after ``episode_length`` steps.

    Its authors no longer develop the simulators; for new work take MuJoCo Playground.

    Args:
        name: registered name such as ``"ant"``.
        episode_length: longest episode, in steps.
        **kwargs: arguments of the environment, such as ``backend="spring"``.

    Raises:
        MissingExtraError: brax is not installed.
        UnknownEnvError: no environment of this name.
        ValueError: an option that the environment does not take.
    """

    def __init__(self, name: str, episode_length: int = 1000, **kwargs: Any):
        known = brax_names()
        if name not in known:
            raise UnknownEnvError(f"brax has no environment {name!r}. {did_you_mean(name, known)}")
        # Brax reads MJX data in a way that MJX has since deprecated.
        env = ForeignEnv(_make(name, **kwargs), ignore_deprecation="Accessing `.*` directly from `Data`")
        super().__init__(env, max_len=episode_length)

    def render(self, trajectory: list[Any], **kwargs: Any) -> Any:
        """Return one frame per state of ``trajectory``; arguments as those of the environment's ``render``."""
        return self.unwrapped.render([state.pipeline_state for state in trajectory], **kwargs)


def brax_names() -> list[str]:
    """Return the registered names.

    Raises:
        MissingExtraError: brax is not installed.
    """
    return list(import_extra("brax.envs", "brax")._envs)


def _make(name: str, **kwargs: Any) -> Any:
    with warnings.catch_warnings(), default_promotion():
        # Said at every construction; the docstring of BraxEnv says it once.
        warnings.filterwarnings("ignore", message=".*not actively being maintained", category=UserWarning)
        try:
            return import_extra("brax.envs", "brax").get_environment(name, **kwargs)
        except TypeError as error:
            raise ValueError(f"brax:{name} does not take the options {kwargs}: {error}") from error
