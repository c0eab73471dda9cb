"""train_ppo: what it reports and when, what it leaves behind, how it ends, what it compiles."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig
from nnx_ppo.algorithms.metrics import MetricsRow
from nnx_ppo.algorithms.ppo import new_training_state, ppo_step, train_ppo
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.envs.types import EnvState
from nnx_ppo.networks.factories import make_mlp_actor_critic
from tests.helpers import RandomEnds, assert_same_bits, bits, lstm, mlp, trees
from tests.helpers_compile import compilations

ENV = RandomEnds()
PPO = PPOConfig(n_envs=4, rollout_length=5, total_steps=60, n_epochs=2, n_minibatches=2, learning_rate=1e-2)
NO_EVAL = EvalConfig(enabled=False)
CONFIG = TrainConfig(ppo=PPO, eval=NO_EVAL)
EVAL = EvalConfig(every_steps=30, n_envs=3, max_episode_length=6, logging_percentiles=(50,))


def test_log_fn_is_called_once_per_iteration_with_python_numbers():
    rows: list[Any] = []
    result = train_ppo(ENV, mlp(), CONFIG, log_fn=lambda m, s: rows.append((m, s)))
    assert [steps for _, steps in rows] == [20, 40, 60]
    assert all(type(steps) is int for _, steps in rows)
    keys = {
        "losses/actor_loss", "losses/critic_loss", "losses/entropy", "losses/regularization", "losses/total",
        "rollout_batch/reward/mean", "nonfinite",
    }  # fmt: skip
    for metrics, _ in rows:
        assert set(metrics) == keys
        assert all(type(value) is float for value in metrics.values())
        assert metrics["losses/total"] == pytest.approx(
            metrics["losses/actor_loss"] + metrics["losses/critic_loss"] + metrics["losses/regularization"], rel=1e-4
        )
    assert result.final_metrics == rows[-1][0]
    assert (result.total_steps, result.total_iterations) == (60, 3)


def test_none_calls_log_fn_with_an_empty_dict():
    rows: list[Any] = []
    ppo = dataclasses.replace(PPO, logging_level=LoggingLevel.NONE)
    train_ppo(ENV, mlp(), TrainConfig(ppo=ppo, eval=NO_EVAL), log_fn=lambda m, s: rows.append(m))
    assert rows == [{}, {}, {}]


def test_evaluations_come_at_the_start_on_schedule_and_at_the_end():
    rows: list[Any] = []
    result = train_ppo(ENV, mlp(), TrainConfig(ppo=PPO, eval=EVAL), log_fn=lambda m, s: rows.append((m, s)))
    assert [s for m, s in rows if "eval/episode_reward/mean" in m] == [0, 40, 60]
    assert [entry["step"] for entry in result.eval_history] == [0, 40, 60]
    assert [s for _, s in rows] == [0, 20, 40, 60]
    assert set(rows[0][0]) == {
        "eval/episode_reward/mean", "eval/episode_reward/std", "eval/episode_reward/p50", "eval/lifespan/p50",
        "eval/nonfinite",
    }  # fmt: skip


def test_evaluation_changes_nothing_that_is_learned_and_starts_alike_each_time():
    plain, evaluated = lstm(), lstm()
    train_ppo(ENV, plain, CONFIG)
    train_ppo(ENV, evaluated, TrainConfig(ppo=PPO, eval=EVAL))
    assert_same_bits(nnx.state(plain), nnx.state(evaluated))
    frozen = TrainConfig(ppo=dataclasses.replace(PPO, learning_rate=0.0), eval=EVAL)
    history = train_ppo(
        RandomEnds(), make_mlp_actor_critic(3, 2, [4], [4], nnx.Rngs(0), normalize_obs=False), frozen
    ).eval_history
    assert len({entry["eval/episode_reward/mean"] for entry in history}) == 1


def test_training_is_reproducible_and_follows_the_seed():
    nets = [mlp() for _ in range(3)]
    for network, seed in zip(nets, (1, 1, 2), strict=True):
        train_ppo(ENV, network, CONFIG, seed=seed)
    assert_same_bits(nnx.state(nets[0]), nnx.state(nets[1]))
    assert not np.array_equal(bits(nnx.state(nets[0], nnx.Param))[0], bits(nnx.state(nets[2], nnx.Param))[0])


@pytest.mark.parametrize("make", [mlp, lstm])
def test_ppo_step_is_what_train_ppo_iterates(make):
    trained, stepped = make(), make()
    train_ppo(ENV, trained, CONFIG, seed=3)
    state = new_training_state(ENV, stepped, PPO.n_envs, 3, PPO.learning_rate)
    for i in range(3):
        state, metrics = ppo_step(ENV, state, PPO)
        assert state.steps_taken == 20 * (i + 1)
    assert set(metrics) >= {"losses/total"}
    assert_same_bits(nnx.state(trained), nnx.state(stepped))


def test_ppo_step_takes_the_positional_form_too():
    first, second = mlp(), mlp()
    state = new_training_state(ENV, first, 4, 0, 1e-2)
    ppo_step(ENV, state, PPO)
    state = new_training_state(ENV, second, 4, 0, 1e-2)
    ppo_step(ENV, state, 4, 5, 0.95, 0.99, 0.2, True, False, n_epochs=2, n_minibatches=2)
    assert_same_bits(nnx.state(first), nnx.state(second))


def test_resume_continues_bit_for_bit():
    whole, first = lstm(), lstm()
    train_ppo(ENV, whole, CONFIG)
    part = train_ppo(ENV, first, CONFIG, total_steps=40)
    fresh, kept = lstm(seed=5), bits(nnx.state(first))
    rows: list[int] = []
    result = train_ppo(ENV, fresh, CONFIG, initial_state=part.training_state, log_fn=lambda m, s: rows.append(s))
    assert rows == [60]
    assert (result.total_steps, result.total_iterations) == (60, 1)
    assert_same_bits(nnx.state(whole), nnx.state(fresh))
    assert_same_bits(kept, nnx.state(first))  # the state it came from can be used again
    again = lstm(seed=6)
    train_ppo(ENV, again, CONFIG, initial_state=part.training_state)
    assert_same_bits(nnx.state(whole), nnx.state(again))


def test_checkpoints_are_complete_states():
    saved: dict[int, Any] = {}

    def checkpoint_fn(state, steps):
        assert state.steps_taken == steps
        saved[steps] = (state, bits(nnx.state(state.networks)), bits((state.env_states, state.network_states)))

    network = lstm()
    config = TrainConfig(ppo=PPO, eval=NO_EVAL, checkpoint_every_steps=40)
    train_ppo(ENV, network, config, checkpoint_fn=checkpoint_fn)
    assert list(saved) == [40, 60]
    state, _, arrays = saved[40]
    assert_same_bits(arrays, (state.env_states, state.network_states))  # alive after later, donated iterations
    assert_same_bits(saved[60][1], nnx.state(network))


class Boom(Exception):
    pass


@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt])
def test_networks_hold_the_last_finished_iteration_after_an_exception(error):
    snapshots = []
    network, reference = mlp(), mlp()

    def log_fn(metrics, steps):
        snapshots.append(bits(nnx.state(network)))
        if steps == 40:
            raise error

    with pytest.raises(error):
        train_ppo(ENV, network, CONFIG, log_fn=log_fn)
    train_ppo(ENV, reference, CONFIG, total_steps=40)
    assert_same_bits(nnx.state(reference), nnx.state(network))
    assert_same_bits(snapshots[1], nnx.state(network))


def test_ctrl_c_while_the_device_works_waits_for_the_iteration_in_flight(monkeypatch):
    network, reference = mlp(), mlp()
    fetch, fetched = MetricsRow.to_dict, []

    def interrupted(row):
        fetched.append(row)
        if len(fetched) == 2:
            raise KeyboardInterrupt
        return fetch(row)

    monkeypatch.setattr(MetricsRow, "to_dict", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_ppo(ENV, network, CONFIG)
    monkeypatch.undo()
    train_ppo(ENV, reference, CONFIG, total_steps=40)
    assert_same_bits(nnx.state(reference), nnx.state(network))


@dataclasses.dataclass(frozen=True)
class FailsOnTheDevice(RandomEnds):
    """Raises from inside the compiled step, when it has been stepped ``after`` times."""

    after: int = 12

    def step(self, state: EnvState, action: Any) -> EnvState:
        def check(count: Any) -> Any:
            if count >= self.after:
                raise Boom("the simulator failed")
            return count

        count = state.metrics["count"] + 1
        state = super().step(state, action)
        count = jax.pure_callback(check, jax.ShapeDtypeStruct((), jnp.int32), count, vmap_method="sequential")
        return state.replace(metrics={"count": count})

    def reset(self, key: jax.Array) -> EnvState:
        return super().reset(key).replace(metrics={"count": jnp.zeros((), jnp.int32)})


def test_a_failure_on_the_device_leaves_the_iteration_before_it():
    env = FailsOnTheDevice(p_end=0.0)
    network, reference = mlp(), mlp()
    with pytest.raises(Exception, match="the simulator failed"):
        train_ppo(env, network, CONFIG)
    train_ppo(FailsOnTheDevice(p_end=0.0, after=1000), reference, CONFIG, total_steps=40)
    assert_same_bits(nnx.state(reference), nnx.state(network))


def test_the_second_iteration_and_a_second_run_compile_nothing():
    train_ppo(ENV, mlp(), CONFIG, total_steps=20)
    with compilations() as compiled:
        train_ppo(ENV, mlp(seed=1), CONFIG, total_steps=60, seed=4)
    assert compiled == []


def test_phases_are_told():
    phases: list[str] = []
    train_ppo(ENV, mlp(), TrainConfig(ppo=PPO, eval=EVAL), on_phase=phases.append)
    assert phases == ["compiling", "evaluating", "training", "training", *2 * ["evaluating", "training"]]


@pytest.mark.parametrize("level", [flag for flag in LoggingLevel if flag is not LoggingLevel.THROUGHPUT])
def test_a_level_adds_its_own_keys_and_never_changes_what_is_learned(level):
    reference, network = mlp(), mlp()
    train_ppo(ENV, reference, CONFIG)
    rows: list[Any] = []
    ppo = dataclasses.replace(PPO, logging_level=level, logging_percentiles=(0, 50))
    train_ppo(ENV, network, TrainConfig(ppo=ppo, eval=NO_EVAL), log_fn=lambda m, s: rows.append(m))
    assert_same_bits(nnx.state(reference), nnx.state(network))
    assert set(rows[0]) == set(rows[-1]) > ({"nonfinite"} if level is not LoggingLevel.ENV_METRICS else set())
    assert np.isfinite(list(rows[-1].values())).all()


CHANGES: dict[str, Any] = {
    "n_envs": 8, "rollout_length": 6, "total_steps": 20, "gae_lambda": 0.5, "discounting_factor": 0.5,
    "clip_range": 1e-3, "learning_rate": optax.linear_schedule(1e-2, 0.0, 6), "normalize_advantages": False,
    "combine_advantages": True, "n_epochs": 1, "n_minibatches": 4, "critic_loss_weight": 0.1,
    "gradient_clipping": 1e-3, "weight_decay": 0.5,
}  # fmt: skip


@pytest.mark.parametrize(
    "field", [f.name for f in dataclasses.fields(PPOConfig) if not f.name.startswith(("logging", "on_"))]
)
def test_every_field_has_an_effect_on_what_is_learned(field):
    env, make = ENV, mlp
    if field == "combine_advantages":
        env, make = RandomEnds(trees=True), lambda: trees(recurrent=False)
    reference, network = make(), make()
    train_ppo(env, reference, CONFIG)
    train_ppo(env, network, TrainConfig(ppo=dataclasses.replace(PPO, **{field: CHANGES[field]}), eval=NO_EVAL))
    before, after = bits(nnx.state(reference, nnx.Param)), bits(nnx.state(network, nnx.Param))
    assert any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_finished_run_resumed_does_nothing():
    part = train_ppo(ENV, mlp(), CONFIG)
    rows: list[Any] = []
    network = mlp(seed=9)
    result = train_ppo(
        ENV,
        network,
        TrainConfig(ppo=PPO, eval=EVAL),
        initial_state=part.training_state,
        log_fn=lambda m, s: rows.append(s),
    )
    assert rows == []
    assert (result.total_steps, result.total_iterations) == (60, 0)
    assert_same_bits(nnx.state(network), nnx.state(part.training_state.networks))
