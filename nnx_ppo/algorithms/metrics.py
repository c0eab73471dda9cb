"""Stage 6, metrics: trees become one flat row of named scalars. Every name stands in one table, :data:`TABLE`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx, struct

from nnx_ppo._pytree import PyTreeNode, expand_to, total
from nnx_ppo.algorithms.config import PPOConfig
from nnx_ppo.algorithms.types import LoggingLevel, Transition
from nnx_ppo.networks.naming import path_string

Percentiles = tuple[int | float, ...] | None


@dataclasses.dataclass(frozen=True)
class MetricFamily:
    """One line of the table of metric names.

    Attributes:
        name: the key, where ``*`` stands for the path of a leaf. Those of evaluations begin with ``eval/``.
        level: the flags of which any asks for it; ``NONE`` for what every evaluation reports.
        meaning: what it measures.
        unit: its unit.
        reduced: reported as ``/mean`` and ``/std``, or ``/p{N}`` with percentiles, instead of under the bare name.
        when: the condition beside the level; empty for every row (every evaluation's, for those).
    """

    name: str
    level: LoggingLevel
    meaning: str
    unit: str
    reduced: bool = False
    when: str = ""

    @property
    def of_evaluation(self) -> bool:
        """Whether ``EvalConfig``, and not ``PPOConfig``, asks for it."""
        return self.name.startswith("eval/")

    def is_asked(self, level: LoggingLevel) -> bool:
        """Whether ``level`` asks for it."""
        return bool(self.level & level) or (self.of_evaluation and not self.level)

    def keys(self, percentiles: Percentiles) -> tuple[str, ...]:
        """The keys it is reported under, with ``*`` left in place."""
        if not self.reduced:
            return (self.name,)
        statistics = ("mean", "std") if percentiles is None else tuple(map(percentile_name, percentiles))
        return tuple(f"{self.name}/{statistic}" for statistic in statistics)


_L = LoggingLevel
_EVERY = _L.ALL | _L.ROLLOUT_OBS | _L.DIAGNOSTICS
_ONE_REWARD, _REWARDS = "the reward is one array", "the reward is a dict"
_ONE_ACTION, _ACTIONS = "the action is one array", "the action is a dict"
_ONE_OBS, _OBS = "the observation is one array", "the observation is a dict"
TABLE: tuple[MetricFamily, ...] = (
    MetricFamily("losses/actor_loss", _L.LOSSES, "clipped surrogate, summed over action heads", "advantage"),
    MetricFamily("losses/critic_loss", _L.LOSSES, "half the squared error, summed over critic heads", "reward²"),
    MetricFamily("losses/entropy", _L.LOSSES, "entropy of the policy, unweighted", "nats"),
    MetricFamily("losses/regularization", _L.LOSSES, "sum of what the modules add to the loss", "loss"),
    MetricFamily("losses/total", _L.LOSSES, "actor_loss + critic_loss_weight * critic_loss + regularization", "loss"),
    MetricFamily("rollout_batch/reward/mean", _L.LOSSES, "reward per step, summed over reward keys", "reward"),
    MetricFamily(
        "losses/predicted_value", _L.CRITIC_EXTRA, "value of the rollout's observations", "return", True, _ONE_REWARD
    ),
    MetricFamily("losses/predicted_value/*", _L.CRITIC_EXTRA, "the same, per reward key", "return", True, _REWARDS),
    MetricFamily(
        "losses/explained_variance", _L.CRITIC_EXTRA, "share of the targets' variance that the values explain", "1"
    ),
    MetricFamily("rollout_batch/log_likelihood", _L.ACTOR_EXTRA, "of the actions taken", "nats", True, _ONE_ACTION),
    MetricFamily("rollout_batch/log_likelihood/*", _L.ACTOR_EXTRA, "the same, per action head", "nats", True, _ACTIONS),
    MetricFamily("losses/clipping_fraction", _L.ACTOR_EXTRA, "share of samples with a clipped ratio", "1"),
    MetricFamily("losses/approx_kl", _L.ACTOR_EXTRA, "KL from the rollout's policy, summed over heads", "nats"),
    MetricFamily("rollout_batch/reward", _L.ROLLOUT_STATS, "reward per step, summed over reward keys", "reward", True),
    MetricFamily("rollout_batch/reward/*", _L.ROLLOUT_STATS, "the same, per reward key", "reward", True, _REWARDS),
    MetricFamily("rollout_batch/action", _L.ROLLOUT_STATS, "entries of the actions", "action", True, _ONE_ACTION),
    MetricFamily("rollout_batch/action/*", _L.ROLLOUT_STATS, "the same, per action head", "action", True, _ACTIONS),
    MetricFamily("rollout_batch/done_rate", _L.ROLLOUT_STATS, "share of steps that ended an episode", "1"),
    MetricFamily("rollout_batch/truncation_rate", _L.ROLLOUT_STATS, "share of steps that hit a time limit", "1"),
    MetricFamily("rollout_batch/obs", _L.ROLLOUT_OBS, "entries of the observation", "observation", True, _ONE_OBS),
    MetricFamily("rollout_batch/obs/*", _L.ROLLOUT_OBS, "the same, per leaf", "observation", True, _OBS),
    MetricFamily("env/*", _L.ENV_METRICS, "the environment's own metrics per step", "its own", True),
    MetricFamily("net/*", _L.NETWORK_METRICS, "what the modules report, by layer path", "its own", True),
    MetricFamily("grad_norm", _L.GRAD_NORM, "global gradient norm before clipping", "loss / parameter"),
    MetricFamily("weights/*", _L.WEIGHTS, "entries of each parameter", "parameter", True),
    MetricFamily("throughput/train_sps", _L.THROUGHPUT, "steps of training per second of wall-clock time", "1/s"),
    MetricFamily(
        "throughput/compile_s",
        _L.THROUGHPUT,
        "time to compile iteration, evaluation and film, or to load them from the cache",
        "s",
        when="first iteration",
    ),
    MetricFamily(
        "throughput/eval_sps", _L.THROUGHPUT, "steps of evaluation per second", "1/s", when="an evaluation ran"
    ),
    MetricFamily(
        "throughput/video_sps", _L.THROUGHPUT, "steps filmed and drawn per second", "1/s", when="a video was made"
    ),
    MetricFamily("diagnostics/nonfinite/observations", _L.DIAGNOSTICS, "NaN or infinite in the rollout", "values"),
    MetricFamily("diagnostics/nonfinite/rewards", _L.DIAGNOSTICS, "the same", "values"),
    MetricFamily("diagnostics/nonfinite/losses", _L.DIAGNOSTICS, "gradient steps with such a loss", "gradient steps"),
    MetricFamily("diagnostics/nonfinite/gradients", _L.DIAGNOSTICS, "over all gradient steps", "values"),
    MetricFamily("diagnostics/nonfinite/parameters", _L.DIAGNOSTICS, "after the update", "values"),
    MetricFamily("diagnostics/skipped_updates", _L.DIAGNOSTICS, "left out by on_nonfinite='skip'", "gradient steps"),
    MetricFamily("diagnostics/kl", _L.DIAGNOSTICS, "KL from the rollout's policy to that after the update", "nats"),
    MetricFamily("diagnostics/dormant_units", _L.DIAGNOSTICS, "share of units with next to no activation", "1"),
    MetricFamily("diagnostics/dormant_units/*", _L.DIAGNOSTICS, "the same, per layer of units", "1"),
    MetricFamily("nonfinite", _EVERY, "samples in the row that were NaN or infinite", "samples"),
    MetricFamily("eval/episode_reward", _L.NONE, "total return, over episodes", "reward", True),
    MetricFamily("eval/episode_reward/mean", _L.NONE, "the same; with percentiles too", "reward"),
    MetricFamily("eval/episode_reward/std", _L.NONE, "the same; with percentiles too", "reward"),
    MetricFamily("eval/episode_reward/*", _L.NONE, "the same, per reward key", "reward", True, _REWARDS),
    MetricFamily("eval/episode_reward/*/mean", _L.NONE, "the same; with percentiles too", "reward", False, _REWARDS),
    MetricFamily("eval/episode_reward/*/std", _L.NONE, "the same; with percentiles too", "reward", False, _REWARDS),
    MetricFamily("eval/lifespan", _L.NONE, "steps that an episode took", "steps", True),
    MetricFamily("eval/env/*", _L.ENV_METRICS, "mean of `env/*` over an episode, over episodes", "its own", True),
    MetricFamily(
        "eval/net/*", _L.NETWORK_METRICS, "mean of `net/*` over an episode, over episodes and units", "its own", True
    ),
    MetricFamily("eval/nonfinite", _L.NONE, "samples in the evaluation that were NaN or infinite", "samples"),
)
"""Every metric that is reported."""


class MetricsRow(PyTreeNode):
    """Named scalars, held as one array so that a whole row is one transfer to the host."""

    values: Any
    names: tuple[str, ...] = struct.field(pytree_node=False)

    @classmethod
    def of(cls, scalars: Mapping[str, Any]) -> "MetricsRow":
        """Collect scalars; their order is kept."""
        values = [jnp.asarray(value).astype(float) for value in scalars.values()]
        return cls(jnp.stack(values) if values else jnp.zeros((0,), float), tuple(scalars))

    def to_dict(self) -> dict[str, float]:
        """Python floats by name; waits for the device."""
        return dict(zip(self.names, np.asarray(self.values).tolist(), strict=True))


class Collector:
    """Builds one row: reduces arrays, and counts the non-finite samples of everything that it is given."""

    def __init__(self, percentiles: Percentiles):
        self.percentiles = percentiles
        self.scalars: dict[str, jax.Array] = {}
        self.nonfinite = jnp.zeros((), int)

    def scalar(self, name: str, value: jax.Array) -> None:
        """Add a scalar under its bare name."""
        self._count(value)
        self.scalars[name] = jnp.asarray(value)

    def mean(self, name: str, x: jax.Array) -> None:
        """Add the mean of the finite entries of ``x`` under the bare name."""
        self._count(x)
        self.scalars[name] = reduce("", x, None)["/mean"]

    def reduced(self, name: str, x: jax.Array) -> None:
        """Add the statistics of all finite entries of ``x``, any shape."""
        self._count(x)
        self.scalars |= reduce(name, x, self.percentiles)

    def tree(self, name: str, tree: Any) -> None:
        """Add the statistics of every leaf ``[T, N, ...]``; a leaf ``[T]``, a scalar per step, keeps its name."""
        self.leaves(name, flat_names(tree))

    def leaves(self, name: str, flat: Mapping[str, jax.Array]) -> None:
        """The same for leaves by path."""
        for path, leaf in flat.items():
            full = f"{name}/{path}" if path else name
            if leaf.ndim <= 1:
                self.scalar(full, leaf.astype(float).mean())
            else:
                self.reduced(full, leaf)

    def row(self, nonfinite_name: str) -> MetricsRow:
        """The finished row."""
        return MetricsRow.of({**self.scalars, nonfinite_name: self.nonfinite})

    def _count(self, x: jax.Array) -> None:
        if jnp.issubdtype(x.dtype, jnp.inexact):
            self.nonfinite += jnp.sum(~jnp.isfinite(x)).astype(self.nonfinite.dtype)


def reduce(name: str, x: jax.Array, percentiles: Percentiles) -> dict[str, jax.Array]:
    """Statistics over the finite entries of ``x``; NaN where there is none.

    Args:
        name: prefix of the keys.
        x: array of numbers or booleans (then 0 and 1: the mean is the fraction true), any shape.
        percentiles: ``None`` for ``/mean`` and (population) ``/std``; else ``/p{N}`` with linear interpolation, as
            ``numpy.percentile``. The array is sorted once for all of them.
    """
    flat = jnp.asarray(x).ravel().astype(float)
    if not flat.size:
        flat = jnp.full((1,), jnp.nan)
    finite = jnp.isfinite(flat)
    n = finite.sum()
    if percentiles is None:
        count = jnp.maximum(n, 1).astype(flat.dtype)
        mean = jnp.sum(jnp.where(finite, flat, 0.0)) / count
        variance = jnp.sum(jnp.where(finite, flat - mean, 0.0) ** 2) / count
        values = {f"{name}/mean": mean, f"{name}/std": jnp.sqrt(variance)}
    else:
        ordered = _sorted(jnp.where(finite, flat, jnp.inf))
        last = jnp.maximum(n - 1, 0)
        position = jnp.asarray(percentiles, flat.dtype) / 100.0 * last.astype(flat.dtype)
        below = jnp.floor(position).astype(last.dtype)
        above = jnp.minimum(below + 1, last)
        low, high = ordered[below], ordered[above]
        weight = position - below.astype(flat.dtype)
        interpolated = low + jnp.where(weight > 0, weight * (high - low), 0.0)
        values = {f"{name}/{percentile_name(p)}": interpolated[i] for i, p in enumerate(percentiles)}
    return {key: jnp.where(n > 0, value, jnp.nan) for key, value in values.items()}


def _sorted(x: jax.Array) -> jax.Array:
    """Sort floats by integers of the same order, which XLA sorts several times as fast on a CPU."""
    integer = jnp.dtype(f"int{8 * x.dtype.itemsize}")
    magnitude = jnp.asarray(jnp.iinfo(integer).max, integer)

    def flip(bits: jax.Array) -> jax.Array:
        # Of negative floats the larger bits are the smaller number; flipping twice changes nothing.
        return jnp.where(bits < 0, bits ^ magnitude, bits)

    return jax.lax.bitcast_convert_type(flip(jnp.sort(flip(jax.lax.bitcast_convert_type(x, integer)))), x.dtype)


def percentile_name(p: int | float) -> str:
    """``p50``, ``p2.5``: all digits are kept, so that no two percentiles share a key."""
    return f"p{int(p)}" if float(p).is_integer() else f"p{float(p)!r}"


def flat_names(tree: Any) -> dict[str, jax.Array]:
    """Leaves by ``/``-joined path; dicts with keys of mixed types are allowed. A bare leaf has the empty path."""
    if isinstance(tree, Mapping):
        flat = {}
        for key, value in tree.items():
            for path, leaf in flat_names(value).items():
                name = path_string((key,))
                flat[f"{name}/{path}" if path else name] = leaf
        return flat
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {"/".join(_entry_name(entry) for entry in path): jnp.asarray(leaf) for path, leaf in leaves}


def _entry_name(entry: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def training_row(
    rollout: Transition, values: Any, targets: Any, losses: Mapping[str, jax.Array], networks: nnx.Module,
    config: PPOConfig, diagnostics: Mapping[str, jax.Array] | None = None,
) -> MetricsRow:  # fmt: skip
    """The row of one training iteration: what ``config.logging_level`` asks for, and nothing else is computed.

    Args:
        rollout: leaves ``[T, N, ...]``.
        values: of the visited states, per critic head.
        targets: value targets, per critic head.
        losses: parts from the gradient phase, one entry per gradient step.
        networks: after the update.
        config: hyper-parameters, among them level and percentiles.
        diagnostics: scalars of the level ``DIAGNOSTICS``.
    """
    level = config.logging_level
    if level == LoggingLevel.NONE:
        return MetricsRow.of({})
    collect = Collector(config.logging_percentiles)
    for name, value in losses.items():
        collect.mean(name, value)
    reward = total(rollout.rewards)
    if LoggingLevel.ROLLOUT_STATS in level:
        collect.reduced("rollout_batch/reward", reward)
        if not isinstance(rollout.rewards, jax.Array):
            collect.tree("rollout_batch/reward", rollout.rewards)
        collect.tree("rollout_batch/action", rollout.network_output.actions)
        collect.scalar("rollout_batch/done_rate", rollout.done.astype(float).mean())
        collect.scalar("rollout_batch/truncation_rate", rollout.truncated.astype(float).mean())
    if LoggingLevel.LOSSES in level and "rollout_batch/reward/mean" not in collect.scalars:
        collect.mean("rollout_batch/reward/mean", reward)
    if LoggingLevel.CRITIC_EXTRA in level:
        collect.tree("losses/predicted_value", values)
        collect.scalar("losses/explained_variance", explained_variance(total(values), total(targets)))
    if LoggingLevel.ACTOR_EXTRA in level:
        collect.tree("rollout_batch/log_likelihood", rollout.network_output.loglikelihoods)
    if LoggingLevel.ROLLOUT_OBS in level:
        collect.tree("rollout_batch/obs", rollout.obs)
    if LoggingLevel.ENV_METRICS in level:
        collect.leaves("env", rollout.metrics["env"])
    if LoggingLevel.NETWORK_METRICS in level:
        collect.leaves("net", rollout.metrics["net"])
    if LoggingLevel.WEIGHTS in level:
        for path, param in nnx.to_flat_state(nnx.state(networks, nnx.Param)):
            for leaf in jax.tree.leaves(param):
                collect.reduced(f"weights/{variable_name(path)}", leaf)
    collect.scalars |= diagnostics or {}
    return collect.row("nonfinite")


def variable_name(path: tuple[Any, ...]) -> str:
    """Name of an NNX variable: its path, without the attributes in which containers and recorders keep their layers."""
    return "/".join(str(key) for key in path if key not in ("modules", "wrapped"))


def explained_variance(values: jax.Array, targets: jax.Array) -> jax.Array:
    """1 - Var(target - value) / Var(target); 0 for targets without variance."""
    variance = jnp.var(targets)
    return jnp.where(variance > 0, 1.0 - jnp.var(targets - values) / jnp.where(variance > 0, variance, 1.0), 0.0)


def evaluation_row(rewards: Any, lifespan: jax.Array, seen: Any, percentiles: Percentiles) -> MetricsRow:
    """The row of one evaluation.

    Args:
        rewards: return of each episode ``[N]``, per reward key.
        lifespan: steps of each episode, int ``[N]``.
        seen: sums over each episode of what networks and environments reported: ``{"net": {path: [N, ...]}, "env":
            ...}``.
        percentiles: over episodes, in addition to (rewards) or instead of (the rest) mean and standard deviation.
    """
    collect = Collector(percentiles)
    terms = {"eval/episode_reward": total(rewards)}
    if not isinstance(rewards, jax.Array):
        terms |= {f"eval/episode_reward/{path}": leaf for path, leaf in flat_names(rewards).items()}
    for name, term in terms.items():
        collect.scalars |= reduce(name, term, None)
        collect.reduced(name, term)
    collect.reduced("eval/lifespan", lifespan)
    steps = jnp.maximum(lifespan, 1)
    for group, leaves in seen.items():
        for path, leaf in leaves.items():
            collect.reduced(f"eval/{group}/{path}", leaf / expand_to(steps, leaf.ndim).astype(leaf.dtype))
    return collect.row("eval/nonfinite")
