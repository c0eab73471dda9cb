"""NaN and infinity in training: where they first appear, and the error that says so.

Each iteration counts the values that are not finite in what training learns from, and notes where the first one is. The
count is part of the compiled iteration; the host reads it with the metrics, so that looking costs no wait.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx, struct

from nnx_ppo._pytree import PyTreeNode
from nnx_ppo.algorithms.metrics import flat_names, variable_name
from nnx_ppo.algorithms.types import Transition


class Source(NamedTuple):
    """Something that may hold values that are not finite.

    Attributes:
        kind: one of :data:`KINDS`.
        path: which of them: path of a leaf, name of a variable; empty where there is only one.
    """

    kind: str
    path: str

    @property
    def key(self) -> str:
        """Kind and path in one string."""
        return f"{self.kind}/{self.path}" if self.path else self.kind

    def __str__(self) -> str:
        kind = self.kind.replace("_", " ")
        return f"{kind} {self.path!r}" if self.path else kind


_OF_THE_ROLLOUT = ("observation", "action", "log_likelihood", "value", "reward", "final_value")
KINDS = (*_OF_THE_ROLLOUT, "loss", "parameter", "statistic")
"""What is looked at, in the order in which one causes the next within a step."""


_AFTER_THE_ROLLOUT = np.iinfo(np.int64).max


class NonFiniteError(FloatingPointError):
    """Training met a value that is NaN or infinite. ``networks`` hold the last iteration before it.

    Attributes:
        path: what it was: ``"observation/joints"``, ``"reward"``, ``"loss"``, ``"parameter/1/action/0/linear/kernel"``.
        step: environment steps that had been taken when it came up, those of all environments counted.
        env: index of the environment; ``None`` for losses, parameters and statistics.
        counts: values that were not finite in the whole iteration, by path.
    """

    def __init__(self, message: str, path: str, step: int, env: int | None, counts: Mapping[str, int]):
        super().__init__(message)
        self.path = path
        self.step = step
        self.env = env
        self.counts = dict(counts)


class Census(PyTreeNode):
    """Values that are not finite, per source.

    Attributes:
        count: int ``[S]``.
        first: int ``[S]``: position of the first one: ``t * N + env`` in a rollout, the gradient step of a loss.
        sources: what was looked at.
        n_envs: ``N``.
    """

    count: Any
    first: Any
    sources: tuple[Source, ...] = struct.field(pytree_node=False)
    n_envs: int = struct.field(pytree_node=False)

    def total(self, *kinds: str) -> jax.Array:
        """Number of values that are not finite, in all sources of these kinds."""
        chosen = [i for i, source in enumerate(self.sources) if source.kind in kinds]
        return self.count[np.asarray(chosen, int)].sum()


def rollout_census(rollout: Transition, values: Any) -> Census:
    """Look at everything in a rollout that training learns from.

    Args:
        rollout: leaves ``[T, N, ...]``.
        values: of the visited states, per critic head.
    """
    trees = {
        "observation": rollout.obs,
        "action": rollout.network_output.actions,
        "log_likelihood": rollout.network_output.loglikelihoods,
        "value": values,
        "reward": rollout.rewards,
        "final_value": rollout.final_values,
    }
    n_envs = rollout.done.shape[1]
    return _census({Source(kind, p): x for kind, tree in trees.items() for p, x in flat_names(tree).items()}, n_envs, 2)


def update_census(losses: jax.Array, networks: nnx.Module, n_envs: int) -> Census:
    """Look at what the gradient phase left.

    Args:
        losses: total loss of every gradient step, ``[steps]``.
        networks: after the update.
        n_envs: ``N`` of the rollout.
    """
    return joined(_census({Source("loss", ""): losses}, n_envs, 1), _census(_variables(networks), n_envs, 0))


def joined(a: Census, b: Census) -> Census:
    """Both sets of sources."""
    return Census(
        count=jnp.concatenate([a.count, b.count]),
        first=jnp.concatenate([a.first, b.first]),
        sources=a.sources + b.sources,
        n_envs=a.n_envs,
    )


def environments_with_nonfinite(rollout: Transition, next_obs: Any) -> jax.Array:
    """Which environments showed anything that is not finite, or will show it next, bool ``[N]``."""
    shown = (rollout.obs, rollout.network_output.actions, rollout.network_output.loglikelihoods, rollout.rewards)
    found = [_bad(leaf).reshape(*rollout.done.shape, -1).any(axis=(0, 2)) for leaf in jax.tree.leaves(shown)]
    found += [_bad(leaf).reshape(rollout.done.shape[1], -1).any(axis=1) for leaf in jax.tree.leaves(next_obs)]
    return jnp.stack(found).any(axis=0)


def count_nonfinite(tree: Any) -> jax.Array:
    """Number of values of a tree that are not finite, int ``[]``."""
    return sum((_bad(leaf).sum(dtype=int) for leaf in jax.tree.leaves(tree)), start=jnp.zeros((), int))


def all_finite(tree: Any) -> jax.Array:
    """Whether every value of a tree is finite, bool ``[]``."""
    return count_nonfinite(tree) == 0


def require_finite(networks: nnx.Module) -> None:
    """Refuse to train a network that holds NaN or infinity before the first step.

    Raises:
        NonFiniteError: names the variable.
    """
    for source, x in _variables(networks).items():
        if n := int(np.count_nonzero(~np.isfinite(np.asarray(x)))):
            raise NonFiniteError(
                f"The network holds {n} values that are NaN or infinite before training, in {source}. Start from "
                "another initialisation or checkpoint, or train anyway with on_nonfinite='ignore'.",
                source.key, 0, None, {source.key: n},
            )  # fmt: skip


def _variables(networks: nnx.Module) -> dict[Source, jax.Array]:
    """Every floating-point array of a network."""
    found = {}
    for kind, chosen in (("parameter", nnx.Param), ("statistic", nnx.Not(nnx.Any(nnx.Param, nnx.RngState)))):
        for path, variable in nnx.to_flat_state(nnx.state(networks, chosen)):
            for i, leaf in enumerate(jax.tree.leaves(variable)):
                found[Source(kind, variable_name(path) + (f"[{i}]" if i else ""))] = leaf
    return {source: x for source, x in found.items() if jnp.issubdtype(x.dtype, jnp.inexact)}


def _census(arrays: Mapping[Source, jax.Array], n_envs: int, n_lead: int) -> Census:
    """Count in arrays whose first ``n_lead`` axes, taken together, give the position."""
    floats = {source: x for source, x in arrays.items() if jnp.issubdtype(x.dtype, jnp.inexact)}
    bad = [_bad(x).reshape(*x.shape[:n_lead], -1).sum(axis=-1, dtype=int).ravel() for x in floats.values()]
    none = jnp.zeros((0,), int)
    return Census(
        count=jnp.stack([x.sum() for x in bad]) if bad else none,
        first=jnp.stack([jnp.argmax(x > 0).astype(int) for x in bad]) if bad else none,
        sources=tuple(floats),
        n_envs=n_envs,
    )


def _bad(x: jax.Array) -> jax.Array:
    x = jnp.asarray(x)
    return ~jnp.isfinite(x) if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.zeros(x.shape, bool)


class _Finding(NamedTuple):
    source: Source
    count: int
    position: int


def nonfinite_error(census: Census, steps: int) -> NonFiniteError | None:
    """Describe the first value that is not finite, if there is one; waits for the device.

    Args:
        census: of an iteration.
        steps: environment steps before the iteration.
    """
    counts, positions = jax.device_get((census.count, census.first))
    found = [
        _Finding(source, int(count), int(position))
        for source, count, position in zip(census.sources, counts, positions, strict=True)
        if count
    ]
    return _describe(found, steps, census.n_envs) if found else None


def _describe(found: list[_Finding], steps: int, n_envs: int) -> NonFiniteError:
    def cause(finding: _Finding) -> tuple[int, int]:
        # Within the rollout an earlier step comes first; what comes after it comes in the order of the kinds.
        order = KINDS.index(finding.source.kind)
        in_rollout = finding.source.kind in _OF_THE_ROLLOUT
        return (finding.position // n_envs, order) if in_rollout else (_AFTER_THE_ROLLOUT, order)

    source, _, position = min(found, key=cause)
    step, env = steps, None
    if source.kind in _OF_THE_ROLLOUT:
        row, env = divmod(position, n_envs)
        step += row * n_envs
        where = f"in environment {env} at rollout step {row}, after {step:,} environment steps"
    elif source.kind == "loss":
        where = f"at gradient step {position} of the iteration that began after {steps:,} environment steps"
    else:
        where = f"after the update of the iteration that began after {steps:,} environment steps"
    counts = {finding.source.key: finding.count for finding in found}
    listing = ", ".join(f"{key} ({count})" for key, count in counts.items())
    message = (
        f"The {source} is NaN or infinite {where}. The networks hold the iteration before it. Not finite in this "
        f"iteration: {listing}. {_ADVICE[source.kind]} Or train on: on_nonfinite='skip' leaves such updates out, "
        "'ignore' does not look."
    )
    return NonFiniteError(message, source.key, step, env, counts)


_ENV = "The environment produced it: end or bound the states that lead there."
_DIVERGED = "Lower the learning rate, or set gradient_clipping."
_ADVICE = {
    "observation": _ENV,
    "reward": _ENV,
    "action": "The network produced it from finite observations: look at the scale of its inputs (normalisation).",
    "log_likelihood": "The policy gave it to an action of its own: raise min_std, or lower the learning rate.",
    "value": _DIVERGED,
    "final_value": _ENV,
    "loss": _DIVERGED,
    "parameter": _DIVERGED,
    "statistic": "What a normaliser saw was too large: bound the observations.",
}
