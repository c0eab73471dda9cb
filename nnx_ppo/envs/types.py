"""The environment protocol: what the library reads of an environment and of its state, with shapes and dtypes."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import jax

from nnx_ppo._pytree import PyTreeNode


class EnvState(PyTreeNode):
    """State of one environment between two steps (any frozen dataclass with these fields and ``.replace`` will do).

    Attributes:
        obs: observation, an array or a (nested) dict of arrays.
        reward: reward of the step that led here, a scalar or a (nested) dict of scalars.
        done: scalar, bool or number: the episode is over, by termination or by a time limit.
        info: dict. ``info["truncated"]`` (scalar, bool or number), where present, marks a time-limit cut: ``done``
            without a terminal state.
        metrics: dict of arrays to log.
        data: whatever else the environment keeps.
    """

    obs: Any
    reward: Any
    done: Any
    info: dict[str, Any]
    metrics: dict[Any, Any]
    data: Any = None


def truncation_flag(info: Mapping[str, Any]) -> Any:
    """Return the time-limit flag of ``info``, ``None`` where it has none.

    The protocol's name is ``"truncated"``; Brax's own wrappers write ``"truncation"``.
    """
    return info.get("truncated", info.get("truncation"))


@runtime_checkable
class RLEnv(Protocol):
    """A single environment after the MuJoCo Playground protocol; the library maps it over a batch.

    Both methods are pure functions of their arguments. ``reset`` and ``step`` return states of one structure, with
    one shape and dtype per leaf. An environment may also define

    - ``action_spec``: tree of ``jax.ShapeDtypeStruct``, for actions that are not float32 ``[action_size]``;
    - ``reset_episode(key)``: like ``reset``, but always at the first step of an episode (see ``EpisodeWrapper``);
    - ``render(trajectory, **kwargs)``: list of states to list of frames;
    - ``render_state(state)``: the part of a state that ``render`` needs, a tree with the same attributes. A film then
      keeps these instead of whole states.
    """

    observation_size: Any
    action_size: Any

    def reset(self, key: jax.Array, /) -> Any: ...

    def step(self, state: Any, action: Any, /) -> Any: ...
