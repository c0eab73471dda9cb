"""Whether a network fits an environment: found out from shapes alone, before anything compiles."""

from typing import Any

import jax
from flax import nnx

from nnx_ppo.algorithms.config import PPOConfig
from nnx_ppo.algorithms.types import RLEnv
from nnx_ppo.envs.vector import vectorize
from nnx_ppo.networks.types import PPONetworkOutput, StatefulModule


class FitError(ValueError):
    """The network's input, action, value or reward structure does not match the environment's."""


def check_fit(env: RLEnv, networks: nnx.Module, config: PPOConfig) -> None:
    """Check observations, actions, log-likelihoods, values and rewards against each other.

    Args:
        env: a single environment.
        networks: the network; neither its variables nor its random streams change.
        config: decides how advantages reach the action heads.

    Raises:
        FitError: what was expected, what came, and what to do.
    """
    if not isinstance(networks, StatefulModule):
        raise FitError(
            f"networks must be a StatefulModule, got {type(networks).__name__}; see make_mlp_actor_critic for one that "
            "PPO can train."
        )
    venv = vectorize(env)
    default = venv.spec()
    output = _network_output(networks, default.obs)
    if not isinstance(output, PPONetworkOutput):
        raise FitError(
            f"The network must return actions, log-likelihoods and values (a PPONetworkOutput), got "
            f"{type(output).__name__}. Let it end in a PPOAdapter(action=..., value=...)."
        )
    _check_batch("log-likelihood", output.loglikelihoods)
    _check_batch("value estimate", output.value_estimates)
    actions = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), output.actions)
    _check_actions(default.action, actions)
    _check_heads(venv.spec(actions).reward, output, config.combine_advantages)


def _network_output(networks: StatefulModule, obs: Any) -> Any:
    graphdef, variables = nnx.split(networks)

    def once(variables: Any, obs: Any) -> Any:
        here = nnx.merge(graphdef, variables, copy=True)
        return here(here.initialize_state(_B), obs).output

    batched = jax.tree.map(lambda x: jax.ShapeDtypeStruct((_B, *x.shape), x.dtype), obs)
    try:
        return jax.eval_shape(once, variables, batched)
    except Exception as error:
        raise FitError(
            f"The network does not accept the environment's observation, {describe_spec(obs)} per environment: {error}"
        ) from error


_B = 3
"""Batch size of the check: not 1, which would hide a lost batch axis."""


def _check_batch(what: str, tree: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if leaf.shape != (_B,):
            raise FitError(
                f"The network's {what}{jax.tree_util.keystr(path)} must be one number per environment, shape [B]; with "
                f"B = {_B} it has shape {list(leaf.shape)}."
            )


def _check_actions(expected: Any, actions: Any) -> None:
    if jax.tree.structure(expected) == jax.tree.structure(actions) and all(
        want.shape == got.shape for want, got in zip(jax.tree.leaves(expected), jax.tree.leaves(actions), strict=True)
    ):
        return
    raise FitError(
        f"The environment takes actions {describe_spec(expected)}, the network gives {describe_spec(actions)}. "
        "Set the network's action size to env.action_size."
    )


def _check_heads(reward: Any, output: PPONetworkOutput, combine_advantages: bool) -> None:
    rewards, values = jax.tree.structure(reward), jax.tree.structure(output.value_estimates)
    if rewards != values:
        raise FitError(
            f"The environment gives rewards {describe_keys(reward)}, the network values "
            f"{describe_keys(output.value_estimates)}: each reward needs a critic head of the same name. Give the "
            "value port of the PPOAdapter one output per reward key (Parallel(...)), or one output for a single reward."
        )
    heads = jax.tree.structure(output.loglikelihoods)
    if heads != rewards and rewards.num_leaves > 1 and not combine_advantages:
        raise FitError(
            f"The environment gives rewards {describe_keys(reward)}, the network has action heads "
            f"{describe_keys(output.loglikelihoods)}: with combine_advantages=False each head is trained on the "
            "reward of its own name. Set combine_advantages=True to train every head on the sum of all rewards."
        )


def describe_spec(tree: Any) -> str:
    """Shapes and dtypes of a tree in one line, ``{'camera': float32[8, 8]}``."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key!r}: {describe_spec(value)}" for key, value in tree.items()) + "}"
    return f"{tree.dtype}{list(tree.shape)}" if hasattr(tree, "shape") else type(tree).__name__


def describe_keys(tree: Any) -> str:
    """Names of a tree's leaves in one line."""
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    return "(a single one)" if names == [""] else "{" + ", ".join(names) + "}"
