"""Networks by name: the built-in actor-critics sized to an environment, or a function of the user's."""

import dataclasses
from typing import Annotated, Any, Literal

import jax.numpy as jnp
import tyro
from flax import nnx

from nnx_ppo._signatures import require_call
from nnx_ppo.envs.importing import import_function
from nnx_ppo.envs.types import RLEnv
from nnx_ppo.envs.vector import vectorize
from nnx_ppo.networks.factories import make_lstm_actor_critic, make_mlp_actor_critic
from nnx_ppo.networks.types import StatefulModule

BUILT_IN = ("mlp", "lstm")


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """Which network, and its sizes; input and output sizes follow from the environment."""

    kind: Annotated[str, tyro.conf.arg(aliases=["--network"], metavar="mlp|lstm|MODULE:FUNCTION")] = "mlp"
    """A built-in network, or a function of yours, package.module:function, called as function(env, rngs); the fields
    below are for the first two."""
    actor_hidden_sizes: Annotated[tuple[int, ...], tyro.conf.arg(metavar="INT ...")] = (64, 64)
    """Units of each hidden layer of the actor."""
    critic_hidden_sizes: Annotated[tuple[int, ...], tyro.conf.arg(metavar="INT ...")] = (64, 64)
    """Units of each hidden layer of the critic."""
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


def unused_fields(config: NetworkConfig) -> list[str]:
    """Names of the fields that do nothing for a network of this kind."""
    fields = [field.name for field in dataclasses.fields(config) if field.name != "kind"]
    if config.kind not in BUILT_IN:
        return fields
    return [name for name in fields if name == "hidden_size" and config.kind != "lstm"]


def require_used(config: NetworkConfig) -> None:
    """Refuse options that would be ignored.

    Raises:
        ValueError: naming them.
    """
    defaults = NetworkConfig()
    given = [name for name in unused_fields(config) if getattr(config, name) != getattr(defaults, name)]
    if given:
        options = ", ".join(f"--network.{name.replace('_', '-')}" for name in given)
        raise ValueError(
            f"{options} would do nothing for --network {config.kind}: leave it out, or choose another network."
        )


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
    make = import_function(name)
    require_call(name, make, "env", "rngs")
    network = make(env, rngs)
    if not isinstance(network, StatefulModule):
        raise ValueError(f"{name}(env, rngs) must return a StatefulModule, got {type(network).__name__}.")
    return network
