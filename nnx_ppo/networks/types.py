"""The contract of a stateful network: observation and carry in, output and carry out."""

import abc
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from nnx_ppo._pytree import PyTreeNode, expand_to, fold_time, has_leaves, split_dicts, tree_where

Carry = Any
"""Tree of ``[B, ...]`` arrays: everything that a reset of the environment resets (``()`` for none)."""


class StatefulModuleOutput(PyTreeNode):
    """What one call of a :class:`StatefulModule` returns.

    Attributes:
        next_state: the carry for the next step, same tree as the carry given in.
        output: the forward output, tree of ``[B, ...]``.
        regularization_loss: ``[B]``, one value per sample (a scalar counts for every sample).
        metrics: dict of what the module wants logged, leaves ``[B, ...]``.
        rollout_extras: snapshot that loss replay hands back in, tree of ``[B, ...]``; ``None`` where there is none.

    In sequence mode (:meth:`StatefulModule.unroll`) every leaf but those of ``next_state`` has leading axes ``[T, B]``.
    """

    next_state: Any
    output: Any
    regularization_loss: Any
    metrics: Any
    rollout_extras: Any = None


class PPONetworkOutput(PyTreeNode):
    """Output of a network that PPO can train.

    Attributes:
        actions: array ``[B, ...]`` or (nested) dict of them, one entry per action head.
        loglikelihoods: ``[B]`` per action head, in nats.
        value_estimates: ``[B]``, or a dict of them with the reward's keys.
    """

    actions: Any
    loglikelihoods: Any
    value_estimates: Any


class StatefulModule(nnx.Module):
    """A layer or network with an explicit carry. Subclasses define :meth:`__call__`, the others where they need to.

    A subclass must keep: the call is pure per sample (sample ``b`` of the output depends on sample ``b`` of carry and
    input alone, beside the module's variables), and it writes no variable that affects a forward output. A layer that
    samples keeps one PRNG key *per environment* in its carry.
    """

    is_layer: ClassVar[bool] = False
    """Whether recordings and layer tables take the module as one layer, though it contains others."""

    @property
    def table_name(self) -> str:
        """What layer tables call the module: its class, and what else a reader should see there."""
        return type(self).__name__

    @abc.abstractmethod
    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """Run one step.

        Args:
            state: carry, leaves ``[B, ...]``.
            x: input, tree of ``[B, ...]``.
            rollout_extras: ``None`` in rollout and inference. In loss replay, the snapshot that this module returned
                when the step was taken.
        """

    def initialize_state(self, batch_size: int) -> Carry:
        """Return the carry of ``batch_size`` environments at the start of their first episode."""
        del batch_size
        return ()

    def reset_state(self, state: Carry) -> Carry:
        """Return the fresh-episode carry for the whole batch, same tree and shapes as ``state``."""
        return state

    def update_statistics(self, rollout_extras: Any) -> None:
        """Fold one iteration's snapshots (leaves ``[T, B, ...]``) into running statistics."""
        del rollout_extras

    def unroll(self, state: Carry, xs: Any, dones: jax.Array, rollout_extras: Any = None) -> StatefulModuleOutput:
        """Run ``T`` steps at once; equal to stepping, with the carry reset after each ``done``.

        A module without carry is called once, time folded into the batch. One with carry is scanned.

        Args:
            state: carry before the first step, leaves ``[B, ...]``.
            xs: inputs, tree of ``[T, B, ...]``.
            dones: bool ``[T, B]``: the episode ended at this step, so that the next one starts from a fresh carry.
            rollout_extras: snapshots ``[T, B, ...]`` of the rollout that is replayed, or ``None``.

        Returns:
            All leaves ``[T, B, ...]``, except ``next_state`` ``[B, ...]``, which is after the reset of the last step.
        """
        if has_leaves(state):
            return _unroll_by_scan(self, state, xs, dones, rollout_extras)
        return _unroll_by_folding(self, state, xs, dones, rollout_extras)


def reset_where(module: StatefulModule, done: jax.Array, state: Carry) -> Carry:
    """Replace the carry of the environments that are ``done`` (``[B]``) by that of a fresh episode."""
    if not has_leaves(state):
        return state
    return tree_where(done, module.reset_state(state), state)


def _unroll_by_folding(
    module: StatefulModule, state: Carry, xs: Any, dones: jax.Array, rollout_extras: Any
) -> StatefulModuleOutput:
    lead = dones.shape
    out = module(state, fold_time(xs), fold_time(rollout_extras))

    def unfold(x: Any) -> jax.Array:
        x = jnp.asarray(x)
        if x.ndim and x.shape[0] == dones.size:
            return x.reshape(lead + x.shape[1:])
        return jnp.broadcast_to(x, lead[:1] + x.shape)

    metrics, join = split_dicts(out.metrics)
    return out.replace(
        output=jax.tree.map(unfold, out.output),
        regularization_loss=_per_sample(out.regularization_loss, lead),
        metrics=join(jax.tree.map(unfold, metrics)),
        rollout_extras=jax.tree.map(unfold, out.rollout_extras),
    )


def _unroll_by_scan(
    module: StatefulModule, state: Carry, xs: Any, dones: jax.Array, rollout_extras: Any
) -> StatefulModuleOutput:
    # Split and merge, since a module may not write variables (an RNG count, say) from inside another trace.
    graphdef, variables = nnx.split(module)
    join: Any = None

    def step(carry: Carry, inputs: Any) -> Any:
        nonlocal join
        x, done, extras = inputs
        here = nnx.merge(graphdef, variables, copy=True)
        out = here(carry, x, extras)
        metrics, join = split_dicts(out.metrics)
        return reset_where(here, done, out.next_state), out.replace(next_state=None, metrics=metrics)

    next_state, out = jax.lax.scan(step, state, (xs, dones, rollout_extras))
    return out.replace(
        next_state=next_state,
        metrics=join(out.metrics),
        regularization_loss=_per_sample(out.regularization_loss, dones.shape),
    )


def _per_sample(loss: Any, lead: tuple[int, ...]) -> jax.Array:
    """Bring a regularization loss (scalar, ``[T]``, ``[T * B]`` or ``[T, B]``) to ``[T, B]``."""
    loss = jnp.asarray(loss)
    if loss.size == lead[0] * lead[1]:
        return loss.reshape(lead)
    return jnp.broadcast_to(expand_to(loss, 2), lead)
