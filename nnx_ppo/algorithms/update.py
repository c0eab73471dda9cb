"""Stage 4, update: epochs of minibatches over environments; each replays whole trajectories from the old carry."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from nnx_ppo._pytree import PyTreeNode
from nnx_ppo._signatures import require_call
from nnx_ppo.algorithms.config import LearningRate, PPOConfig
from nnx_ppo.algorithms.losses import Batch, ppo_loss
from nnx_ppo.algorithms.nonfinite import all_finite, count_nonfinite
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.networks.types import StatefulModule


@functools.lru_cache(maxsize=64)
def make_optimizer(
    learning_rate: LearningRate, gradient_clipping: float | None, weight_decay: float | None
) -> optax.GradientTransformation:
    """Adam (AdamW with ``weight_decay``), after clipping by global norm where asked for.

    Cached, so that a second training run with the same settings finds its compiled step again.
    """
    adam = optax.adam(learning_rate) if weight_decay is None else optax.adamw(learning_rate, weight_decay=weight_decay)
    return adam if gradient_clipping is None else optax.chain(optax.clip_by_global_norm(gradient_clipping), adam)


def new_optimizer(
    networks: nnx.Module,
    learning_rate: LearningRate,
    gradient_clipping: int | float | None,
    weight_decay: int | float | None,
) -> nnx.Optimizer:
    """A fresh optimizer over the ``nnx.Param`` variables of ``networks``; see :func:`make_optimizer`.

    Raises:
        TypeError: the learning rate is a function that is no schedule, ``count -> rate``.
    """
    if callable(learning_rate):
        _require_schedule(learning_rate)
    return nnx.Optimizer(networks, make_optimizer(learning_rate, gradient_clipping, weight_decay), wrt=nnx.Param)


def _require_schedule(learning_rate: Callable[[Any], Any]) -> None:
    require_call("learning_rate", learning_rate, "count")
    with jax.numpy_dtype_promotion("standard"):
        rate = jax.eval_shape(learning_rate, jax.ShapeDtypeStruct((), jnp.int32))
    if getattr(rate, "shape", None) != () or not jnp.issubdtype(rate.dtype, jnp.floating):
        raise TypeError(
            f"learning_rate is a function that returns {rate}, expected a schedule: gradient step number to one real "
            "number, such as optax.linear_schedule(1e-3, 0.0, 10_000)."
        )


class GradientPhase(PyTreeNode):
    """What the gradient phase reports; every array has one entry per gradient step, ``[S]``.

    Attributes:
        parts: parts of the loss, and ``grad_norm``, by metric name: those that the logging level asks for.
        loss: the total loss.
        nonfinite_gradients: entries of the gradient that are not finite; ``None`` below ``DIAGNOSTICS``.
        skipped: whether the step was left out; ``None`` where it never is.
    """

    parts: Any
    loss: Any
    nonfinite_gradients: Any = None
    skipped: Any = None


def update(
    networks: StatefulModule, optimizer: nnx.Optimizer, batch: Batch, key: jax.Array, config: PPOConfig
) -> GradientPhase:
    """Take ``n_epochs * n_minibatches`` gradient steps; ``networks`` and ``optimizer`` are updated in place.

    With ``on_nonfinite="skip"`` a step whose loss or gradient is not finite changes neither.

    Args:
        networks: the network to train.
        optimizer: over its ``nnx.Param`` variables.
        batch: the whole rollout, leaves ``[T, N, ...]``.
        key: PRNG key of the shuffling; every epoch splits the environments anew.
        config: hyper-parameters.
    """
    graphdef, params, rest = nnx.split(networks, nnx.Param, ...)
    optimizer_def, optimizer_state = nnx.split(optimizer)

    def gradient_step(loop: Any, index: jax.Array) -> Any:
        params, optimizer_state = loop
        before = jax.tree.map(lambda x: x, loop)  # merged modules share their variables with the state, and write them
        minibatch = take_environments(batch, index)

        def loss(params: Any) -> Any:
            return ppo_loss(nnx.merge(graphdef, params, rest), minibatch, config)

        (value, parts), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        if LoggingLevel.GRAD_NORM in config.logging_level:
            parts["grad_norm"] = optax.tree.norm(gradients)
        model, optimizer = nnx.merge(graphdef, params, rest), nnx.merge(optimizer_def, optimizer_state)
        # Adam's bias correction raises a Python float to an int32 count, which strict promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            optimizer.update(model, gradients)
        updated = (nnx.state(model, nnx.Param), nnx.state(optimizer))
        phase = GradientPhase(parts, value)
        if LoggingLevel.DIAGNOSTICS in config.logging_level:
            phase = phase.replace(nonfinite_gradients=count_nonfinite(gradients), skipped=jnp.zeros((), bool))
        if config.on_nonfinite == "skip":
            finite = all_finite((value, gradients))
            updated = jax.tree.map(lambda new, old: jnp.where(finite, new, old), updated, before)
            phase = phase.replace(skipped=~finite)
        return updated, phase

    indices = minibatch_indices(key, config.n_envs, config.n_epochs, config.n_minibatches)
    (params, optimizer_state), phase = jax.lax.scan(gradient_step, (params, optimizer_state), indices)
    nnx.update(networks, params)
    nnx.update(optimizer, optimizer_state)
    return phase


def minibatch_indices(key: jax.Array, n_envs: int, n_epochs: int, n_minibatches: int) -> jax.Array:
    """Environment indices of every gradient step, ``[n_epochs * n_minibatches, n_envs / n_minibatches]``."""
    keys = jax.random.split(key, n_epochs)
    orders = jax.vmap(lambda k: jax.random.permutation(k, n_envs))(keys)
    return orders.reshape(n_epochs * n_minibatches, n_envs // n_minibatches)


def take_environments(batch: Batch, index: jax.Array) -> Batch:
    """Select environments (``index [n]``) from a batch: axis 0 of the carry, axis 1 of everything else."""
    rest = jax.tree.map(lambda x: x[:, index], batch.replace(start_state=None))
    return rest.replace(start_state=jax.tree.map(lambda x: x[index], batch.start_state))
