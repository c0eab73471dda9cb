"""Metrics nested to any depth, with keys of any kind, come through rollout, replay, evaluation and the log."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo._pytree import split_dicts
from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig
from nnx_ppo.algorithms.ppo import train_ppo
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.envs.types import EnvState
from nnx_ppo.networks.containers import Sequential
from nnx_ppo.networks.factories import make_mlp_actor_critic
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput
from tests.helpers import RandomEnds


class Odd(StatefulModule):
    """Passes its input on, and reports how many steps it has seen of the episode under keys of mixed types."""

    def __init__(self, remembers: bool):
        self.remembers = remembers

    def initialize_state(self, batch_size: int) -> Any:
        return jnp.zeros(batch_size) if self.remembers else ()

    def reset_state(self, state: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, state)

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        state = jax.tree.map(lambda count: count + 1.0, state)
        count = state if self.remembers else jnp.ones(x.shape[0])
        metrics = {1: count, "a": {0: 2 * count, "b/c": jnp.ones(x.shape[0], jnp.int32)}, "empty": {}, "const": 3.0}
        return StatefulModuleOutput(next_state=state, output=x, regularization_loss=jnp.zeros(()), metrics=metrics)


@dataclasses.dataclass(frozen=True)
class IntegerKeys(RandomEnds):
    """Reports metrics under integer keys, the sign of the reward among them as an integer."""

    def reset(self, key: jax.Array) -> EnvState:
        state = super().reset(key)
        return state.replace(metrics={10: jnp.zeros((), jnp.int32), 2: {"deep": {3: jnp.ones(())}}})

    def step(self, state: EnvState, action: Any) -> EnvState:
        metrics = {10: jnp.full((), 7, jnp.int32), 2: {"deep": {3: jnp.ones(())}}}
        return super().step(state, action).replace(metrics=metrics)


@pytest.mark.parametrize("remembers", [False, True])
def test_sequence_mode_reports_what_stepping_reports(remembers):
    layer = Odd(remembers)
    dones = jnp.array([[False, False], [True, False], [False, False]])
    xs = jnp.zeros((3, 2, 4))
    unrolled = layer.unroll(layer.initialize_state(2), xs, dones).metrics
    assert list(unrolled) == [1, "a", "empty", "const"]
    expected = np.array([[1, 1], [2, 2], [1, 3]] if remembers else np.ones((3, 2)))
    np.testing.assert_array_equal(unrolled[1], expected)
    np.testing.assert_array_equal(unrolled["a"][0], 2 * expected)
    np.testing.assert_array_equal(unrolled["a"]["b/c"], np.ones((3, 2)))
    np.testing.assert_array_equal(unrolled["const"], [3.0, 3.0, 3.0])


def test_training_and_evaluation_log_them():
    base = make_mlp_actor_critic(3, 2, [4], [4], nnx.Rngs(0), normalize_obs=False)
    network = Sequential({"still": Odd(False), "odd": Odd(True), "base": base})
    level = LoggingLevel.NETWORK_METRICS | LoggingLevel.ENV_METRICS | LoggingLevel.LOSSES
    config = TrainConfig(
        ppo=PPOConfig(
            n_envs=4, rollout_length=5, total_steps=20, n_epochs=1, n_minibatches=2, logging_level=level,
            logging_percentiles=(0, 100),
        ),
        eval=EvalConfig(n_envs=2, max_episode_length=4, logging_level=level, logging_percentiles=None),
    )  # fmt: skip
    rows: list[dict[str, Any]] = []
    train_ppo(IntegerKeys(p_end=0.0), network, config, log_fn=lambda m, s: rows.append(m))
    row = rows[-1]
    assert {name: row[name] for name in row if name.startswith(("net/odd", "net/still/1", "env"))} == {
        "net/odd/1/p0": 1.0, "net/odd/1/p100": 5.0, "net/odd/a/0/p0": 2.0, "net/odd/a/0/p100": 10.0,
        "net/odd/a/b%2Fc/p0": 1.0, "net/odd/a/b%2Fc/p100": 1.0, "net/odd/const": 3.0,
        "net/still/1/p0": 1.0, "net/still/1/p100": 1.0,
        "env/10/p0": 7.0, "env/10/p100": 7.0, "env/2/deep/3/p0": 1.0, "env/2/deep/3/p100": 1.0,
    }  # fmt: skip
    assert row["eval/net/odd/1/mean"] == 2.5
    assert row["eval/net/odd/a/b%2Fc/mean"] == 1.0
    assert (row["eval/env/10/mean"], row["eval/env/2/deep/3/std"]) == (7.0, 0.0)
    assert row["nonfinite"] == 0.0


@pytest.mark.parametrize("tree", [{}, 1.0, {1: 1.0, "a": {"b": [2.0, 3.0], 0: {}}, "c": (4.0,)}], ids=str)
def test_split_dicts_joins_again(tree):
    parts, join = split_dicts(tree)
    assert join(parts) == tree
    assert str(join(list(parts))) == str(tree)
