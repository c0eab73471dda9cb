"""Base of the wrappers: an environment around another one, which finds its own state again at every step."""

from collections.abc import Mapping
from typing import Any

import jax

from nnx_ppo.envs.tracing import traced


class Wrapper:
    """Forwards everything to the environment inside; subclasses change what they are for.

    Attributes:
        env: the environment inside.
    """

    def __init__(self, env: Any):
        self.env = env

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.env!r})"

    # As properties, since isinstance(env, RLEnv) looks at the class alone.
    @property
    def observation_size(self) -> Any:
        """Size of the observation, or a dict of them."""
        return self.env.observation_size

    @property
    def action_size(self) -> Any:
        """Size of the action, or a dict of them."""
        return self.env.action_size

    @property
    def unwrapped(self) -> Any:
        """The innermost environment."""
        return getattr(self.env, "unwrapped", self.env)

    def reset(self, key: jax.Array, /) -> Any:
        """Return the initial state of training."""
        return traced(self.env).reset(key)

    def reset_episode(self, key: jax.Array, /) -> Any:
        """Return a state at the first step of an episode."""
        return traced(self.env).reset_episode(key)

    def step(self, state: Any, action: Any, /) -> Any:
        """Return the state after ``action``."""
        return traced(self.env).step(copy_tree(state), action)

    def __getattr__(self, name: str) -> Any:
        # Copying and unpickling ask a blank instance, which has no environment to ask yet.
        if name == "env" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.env, name)


def copy_tree(tree: Any) -> Any:
    """Return ``tree`` with new containers around the same leaves: some environments write into the dicts they get."""
    return jax.tree.map(lambda leaf: leaf, tree)


def cover(state: Any, key: str, note: Mapping[str, Any], info: Mapping[str, Any], **fields: Any) -> Any:
    """Return ``state`` with other values on top of it, keeping what they cover.

    Args:
        state: state of the environment inside.
        key: the wrapper's entry in ``info``.
        note: what the wrapper itself has to remember; stands in ``state.info[key]``.
        info: entries of ``info`` to cover or add.
        **fields: fields of the state to cover.
    """
    covered = {
        "fields": {name: getattr(state, name) for name in fields},
        "info": {name: state.info[name] for name in (key, *info) if name in state.info},
    }
    return state.replace(**fields, info={**state.info, **info, key: {**note, "covered": covered}})


def uncover(state: Any, key: str, info: tuple[str, ...] = ()) -> Any:
    """Return the state that :func:`cover` was given; ``info`` names the entries that it covered or added.

    Raises:
        ValueError: ``state`` does not come from this wrapper.
    """
    if key not in state.info:
        raise ValueError(
            f"expected a state made by this wrapper's reset or step, with info[{key!r}]; got one with info entries "
            f"{sorted(state.info)}: reset the wrapped environment, not the one inside"
        )
    covered = state.info[key]["covered"]
    rest = {name: value for name, value in state.info.items() if name not in (key, *info)}
    return copy_tree(state.replace(**covered["fields"], info={**rest, **covered["info"]}))
