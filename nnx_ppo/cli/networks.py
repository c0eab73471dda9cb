"""Networks by name: the built-in actor-critics sized to an environment, or a function of the user's."""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Annotated, Any, Literal

import jax.numpy as jnp
import tyro
from flax import nnx

from nnx_ppo.envs.types import RLEnv
from nnx_ppo.envs.vector import vectorize
from nnx_ppo.networks.factories import make_lstm_actor_critic, make_mlp_actor_critic
from nnx_ppo.networks.types import StatefulModule

BUILT_IN = ("mlp", "lstm")


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """Which network, and its sizes; input and output sizes follow from the environment."""

    kind: Annotated[str, tyro.conf.arg(aliases=["--network"])] = "mlp"
    """``mlp``, ``lstm``, or ``package.module:function``, called as ``function(env, rngs)``; the fields below are for
    the first two."""
    actor_hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of the actor's hidden layers."""
    critic_hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of the critic's hidden layers."""
    hidden_size: int = 64
    """Units of the LSTM, which actor and critic share."""
    activation: Literal["swish", "relu", "tanh"] = "swish"
    """Activation function of the hidden layers."""
    normalize_obs: bool = True
    """Bring observations to mean 0 and standard deviation 1 by running statistics."""
    entropy_weight: float = 1e-2
    """Weight of the entropy bonus, per nat."""

    def __post_init__(self) -> None:
        if self.kind not in BUILT_IN and ":" not in self.kind:
            raise ValueError(
                f"network kind must be one of {', '.join(BUILT_IN)} or package.module:function, got {self.kind!r}."
            )
        sizes = (*self.actor_hidden_sizes, *self.critic_hidden_sizes, self.hidden_size)
        if any(size < 1 for size in sizes):
            raise ValueError(f"network sizes must be at least 1, got {sizes}.")


def build_network(config: NetworkConfig, env: RLEnv, seed: int) -> StatefulModule:
    """Make the network that ``config`` describes, sized to ``env``.

    Args:
        config: which network.
        env: an environment; its ``observation_size`` and ``action_size`` are read.
        seed: seed of the parameters and of exploration.

    Raises:
        ValueError: a user's function cannot be imported or does not return a :class:`StatefulModule`; the environment's
            action or reward is a dict, for which there is no built-in network.
    """
    rngs = nnx.Rngs(seed)
    if config.kind not in BUILT_IN:
        return _call_users_function(config.kind, env, rngs)
    shared: dict[str, Any] = {
        "activation": config.activation,
        "normalize_obs": config.normalize_obs,
        "entropy_weight": config.entropy_weight,
        "discrete_actions": _has_discrete_actions(env),
    }
    sizes = (env.observation_size, env.action_size)
    heads = (config.actor_hidden_sizes, config.critic_hidden_sizes, rngs)
    if config.kind == "lstm":
        return make_lstm_actor_critic(*sizes, config.hidden_size, *heads, **shared)
    return make_mlp_actor_critic(*sizes, *heads, **shared)


def _has_discrete_actions(env: RLEnv) -> bool:
    action, reward = vectorize(env).spec().action, vectorize(env).spec().reward
    for what, tree in (("action", action), ("reward", reward)):
        if not hasattr(tree, "dtype"):
            raise ValueError(
                f"the built-in networks have one {what} head, and this environment's {what} is a dict with "
                f"{sorted(tree)}: make a network for it and give --network package.module:function."
            )
    return jnp.issubdtype(action.dtype, jnp.integer)


def _call_users_function(name: str, env: RLEnv, rngs: nnx.Rngs) -> StatefulModule:
    network = import_function(name)(env, rngs)
    if not isinstance(network, StatefulModule):
        raise ValueError(f"{name}(env, rngs) must return a StatefulModule, got {type(network).__name__}.")
    return network


def import_function(name: str) -> Callable[..., Any]:
    """Import ``package.module:function``.

    Raises:
        ValueError: naming the module or the function that is not there.
    """
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{name}: no module {error.name!r}; run from the folder that holds it, or put that folder on PYTHONPATH."
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        there = sorted(n for n, v in vars(module).items() if callable(v) and not n.startswith("_"))
        raise ValueError(
            f"{name}: {module_name} has no function {function_name!r}; it has {', '.join(there) or 'none'}."
        )
    return function
