"""Whether a network fits an environment: found out from shapes alone, before anything compiles."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nnx_ppo.algorithms.config import PPOConfig
from nnx_ppo.algorithms.fit.contract import FitError
from nnx_ppo.algorithms.fit.memory import warn_of_memory
from nnx_ppo.algorithms.fit.text import describe_keys, describe_spec
from nnx_ppo.algorithms.fit.trial import try_network
from nnx_ppo.algorithms.types import RLEnv
from nnx_ppo.envs.vector import vectorize
from nnx_ppo.networks.types import PPONetworkOutput, StatefulModule


def check_fit(env: RLEnv, networks: nnx.Module, config: PPOConfig) -> None:
    """Check observations, actions, log-likelihoods, values and rewards against each other, and every module's contract.

    All that training does with the network is tried by shapes alone: nothing is computed or compiled.

    Args:
        env: a single environment.
        networks: the network; neither its variables nor its random streams change.
        config: decides how advantages reach the action heads, and how long a rollout is.

    Raises:
        FitError: what was expected, what came, and what to do; of a module, with its path and the line of its code.
        EnvSpecError: the environment does not keep the protocol.

    Warns:
        UserWarning: one rollout needs more memory than the device has.
    """
    if not isinstance(networks, StatefulModule):
        raise FitError(
            f"networks must be a StatefulModule, got {type(networks).__name__}; see make_mlp_actor_critic for one that "
            "PPO can train."
        )
    venv = vectorize(env)
    default = venv.spec()
    trial, n = try_network(networks, default.obs)
    output = trial.output
    if not isinstance(output, PPONetworkOutput):
        raise FitError(
            f"The network must return actions, log-likelihoods and values (a PPONetworkOutput), got "
            f"{type(output).__name__}. Let it end in a PPOAdapter(action=..., value=...)."
        )
    _check_batch("log-likelihood", output.loglikelihoods, n)
    _check_batch("value estimate", output.value_estimates, n)
    actions = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), output.actions)
    _check_actions(default.action, actions)
    spec = venv.spec(actions)
    _check_heads(spec.reward, output, config.combine_advantages)
    warn_of_memory(spec, trial, n, config)


def _check_batch(what: str, tree: Any, n: int) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if leaf.shape != (n,):
            raise FitError(
                f"The network's {what}{jax.tree_util.keystr(path)} must be one number per environment, shape [B]; with "
                f"B = {n} it has shape {list(leaf.shape)}."
            )


def _check_actions(expected: Any, actions: Any) -> None:
    if jax.tree.structure(expected) == jax.tree.structure(actions) and all(
        want.shape == got.shape for want, got in zip(jax.tree.leaves(expected), jax.tree.leaves(actions), strict=True)
    ):
        return
    discrete, given = (
        all(jnp.issubdtype(leaf.dtype, jnp.integer) for leaf in jax.tree.leaves(tree)) for tree in (expected, actions)
    )
    if discrete and not given:
        advice = "Sample from categories: discrete_actions=True of make_mlp_actor_critic, or CategoricalSampler."
    elif given and not discrete:
        advice = "Sample real numbers: discrete_actions=False of make_mlp_actor_critic, or NormalTanhSampler."
    else:
        advice = "Set the network's action size to env.action_size."
    raise FitError(
        f"The environment takes actions {describe_spec(expected)}, the network gives {describe_spec(actions)}. {advice}"
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
