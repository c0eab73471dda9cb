"""The keys that are emitted are exactly those that the table of metric names predicts."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig
from nnx_ppo.algorithms.metrics import TABLE
from nnx_ppo.algorithms.ppo import _prepare, new_training_state, train_ppo
from nnx_ppo.algorithms.rollout import make_evaluation
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.envs.types import EnvState
from tests.helpers import RandomEnds, lstm, mlp, trees

FLAGS = list(LoggingLevel)
EVERYTHING = LoggingLevel.ALL | LoggingLevel.ROLLOUT_OBS | LoggingLevel.DIAGNOSTICS


@dataclasses.dataclass(frozen=True)
class Reporting(RandomEnds):
    """Reports nested metrics, an integer and a boolean among them."""

    def reset(self, key: jax.Array) -> EnvState:
        return self._report(super().reset(key))

    def step(self, state: EnvState, action: Any) -> EnvState:
        return self._report(super().step(state, action))

    def _report(self, state: EnvState) -> EnvState:
        return state.replace(metrics={"terms": {0: jnp.zeros(()), 1: jnp.ones((), jnp.int32)}, "up": state.done})


@dataclasses.dataclass(frozen=True)
class Setup:
    """A training set-up, and what a reader of its network and environment would expect the stars to stand for."""

    env: Any
    make: Any
    facts: tuple[str, ...]
    leaves: dict[str, tuple[str, ...]]


def paths(root: str, parameters: str) -> tuple[str, ...]:
    return tuple(f"{root}/{each}" for each in parameters.split())


DENSE = "linear/kernel linear/bias"
CELL = "cell/dense_i/kernel cell/dense_h/kernel cell/dense_h/bias"
ARRAYS = ("the reward is one array", "the action is one array", "the observation is one array")
DICTS = ("the reward is a dict", "the action is a dict", "the observation is a dict")
ENV_LEAVES = ("terms/0", "terms/1", "up")
TWO = ("arm", "leg")
PER_KEY = (
    "losses/predicted_value",
    "rollout_batch/log_likelihood",
    "rollout_batch/reward",
    "rollout_batch/action",
    "eval/episode_reward",
)
SETUPS = {
    "feed-forward": Setup(
        RandomEnds(),
        mlp,
        ARRAYS,
        {
            "env": (),
            "net": paths("1/action/2", "mu sigma entropy"),
            "weights": (
                *paths("1/action/0", DENSE), *paths("1/action/1", DENSE), *paths("1/value/0", DENSE),
                *paths("1/value/1", DENSE),
            ),
            "diagnostics/dormant_units": ("1/action/0", "1/value/0"),
        },
    ),
    "recurrent": Setup(
        Reporting(),
        lstm,
        ARRAYS,
        {
            "env": ENV_LEAVES,
            "net": paths("heads/action/2", "mu sigma entropy"),
            "weights": (
                *paths("memory", CELL), *paths("heads/action/0", DENSE), *paths("heads/action/1", DENSE),
                *paths("heads/value/0", DENSE), *paths("heads/value/1", DENSE),
            ),
            "diagnostics/dormant_units": ("memory", "heads/action/0", "heads/value/0"),
        },
    ),
    "dict rewards": Setup(
        Reporting(trees=True),
        trees,
        DICTS,
        {
            "env": ENV_LEAVES,
            "net": (
                *paths("heads/action/arm/1", "mu sigma entropy"), *paths("heads/action/leg/1", "mu sigma entropy"),
            ),
            "weights": (
                *paths("streams/near", DENSE), *paths("streams/far/1", DENSE), *paths("trunk", CELL),
                *paths("heads/action/arm/0", DENSE), *paths("heads/action/leg/0", DENSE),
                *paths("heads/value/arm", DENSE), *paths("heads/value/leg", DENSE),
            ),
            "diagnostics/dormant_units": ("streams/near", "streams/far/1", "trunk"),
            "rollout_batch/obs": ("near", "far/x"),
            **dict.fromkeys(PER_KEY, TWO),
        },
    ),
}  # fmt: skip


def predicted(setup: Setup, level: LoggingLevel, percentiles: Any, *, evaluation: bool, also: Any = ()) -> set[str]:
    """Keys of a row, read off the table and nothing else."""
    keys: set[str] = set()
    for family in TABLE:
        if family.of_evaluation is not evaluation or not family.is_asked(level):
            continue
        if family.when and family.when not in (*setup.facts, *also):
            continue
        for key in family.keys(percentiles):
            keys |= {key.replace("*", leaf) for leaf in (setup.leaves[before_star(key)] if "*" in key else ("",))}
    return keys


def before_star(key: str) -> str:
    """Root of a pattern; evaluations show the same metrics of networks and environments as training."""
    root = key.split("/*")[0]
    return root.removeprefix("eval/") if root in ("eval/net", "eval/env") else root


def config(level: LoggingLevel, percentiles: Any) -> PPOConfig:
    return PPOConfig(
        n_envs=4, rollout_length=3, total_steps=24, n_epochs=1, n_minibatches=2, learning_rate=1e-3,
        logging_level=level, logging_percentiles=percentiles,
    )  # fmt: skip


@pytest.fixture(scope="module", params=SETUPS)
def setup(request):
    return SETUPS[request.param]


@pytest.fixture(scope="module")
def state(setup):
    return new_training_state(setup.env, setup.make(), 4, 0)


PERCENTILES = (0, 2.5, 100)
CASES = [(flag, PERCENTILES) for flag in FLAGS] + [
    (level, percentiles)
    for level in (LoggingLevel.NONE, LoggingLevel.ALL, EVERYTHING)
    for percentiles in (None, PERCENTILES)
]


@pytest.mark.parametrize(("level", "percentiles"), CASES, ids=str)
def test_a_level_emits_what_the_table_says(setup, state, level, percentiles):
    # The names of a row are part of the compiled step's type: there is no need to compile or run it.
    step, arrays = _prepare(setup.env, state, config(level, percentiles))
    row = jax.eval_shape(step.jitted, arrays.networks, arrays.rest)[2].row
    expected = predicted(setup, level, percentiles, evaluation=False)
    assert {name for name in expected if not name.startswith("throughput/")} == set(row.names)
    assert row.values.shape == (len(row.names),)


@pytest.mark.parametrize("percentiles", [None, (50,)], ids=str)
@pytest.mark.parametrize(
    "level", [LoggingLevel.NONE, LoggingLevel.NETWORK_METRICS, LoggingLevel.ENV_METRICS, EVERYTHING], ids=str
)
def test_an_evaluation_emits_what_the_table_says(setup, state, level, percentiles):
    evaluate = make_evaluation(setup.env, state.networks, 2, 3, percentiles, level)
    found = jax.eval_shape(lambda: evaluate(state.networks, jax.random.key(0)))
    assert set(found.row.names) == predicted(setup, level, percentiles, evaluation=True)


def test_the_keys_of_a_run_are_those_of_the_table_at_every_iteration(setup):
    rows: list[tuple[dict[str, Any], int]] = []
    evaluation = EvalConfig(every_steps=24, n_envs=2, max_episode_length=3, logging_level=EVERYTHING)
    run = TrainConfig(ppo=config(EVERYTHING, None), eval=evaluation)
    train_ppo(setup.env, setup.make(), run, log_fn=lambda m, s: rows.append((m, s)))
    training = predicted(setup, EVERYTHING, None, evaluation=False)
    at_evaluations = predicted(setup, EVERYTHING, evaluation.logging_percentiles, evaluation=True)
    at_evaluations |= {"throughput/eval_sps"}
    assert [steps for _, steps in rows] == [0, 12, 24]
    assert set(rows[0][0]) == at_evaluations
    assert set(rows[1][0]) == training | {"throughput/compile_s"}
    assert set(rows[2][0]) == training | at_evaluations
    assert all(type(value) is float for metrics, _ in rows for value in metrics.values())
    assert np.isfinite([value for metrics, _ in rows for value in metrics.values()]).all()


def test_every_condition_of_the_table_is_met_by_some_set_up():
    met = {fact for each in SETUPS.values() for fact in each.facts}
    met |= {"", "first iteration", "an evaluation ran", "a video was made"}
    assert {family.when for family in TABLE} == met


def test_names_stand_in_the_table_once():
    assert len({family.name for family in TABLE}) == len(TABLE)


def test_every_level_asks_for_something_and_all_leaves_out_the_observations():
    assert {flag for flag in FLAGS if any(flag in family.level for family in TABLE)} == set(FLAGS)
    opt_in = LoggingLevel.ROLLOUT_OBS | LoggingLevel.DIAGNOSTICS
    assert set(FLAGS) == set(LoggingLevel.ALL) | set(opt_in)
    assert not opt_in & LoggingLevel.ALL
