"""A run that is resumed from a checkpoint is the run that was never stopped: parameters, moments, log, evaluations."""

import dataclasses
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from nnx_ppo.algorithms.checkpoint_loading import load_checkpoint
from nnx_ppo.algorithms.checkpointing import make_checkpoint_fn
from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig
from nnx_ppo.algorithms.ppo import new_training_state, train_ppo
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.envs import make_env
from nnx_ppo.networks import (
    AR1VariationalBottleneck,
    Dense,
    Filter,
    Normalizer,
    NormalTanhSampler,
    PPOAdapter,
    Sequential,
    make_lstm_actor_critic,
)
from nnx_ppo.wrappers import EpisodeWrapper
from tests.contracts.test_replay_in_rollouts import graph
from tests.helpers import RandomEnds, assert_same_bits, bits, mlp

PPO = PPOConfig(
    n_envs=4,
    rollout_length=5,
    total_steps=80,
    n_epochs=2,
    n_minibatches=2,
    logging_level=LoggingLevel.LOSSES | LoggingLevel.ROLLOUT_STATS | LoggingLevel.WEIGHTS,
)
EVAL = EvalConfig(every_steps=40, n_envs=3, max_episode_length=6)


def cue() -> Any:
    """A memory task with staggered time limits: counters, cues and keys in the environment states."""
    return EpisodeWrapper(make_env("probe:memory_cue", delay=1), 3)


def cue_network(seed: int = 0) -> Any:
    env = cue()
    return make_lstm_actor_critic(env.observation_size, env.action_size, 4, [4], [4], nnx.Rngs(seed))


def graph_network() -> Any:
    rngs = nnx.Rngs(0)
    action = Sequential([Dense(2, 4, rngs), AR1VariationalBottleneck(2, rngs), Dense(2, 4, rngs)])
    heads = PPOAdapter(action=Sequential([action, NormalTanhSampler(rngs, 0.1)]), value=Dense(2, 1, rngs))
    return Sequential([Normalizer(3), graph(rngs), Filter("motor"), heads])


def shifted(network: nnx.Module) -> Any:
    """Other parameters and random streams of the same network."""
    for _, node in nnx.iter_graph(network):
        if isinstance(node, nnx.Param):
            node.set_value(node.get_value() + 1)
    return network


CASES: dict[str, Any] = {
    # name: environment, network, other fields of the configuration
    "mlp, schedule, clipping, weight decay": (
        RandomEnds(),
        mlp,
        {"learning_rate": optax.linear_schedule(1e-2, 0.0, 16), "gradient_clipping": 0.5, "weight_decay": 1e-2},
    ),
    "graph, delays, lstm, variational": (RandomEnds(), graph_network, {"learning_rate": 1e-2}),
    "lstm, wrapped environment": (cue(), cue_network, {"learning_rate": 1e-2}),
}


def run(env: Any, network: Any, config: TrainConfig, **options: Any) -> tuple[Any, list[Any]]:
    rows: list[Any] = []
    result = train_ppo(env, network, config, log_fn=lambda m, s: rows.append((s, m)), **options)
    return result, rows


@pytest.mark.parametrize("case", CASES)
def test_resume_is_bit_identical(tmp_path, case):
    env, make, fields = CASES[case]
    config = TrainConfig(ppo=dataclasses.replace(PPO, **fields), eval=EVAL, checkpoint_every_steps=40)
    with make_checkpoint_fn(tmp_path, config) as checkpoint_fn:
        whole, rows = run(env, make(), config, checkpoint_fn=checkpoint_fn)
    assert [steps for steps, _ in rows] == [0, 20, 40, 60, 80]

    network = shifted(make())
    ppo = config.ppo
    fresh = new_training_state(env, network, 4, 99, ppo.learning_rate, ppo.gradient_clipping, ppo.weight_decay)
    loaded = load_checkpoint(tmp_path / "step_0000000040", network, fresh.optimizer)
    again, later = run(env, network, config, initial_state=loaded["training_state"])
    # The evaluation before the first iteration, of the policy that was restored; then the rows of the other run.
    assert [steps for steps, _ in later] == [40, 60, 80]
    assert later[0][1] == {name: value for name, value in rows[2][1].items() if name.startswith("eval/")}
    np.testing.assert_equal(later[1:], rows[3:])
    assert again.eval_history == whole.eval_history[1:]
    assert (again.total_steps, again.total_iterations) == (80, 2)
    a, b = whole.training_state, again.training_state
    assert_same_bits(nnx.state(a.networks), nnx.state(b.networks))
    assert_same_bits(nnx.state(a.optimizer), nnx.state(b.optimizer))
    assert_same_bits((a.network_states, a.env_states, a.rng_key), (b.network_states, b.env_states, b.rng_key))
    assert jax.tree.structure(a.env_states) == jax.tree.structure(b.env_states)
    assert b.networks is network


def test_an_interrupted_run_is_saved_without_an_evaluation_and_goes_on_to_the_bit(tmp_path):
    env, make, _ = CASES["lstm, wrapped environment"]
    config = TrainConfig(ppo=dataclasses.replace(PPO, learning_rate=1e-2), eval=EVAL, checkpoint_every_steps=10**6)
    whole, rows = run(env, make(), config)

    asked: list[bool] = []

    def interrupt() -> bool:
        asked.append(len(asked) == 2)  # while the third iteration runs
        return asked[-1]

    phases: list[str] = []
    with make_checkpoint_fn(tmp_path, config) as checkpoint_fn:
        part, first = run(
            env, make(), config, checkpoint_fn=checkpoint_fn, interrupt_fn=interrupt, on_phase=phases.append
        )
    assert part.total_steps == 60
    assert phases[-2:] == ["saving", "training"]
    assert [steps for steps, _ in first] == [0, 20, 40, 60]
    assert not [name for name in first[-1][1] if name.startswith("eval")]
    network = shifted(make())
    loaded = load_checkpoint(
        tmp_path / "step_0000000060", network, new_training_state(env, network, 4, 9, 1e-2).optimizer
    )
    config = dataclasses.replace(config, eval=dataclasses.replace(config.eval, initial=False))
    again, later = run(env, network, config, initial_state=loaded["training_state"])
    np.testing.assert_equal(first + later, rows)
    assert_same_bits(nnx.state(whole.training_state.networks), nnx.state(again.training_state.networks))


def test_a_checkpoint_comes_after_the_row_of_its_steps(tmp_path):
    env, make, _ = CASES["lstm, wrapped environment"]
    config = TrainConfig(ppo=dataclasses.replace(PPO, learning_rate=1e-2), eval=EVAL, checkpoint_every_steps=40)
    seen: list[Any] = []
    train_ppo(
        env,
        make(),
        config,
        log_fn=lambda m, s: seen.append(("log", s)),
        checkpoint_fn=lambda state, s: seen.append(("saved", s)),
    )
    steps = [0, 20, 40, 60, 80]
    expected = [("log", s) for s in steps]
    for s in (40, 80):
        expected.insert(expected.index(("log", s)) + 1, ("saved", s))
    assert seen == expected


def test_more_steps_can_be_asked_for(tmp_path):
    env, make, _ = CASES["lstm, wrapped environment"]
    config = TrainConfig(ppo=dataclasses.replace(PPO, learning_rate=1e-2), eval=EvalConfig(enabled=False))
    whole = make()
    run(env, whole, config)
    network = make()
    with make_checkpoint_fn(tmp_path) as checkpoint_fn:
        run(env, network, config, total_steps=40, checkpoint_fn=checkpoint_fn)
    optimizer = new_training_state(env, network, 4, 9).optimizer
    state = load_checkpoint(tmp_path / "step_0000000040", network, optimizer)["training_state"]
    result, rows = run(env, network, config, total_steps=40, initial_state=state)
    assert (rows, result.total_iterations, result.total_steps) == ([], 0, 40)
    state = load_checkpoint(tmp_path / "step_0000000040", network, optimizer)["training_state"]
    # The learning rate is that of the optimizer: a fresh one with the default rate learns otherwise.
    run(env, network, config, initial_state=state)
    assert any((x != y).any() for x, y in zip(bits(nnx.state(whole)), bits(nnx.state(network)), strict=True))
    right = new_training_state(env, network, 4, 9, 1e-2).optimizer
    state = load_checkpoint(tmp_path / "step_0000000040", network, right)["training_state"]
    run(env, network, config, initial_state=state)
    assert_same_bits(nnx.state(whole), nnx.state(network))
