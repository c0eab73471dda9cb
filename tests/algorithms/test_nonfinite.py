"""NaN and infinity in training: found where they first appear, raised, skipped or let through."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig
from nnx_ppo.algorithms.diagnostics import dormant_units
from nnx_ppo.algorithms.nonfinite import Census, NonFiniteError, Source, nonfinite_error, require_finite
from nnx_ppo.algorithms.ppo import new_training_state, ppo_step, train_ppo
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.envs.types import EnvState
from nnx_ppo.networks.adapter import PPOAdapter
from nnx_ppo.networks.containers import Sequential
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.sampling_layers import NormalTanhSampler
from tests.helpers import RandomEnds, assert_same_bits, bits, lstm, mlp

N, T = 4, 3


@dataclasses.dataclass(frozen=True)
class Poison:
    """Step ``at`` of the environment that drew a ``ticket`` above ``above`` shows ``value`` in one place."""

    where: str = "reward"
    at: int = 5
    above: float = 2.0
    value: float = np.nan
    observation_size: int = 3
    action_size: int = 2

    def reset(self, key: jax.Array) -> EnvState:
        return self._state(jnp.zeros((), int), jax.random.uniform(key))

    def step(self, state: EnvState, action: Any) -> EnvState:
        return self._state(state.data["t"] + 1, state.data["ticket"])

    def _state(self, t: jax.Array, ticket: jax.Array) -> EnvState:
        bad = jnp.where((t == self.at) & (ticket >= self.above), self.value, 0.0)
        place = {name: bad if name == self.where else jnp.zeros(()) for name in ("reward", "obs", "metrics")}
        return EnvState(
            obs=jnp.sin(t.astype(ticket.dtype) + ticket) * jnp.ones(3) + jnp.zeros(3).at[1].set(place["obs"]),
            reward=place["reward"] + ticket,
            done=jnp.zeros((), bool),
            info={},
            metrics={"x": place["metrics"]},
            data={"t": t, "ticket": ticket},
        )


def config(on_nonfinite: str = "raise", **changes: Any) -> TrainConfig:
    ppo: dict[str, Any] = {
        "n_envs": N, "rollout_length": T, "total_steps": 4 * N * T, "n_epochs": 1, "n_minibatches": 2,
        "learning_rate": 1e-3, "on_nonfinite": on_nonfinite, **changes,
    }  # fmt: skip
    return TrainConfig(ppo=PPOConfig(**ppo), eval=EvalConfig(enabled=False), seed=3)


def one_of(where: str, **changes: Any) -> tuple[Poison, int]:
    """The environment in which exactly one of ``N`` goes wrong, and which."""
    tickets = np.asarray(new_training_state(Poison(), mlp(), N, 3).env_states.data["ticket"])
    return Poison(where, above=float(tickets.max()), **changes), int(tickets.argmax())


@pytest.mark.parametrize("make", [mlp, lstm])
def test_a_reward_is_found_and_the_network_holds_the_iteration_before(make):
    env, which = one_of("reward", value=np.inf)
    network, rows = make(), []
    with pytest.raises(
        NonFiniteError, match=f"The reward is NaN or infinite in environment {which} at rollout step 1,"
    ):
        train_ppo(env, network, config(), log_fn=lambda m, s: rows.append(s))
    # Step 5 of the episode is step 1 of the second iteration: t = 3, 4, 5 lie behind steps 0, 1, 2 of it.
    assert rows == [N * T]
    before = make()
    train_ppo(dataclasses.replace(env, above=2.0), before, config(), total_steps=N * T)
    assert_same_bits(nnx.state(network), nnx.state(before))


def test_the_error_says_what_where_and_when():
    env, which = one_of("obs", at=4)
    with pytest.raises(NonFiniteError) as caught:
        train_ppo(env, mlp(), config())
    # The observation after 4 steps is the one that step 1 of the second iteration acts on.
    error = caught.value
    assert (error.path, error.step, error.env) == ("observation", (T + 1) * N, which)
    assert error.counts["observation"] == 1
    assert error.counts["action"] == 2
    assert isinstance(error, FloatingPointError)
    for word in ("observation", f"environment {which}", "16 environment steps", "on_nonfinite='skip'"):
        assert word in str(error)


def test_one_step_raises_too_and_leaves_the_network():
    env, _ = one_of("reward", at=2)
    network = mlp()
    start = new_training_state(env, network, N, 3)
    before = bits(nnx.state(network))
    with pytest.raises(NonFiniteError, match="The reward"):
        ppo_step(env, start, config().ppo)
    for x, y in zip(before, bits(nnx.state(network)), strict=True):
        np.testing.assert_array_equal(x, y)


def test_metrics_of_an_environment_are_no_part_of_training():
    rows: list[dict[str, float]] = []
    env, _ = one_of("metrics")
    train_ppo(env, mlp(), config(logging_level=LoggingLevel.ENV_METRICS), log_fn=lambda m, s: rows.append(m))
    assert [row["nonfinite"] for row in rows] == [0.0, 1.0, 0.0, 0.0]
    assert all(row["env/x/mean"] == 0.0 for row in rows)


def test_a_step_size_that_bursts_the_parameters_is_named():
    env = RandomEnds()
    network = mlp()
    with pytest.raises(NonFiniteError, match="Lower the learning rate") as caught:
        train_ppo(env, network, config(learning_rate=1e38))
    assert caught.value.path.startswith(("parameter/", "loss", "value", "statistic"))
    assert all(np.isfinite(x).all() for x in bits(nnx.state(network, nnx.Param)))


def test_of_several_findings_the_one_that_causes_the_others_is_named():
    def first(**positions: int) -> NonFiniteError:
        sources = tuple(Source(kind, "") for kind in positions)
        count = jnp.ones(len(sources), int)
        found = nonfinite_error(Census(count, jnp.array(list(positions.values())), sources, n_envs=N), 100)
        assert found is not None
        assert found.counts == dict.fromkeys(positions, 1)
        return found

    # Of parameters nobody knows at which gradient step they burst; a loss that is not finite comes before.
    error = first(parameter=0, statistic=0, loss=3)
    assert (error.path, error.step, error.env) == ("loss", 100, None)
    assert "at gradient step 3 of the iteration that began after 100 environment steps" in str(error)
    assert first(statistic=0, parameter=0).path == "parameter"
    # An earlier step comes first, and within a step what leads to the rest; N = 4 environments to a step.
    error = first(loss=0, reward=2 * N + 1, observation=2 * N + 3, action=3 * N)
    assert (error.path, error.step, error.env) == ("observation", 100 + 2 * N, 3)
    assert first(observation=2 * N, reward=N + 2).path == "reward"


def test_a_network_that_is_not_finite_is_refused_before_training():
    network = mlp()
    kernel = network[1]["action"][0].linear.kernel
    kernel.set_value(kernel[...].at[0, 0].set(jnp.nan).at[1, 0].set(jnp.inf))
    with pytest.raises(NonFiniteError, match=r"2 values .* in parameter '1/action/0/linear/kernel'"):
        train_ppo(RandomEnds(), network, config())
    with pytest.raises(NonFiniteError):
        require_finite(network)


def test_ignoring_lets_it_through_and_the_log_shows_it():
    rows: list[dict[str, float]] = []
    env, _ = one_of("reward")
    train_ppo(env, mlp(), config("ignore"), log_fn=lambda m, s: rows.append(m))
    assert [row["nonfinite"] > 0 for row in rows] == [False, True, True, True]
    assert np.isfinite(rows[1]["rollout_batch/reward/mean"])
    assert np.isnan(rows[3]["losses/total"])


@pytest.mark.parametrize("where", ["reward", "obs"])
@pytest.mark.parametrize("make", [mlp, lstm])
def test_skipping_trains_on_with_what_is_sound(make, where):
    rows: list[dict[str, float]] = []
    env, which = one_of(where)
    level = LoggingLevel.DIAGNOSTICS | LoggingLevel.LOSSES
    network = make()
    result = train_ppo(env, network, config("skip", logging_level=level), log_fn=lambda m, s: rows.append(m))
    # One of two minibatches holds the environment, for the one iteration; then it starts anew.
    assert [row["diagnostics/skipped_updates"] for row in rows] == [0.0, 1.0, 0.0, 0.0]
    kind = {"reward": "rewards", "obs": "observations"}[where]
    assert [row[f"diagnostics/nonfinite/{kind}"] for row in rows] == [0.0, 1.0, 0.0, 0.0]
    assert rows[1]["diagnostics/nonfinite/losses"] == 1.0
    assert rows[1]["diagnostics/nonfinite/gradients"] > 0
    assert [row["diagnostics/nonfinite/parameters"] for row in rows] == [0.0] * 4
    assert all(np.isfinite(row["losses/total"]) for row in rows)
    assert all(np.isfinite(x).all() for x in bits(nnx.state(network)) if np.issubdtype(x.dtype, np.inexact))
    ages = np.asarray(result.training_state.env_states.data["t"])
    assert ages[which] == 2 * T
    assert set(np.delete(ages, which)) == {4 * T}


def test_looking_changes_nothing_that_is_learned():
    learned = {}
    for on_nonfinite in ("raise", "skip", "ignore"):
        network = mlp()
        train_ppo(RandomEnds(), network, config(on_nonfinite))
        learned[on_nonfinite] = bits(nnx.state(network))
    for looking, skipping, ignoring in zip(*(learned[each] for each in ("raise", "skip", "ignore")), strict=True):
        np.testing.assert_array_equal(looking, ignoring)
        # Where steps may be left out the compiler arranges the update otherwise: equal to rounding.
        np.testing.assert_allclose(skipping, ignoring, rtol=1e-5, atol=1e-7)


def test_a_callback_that_fails_while_a_spoilt_iteration_is_in_flight_leaves_the_sound_one():
    env, _ = one_of("reward")
    network = mlp()

    def fail(metrics: Any, steps: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_ppo(env, network, config(), log_fn=fail)
    before = mlp()
    train_ppo(dataclasses.replace(env, above=2.0), before, config(), total_steps=N * T)
    assert_same_bits(nnx.state(network), nnx.state(before))


def test_an_unknown_way_is_refused():
    options = PPOConfig()
    object.__setattr__(options, "on_nonfinite", "warn")
    with pytest.raises(ValueError, match=r"on_nonfinite must be one of .*'raise', 'skip', 'ignore'.*, got 'warn'"):
        options.__post_init__()


def test_dormant_units_by_hand():
    # Mean magnitudes 0, 1, 0.05, 3: their mean is 1.0125, of which 2.5 % are 0.0253.
    activation = jnp.array([[[0.0, 1.0, 0.05, -3.0]], [[0.0, -1.0, -0.05, 3.0]]])
    np.testing.assert_array_equal(dormant_units(activation), [True, False, False, False])
    np.testing.assert_array_equal(dormant_units(activation.at[0, 0, 2].set(0.0)), [True, False, True, False])
    np.testing.assert_array_equal(dormant_units(jnp.zeros((1, 2, 3))), [True] * 3)
    np.testing.assert_array_equal(dormant_units(activation.at[0, 0, 1].set(jnp.nan)), [True, False, False, False])


def test_a_layer_that_sleeps_is_seen():
    rngs = nnx.Rngs(0)
    hidden = Dense(3, 4, rngs, activation="relu", bias_init=nnx.initializers.constant(-100.0))
    actor = Sequential([hidden, Dense(4, 4, rngs), NormalTanhSampler(rngs, entropy_weight=0.0)])
    network = PPOAdapter(action=actor, value=Sequential([Dense(3, 4, rngs, activation="tanh"), Dense(4, 1, rngs)]))
    rows: list[dict[str, float]] = []
    train_ppo(RandomEnds(), network, config(logging_level=LoggingLevel.DIAGNOSTICS), log_fn=lambda m, s: rows.append(m))
    assert rows[0]["diagnostics/dormant_units/action/0"] == 1.0
    assert rows[0]["diagnostics/dormant_units/value/0"] == 0.0
    assert rows[0]["diagnostics/dormant_units"] == 0.5
    assert "diagnostics/dormant_units/action/1" not in rows[0]


def test_the_kl_is_that_after_the_update_and_zero_where_nothing_moved():
    rows: list[dict[str, float]] = []
    level = LoggingLevel.DIAGNOSTICS | LoggingLevel.ACTOR_EXTRA
    for rate in (0.0, 1e-2):
        options = config(logging_level=level, learning_rate=rate, n_minibatches=1)
        train_ppo(RandomEnds(), mlp(), options, total_steps=N * T, log_fn=lambda m, s: rows.append(m))
    still, moved = rows
    assert abs(still["diagnostics/kl"]) < 1e-10
    # One gradient step: the loss saw the policy before it, the diagnosis the one after it.
    assert abs(moved["losses/approx_kl"]) < 1e-10
    assert moved["diagnostics/kl"] > 1e-5
