"""Lesions: how much the return drops when a layer or a single unit is silenced, with the same start states for all."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nnx_ppo._pytree import total
from nnx_ppo.algorithms.rollout import Evaluation, make_evaluation
from nnx_ppo.algorithms.types import LoggingLevel, RLEnv
from nnx_ppo.envs.vector import vectorize
from nnx_ppo.networks import naming
from nnx_ppo.networks._rng import as_key
from nnx_ppo.networks.adapter import is_sample
from nnx_ppo.networks.interventions import Scale, with_interventions
from nnx_ppo.networks.recording import Patterns, choose_layers
from nnx_ppo.networks.types import StatefulModule


@dataclasses.dataclass(frozen=True)
class Lesion:
    """What silencing one layer or unit did.

    Attributes:
        path: canonical layer path.
        unit: number of the unit (feature axes flattened), ``None`` for the whole layer.
        episode_reward: mean sum of rewards of an episode with the lesion.
        drop: mean of intact minus lesioned, episode by episode; positive where the lesion does harm.
        standard_error: of the drop, over episodes; NaN for a single one.
    """

    path: str
    unit: int | None
    episode_reward: float
    drop: float
    standard_error: float


@dataclasses.dataclass(frozen=True)
class LesionStudy:
    """Lesions of a network, the one with the largest drop first.

    Attributes:
        lesions: one per layer or unit.
        episode_reward: mean sum of rewards of an episode of the intact network.
        standard_error: of that mean, over episodes.
        n_episodes: episodes of each lesion.
    """

    lesions: tuple[Lesion, ...]
    episode_reward: float
    standard_error: float
    n_episodes: int


def lesion_study(
    env: RLEnv,
    network: StatefulModule,
    *,
    n_episodes: int,
    max_episode_length: int,
    key: Any,
    units_of: str | None = None,
    include: Patterns = None,
    exclude: Patterns = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> LesionStudy:
    """Silence layers, or units, one at a time, and compare the return with that of the intact network.

    Every lesion sees the same start states and the same random numbers, so that its drop is a difference within
    episodes. What is silenced puts out 0, to all that read it. All lesions share one compiled program; ``network``
    stays as it is.

    Args:
        env: a single environment.
        network: the network; it acts in eval mode.
        n_episodes: episodes of each lesion, run in parallel.
        max_episode_length: steps after which an episode is cut.
        key: PRNG key or int seed of start states and everything random.
        units_of: canonical path of a layer: each of its units is silenced by itself. Without it each layer is, but for
            action samplers and layers of whole numbers.
        include: glob patterns on the canonical layer path; only these layers. Not with ``units_of``.
        exclude: glob patterns; not these layers. Not with ``units_of``.
        on_progress: called with the number of lesions that are done, and that of all.

    Raises:
        ValueError: a number below 1, a path or pattern that is no layer, or no layer that can be silenced.

    Example:
        >>> from flax import nnx
        >>> from nnx_ppo.envs import make_env
        >>> from nnx_ppo.networks import make_mlp_actor_critic
        >>> env = make_env("probe:action_reward")
        >>> network = make_mlp_actor_critic(1, 1, [4], [4], nnx.Rngs(0))
        >>> study = lesion_study(env, network, n_episodes=2, max_episode_length=5, key=0, include="1/value/*")
        >>> [(lesion.path, lesion.drop) for lesion in study.lesions]
        [('1/value/0', 0.0), ('1/value/1', 0.0)]
    """
    for name, number in (("n_episodes", n_episodes), ("max_episode_length", max_episode_length)):
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}.")
    if units_of is not None and (include is not None or exclude is not None):
        raise ValueError("units_of names one layer; include and exclude choose among layers: give one or the other.")
    obs = vectorize(env).spec().obs
    sizes = silenceable(network, obs)
    if units_of is not None and units_of not in sizes:
        raise ValueError(
            f"units_of={units_of!r} is no layer whose units can be silenced; near names: "
            f"{naming.near_names(units_of, sizes) or list(sizes)}."
        )
    paths = choose_layers(list(sizes), include, exclude) if units_of is None else [units_of]
    intact = {path: jnp.ones(sizes[path].shape, sizes[path].dtype) for path in paths}
    factors = {path: nnx.Variable(ones) for path, ones in intact.items()}
    changed = with_interventions(network, {path: Scale(None, factors[path]) for path in paths}, obs=obs)
    evaluate = make_evaluation(env, changed, n_episodes, max_episode_length, None, LoggingLevel.NONE)

    def returns(path: str, unit: int | None) -> np.ndarray:
        factors[path][...] = _silenced(intact[path], unit)
        try:
            return _returns(evaluate(changed, as_key(key)))
        finally:
            factors[path][...] = intact[path]

    baseline = _returns(evaluate(changed, as_key(key)))
    chosen: list[tuple[str, int | None]] = [(path, None) for path in paths]
    if units_of is not None:
        chosen = [(units_of, unit) for unit in range(intact[units_of].size)]
    lesions = []
    for i, (path, unit) in enumerate(chosen, 1):
        lesions.append(compare(path, unit, baseline, returns(path, unit)))
        if on_progress is not None:
            on_progress(i, len(chosen))
    ranked = tuple(sorted(lesions, key=lambda lesion: -np.nan_to_num(lesion.drop, nan=np.inf)))
    return LesionStudy(ranked, float(baseline.mean()), _standard_error(baseline), n_episodes)


def silenceable(network: StatefulModule, obs: Any) -> dict[str, Any]:
    """Return shape and dtype of the output of every layer that can be silenced, by canonical path as in recordings.

    Args:
        network: any stateful network.
        obs: example observation without batch axis.

    Raises:
        ValueError: there is none.
    """
    found = {}
    for layer, output in naming.layer_outputs(network, obs).items():
        arrays = {} if is_sample(output) else naming.flatten_activations(output)
        for below, leaf in arrays.items():
            if jnp.issubdtype(getattr(leaf, "dtype", np.int32), jnp.floating):
                found["/".join(part for part in (layer, below) if part)] = leaf
    if not found:
        raise ValueError(f"{type(network).__name__} has no layer whose output is an array of floats to silence.")
    return found


def compare(path: str, unit: int | None, intact: Sequence[float] | np.ndarray, lesioned: Any) -> Lesion:
    """Return what a lesion did, from the returns of the same episodes without and with it, both ``[N]``."""
    intact, lesioned = np.asarray(intact, float), np.asarray(lesioned, float)
    drop = intact - lesioned
    return Lesion(path, unit, float(lesioned.mean()), float(drop.mean()), _standard_error(drop))


def _standard_error(x: np.ndarray) -> float:
    return float(x.std(ddof=1) / np.sqrt(len(x))) if len(x) > 1 else float("nan")


def _silenced(factor: jax.Array, unit: int | None) -> jax.Array:
    if unit is None:
        return jnp.zeros_like(factor)
    return factor.reshape(-1).at[unit].set(0).reshape(factor.shape)


def _returns(evaluation: Evaluation) -> np.ndarray:
    return np.asarray(total(evaluation.rewards), float)
