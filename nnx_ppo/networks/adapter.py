"""PPOAdapter: the action port and the value port that make a network trainable by PPO."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from nnx_ppo.networks._checks import describe_input
from nnx_ppo.networks._children import Container, Key
from nnx_ppo.networks.types import PPONetworkOutput, StatefulModule


class PPOAdapter(Container):
    """Two children, ``"action"`` and ``"value"``, on the same input; the output is a :class:`PPONetworkOutput`.

    Args:
        action: its output is a sampler's dict ``{"action", "log_likelihood"}``, or a (nested) dict of them, one per
            action head.
        value: its output is the value estimate, ``[B]`` or ``[B, 1]``, or a dict of them, one per reward key.
            Trailing axes of length 1 are squeezed.

    Raises:
        ValueError: when called, an action port without sampler, or a value with more than one entry per sample.
    """

    def __init__(self, action: StatefulModule, value: StatefulModule):
        super().__init__({"action": action, "value": value})

    def join(self, run: Callable[[Key, Any], Any], x: Any, n_lead: int) -> Any:
        samples = run("action", x)
        values = run("value", x)
        return PPONetworkOutput(
            actions=pick(samples, "action"),
            loglikelihoods=pick(samples, "log_likelihood"),
            value_estimates=jax.tree.map(lambda value: squeeze_value(value, n_lead), values),
        )


def is_sample(output: Any) -> bool:
    """Whether an output is that of an action sampler."""
    return isinstance(output, dict) and output.keys() == {"action", "log_likelihood"}


def pick(samples: Any, name: str) -> Any:
    """Take one entry out of each sampler dict in a (nested) dict of them."""
    if is_sample(samples):
        return samples[name]
    if isinstance(samples, dict) and samples:
        return {key: pick(value, name) for key, value in samples.items()}
    raise ValueError(
        "PPOAdapter: the action port must end in an action sampler, whose output is a dict with 'action' and "
        f"'log_likelihood' (or a dict of those), got {describe_input(samples)}. Add a NormalTanhSampler or "
        "CategoricalSampler as its last layer."
    )


def squeeze_value(value: Any, n_lead: int) -> jax.Array:
    """Remove the trailing axes of a value estimate, ``[B, 1] -> [B]``, but never a batch axis."""
    value = jnp.asarray(value)
    if value.ndim < n_lead or any(size != 1 for size in value.shape[n_lead:]):
        raise ValueError(
            f"PPOAdapter: the value port must give one number per sample, shape {value.shape[:n_lead]} or "
            f"{value.shape[:n_lead] + (1,)}, got {value.shape}. End it in a layer with one unit; for several rewards "
            "return a dict with one entry per reward key."
        )
    return value.reshape(value.shape[:n_lead])
