"""ForwardModel: an auxiliary loss that asks a policy's memory to predict what the environment will show next."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from nnx_ppo.networks._children import Container, Key
from nnx_ppo.networks._dtypes import as_float, default_float, float_dtype
from nnx_ppo.networks.types import Carry, PPONetworkOutput, StatefulModule, StatefulModuleOutput
from nnx_ppo.networks.utils import Selector, flatten_batch, select


class ForwardModel(Container):
    """A network and a predictor of its next input; output, and behaviour, are those of the network alone.

    At every step but the first of an episode, the predictor is given the network's carry and the action of the step
    before, side by side as one array ``[B, carry + action]``, and predicts ``target`` of the present input,
    flattened to ``[B, F]``. ``weight * fm_pred_mse`` joins the ``regularization_loss``, and its gradient reaches the
    network through the carry, not through the target.

    Metric: ``fm_pred_mse`` (``[B]``), the squared error averaged over ``F``, 0 in the first step of an episode.
    The carry is ``{"network": carry, "predictor": carry, "action": [B, action_size], "started": bool [B]}``. Since the
    carry of every step is needed, a sequence is scanned over time.

    Args:
        network: a network with a carry, whose output is a :class:`~nnx_ppo.networks.types.PPONetworkOutput` or that
            of an action sampler.
        predictor: from ``[B, carry + action_size]`` to ``[B, F]``.
        action_size: numbers in one (encoded) action.
        target: which part of the input to predict: a key, a tuple of keys, a function; ``None``: all of it.
        features: which part of the network's carry the predictor sees, a function of the carry; ``None``: every
            floating-point array of it, flattened, in JAX's order of trees.
        encode_action: function of the actions (``[B, ...]``, a tree for several heads), such as
            ``lambda action: jax.nn.one_hot(action, 4)``; ``None``: as they are. Then they are flattened.
        weight: weight of the error in the loss.

    Raises:
        ValueError: ``action_size`` below 1; when called, a carry without floating-point arrays, an action of another
            size, or a prediction of another shape than the target's.
        TypeError: when called, a network whose output holds no action.
    """

    def __init__(
        self,
        network: StatefulModule,
        predictor: StatefulModule,
        action_size: int,
        *,
        target: Selector | None = None,
        features: Callable[[Carry], Any] | None = None,
        encode_action: Callable[[Any], Any] | None = None,
        weight: float = 1.0,
    ):
        super().__init__({"network": network, "predictor": predictor})
        if isinstance(action_size, bool) or not hasattr(action_size, "__index__") or action_size < 1:
            raise ValueError(f"ForwardModel: action_size must be an integer of at least 1, got {action_size!r}.")
        self.action_size = action_size.__index__()
        self.target = target
        self.features = features
        self.encode_action = encode_action
        self.weight = weight

    def initialize_state(self, batch_size: int) -> Carry:
        return {
            **super().initialize_state(batch_size),
            "action": jnp.zeros((batch_size, self.action_size), default_float()),
            "started": jnp.zeros(batch_size, bool),
        }

    def reset_state(self, state: Carry) -> Carry:
        own = {name: jnp.zeros_like(state[name]) for name in ("action", "started")}
        return {**super().reset_state(state), **own}

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        out = super().__call__(state, (x, state), rollout_extras)
        output, prediction = out.output
        error = jnp.where(state["started"], self._error(prediction, x), 0)
        action = self._encoded(output).astype(state["action"].dtype)
        dtype = float_dtype(error, out.regularization_loss)
        return out.replace(
            next_state={**out.next_state, "action": action, "started": jnp.ones_like(state["started"])},
            output=output,
            regularization_loss=out.regularization_loss.astype(dtype) + self.weight * error.astype(dtype),
            metrics={**out.metrics, "fm_pred_mse": error},
        )

    def unroll(self, state: Carry, xs: Any, dones: jax.Array, rollout_extras: Any = None) -> StatefulModuleOutput:
        return StatefulModule.unroll(self, state, xs, dones, rollout_extras)

    def join(self, run: Callable[[Key, Any], Any], x: Any, n_lead: int) -> Any:
        x, state = x
        prediction = run("predictor", self._predictor_input(state))
        return run("network", x), prediction

    def _predictor_input(self, state: Carry) -> jax.Array:
        carry = state["network"] if self.features is None else self.features(state["network"])
        leaves = [leaf for leaf in jax.tree.leaves(carry) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        if not leaves:
            raise ValueError(
                "ForwardModel: predicts from the carry, but that of the network (after features) holds no "
                "floating-point array; give the network a memory, such as a GRU."
            )
        return flatten_batch([*leaves, state["action"]])

    def _error(self, prediction: Any, x: Any) -> jax.Array:
        """Squared error ``[B]``, averaged over the target's numbers."""
        target = jax.lax.stop_gradient(flatten_batch(x if self.target is None else select(x, self.target)))
        if getattr(prediction, "shape", None) != target.shape:
            raise ValueError(
                f"ForwardModel: the target is {target.shape} (flattened), so the predictor must return that, got "
                f"{getattr(prediction, 'shape', type(prediction).__name__)}."
            )
        dtype = float_dtype(prediction, target)
        return jnp.mean(jnp.square(prediction.astype(dtype) - target.astype(dtype)), axis=-1)

    def _encoded(self, output: Any) -> jax.Array:
        if isinstance(output, PPONetworkOutput):
            action = output.actions
        elif isinstance(output, dict) and "action" in output:
            action = output["action"]
        else:
            raise TypeError(
                "ForwardModel: the network must return a PPONetworkOutput or a sampler's dict with 'action', got a "
                f"{type(output).__name__}; end it in a PPOAdapter or an action sampler."
            )
        action = as_float(flatten_batch(action if self.encode_action is None else self.encode_action(action)))
        if action.shape[-1] != self.action_size:
            raise ValueError(
                f"ForwardModel: made for actions of {self.action_size} numbers (action_size), got {action.shape[-1]} "
                "after encode_action and flattening."
            )
        return jax.lax.stop_gradient(action)
