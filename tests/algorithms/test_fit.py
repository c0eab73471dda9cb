"""Bad input: every message says what was expected, what came, and what to do; nothing compiles before."""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import pytest
from flax import nnx

from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig, VideoConfig
from nnx_ppo.algorithms.fit import FitError, check_fit
from nnx_ppo.algorithms.ppo import new_training_state, train_ppo
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.envs.check import EnvSpecError
from nnx_ppo.envs.probes import DiscreteActionReward
from nnx_ppo.networks._rng import as_key
from nnx_ppo.networks.adapter import PPOAdapter
from nnx_ppo.networks.containers import Parallel, Sequential
from nnx_ppo.networks.factories import make_mlp_actor_critic
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.sampling_layers import NormalTanhSampler
from tests.helpers import RandomEnds, bits, mlp, trees
from tests.helpers_compile import compilations

CONFIG = PPOConfig(n_envs=4, n_minibatches=2)


def ports(action_size: int = 2, values: Any = None) -> Sequential:
    rngs = nnx.Rngs(0)
    action = Sequential([Dense(3, 2 * action_size, rngs), NormalTanhSampler(rngs, 0.0)])
    return Sequential([PPOAdapter(action=action, value=values if values is not None else Dense(3, 1, rngs))])


def test_a_fit_is_found_without_compiling_and_without_touching_the_network():
    network = mlp()
    before = bits(nnx.state(network))
    with compilations() as compiled:
        check_fit(RandomEnds(), network, CONFIG)
    assert compiled == []
    assert all((a == b).all() for a, b in zip(before, bits(nnx.state(network)), strict=True))
    check_fit(RandomEnds(trees=True), trees(), CONFIG)


@pytest.mark.parametrize(
    ("env", "network", "match"),
    [
        (
            RandomEnds(observation_size=5), mlp(),
            r"does not accept the environment's observation, float32\[5\] per environment",
        ),
        (RandomEnds(), ports(action_size=3), r"takes actions float32\[2\], the network gives float32\[3\]. Set the"),
        (
            DiscreteActionReward(), make_mlp_actor_critic(1, 2, [4], [4], nnx.Rngs(0)),
            r"int32\[\], the network gives float32\[2\]\. Sample from categories: discrete_actions=True",
        ),
        (
            RandomEnds(), make_mlp_actor_critic(3, 2, [4], [4], nnx.Rngs(0), discrete_actions=True),
            r"float32\[2\], the network gives int32\[\]\. Sample real numbers: discrete_actions=False",
        ),
        (
            RandomEnds(trees=True), make_mlp_actor_critic({"near": 3, "far": {"x": 2}}, 3, [4], [4], nnx.Rngs(0)),
            r"takes actions \{'arm': float32\[2\], 'leg': float32\[1\]\}, the network gives float32\[3\]",
        ),
        (
            RandomEnds(), ports(values=Parallel(a=Dense(3, 1, nnx.Rngs(0)), b=Dense(3, 1, nnx.Rngs(0)))),
            r"gives rewards \(a single one\), the network values \{\['a'\], \['b'\]\}: each reward needs a critic head",
        ),
        (RandomEnds(), Dense(3, 2, nnx.Rngs(0)), "Let it end in a PPOAdapter"),
        (RandomEnds(), nnx.Linear(3, 2, rngs=nnx.Rngs(0)), "networks must be a StatefulModule, got Linear"),
    ],
)  # fmt: skip
def test_what_does_not_fit(env, network, match):
    with pytest.raises(FitError, match=match):
        check_fit(env, network, CONFIG)


@dataclasses.dataclass(frozen=True)
class SplitReward(RandomEnds):
    """One action head, two rewards."""

    def reset(self, key: Any) -> Any:
        return self._split(super().reset(key))

    def step(self, state: Any, action: Any) -> Any:
        return self._split(super().step(state, action))

    @staticmethod
    def _split(state: Any) -> Any:
        return state.replace(reward={"speed": state.reward, "cost": state.reward})


def test_rewards_need_matching_heads_unless_combined():
    values = Parallel(speed=Dense(3, 1, nnx.Rngs(0)), cost=Dense(3, 1, nnx.Rngs(0)))
    with pytest.raises(FitError, match="Set combine_advantages=True"):
        check_fit(SplitReward(), ports(values=values), CONFIG)
    check_fit(SplitReward(), ports(values=values), dataclasses.replace(CONFIG, combine_advantages=True))


def test_a_broken_environment_is_named_by_path():
    @dataclasses.dataclass(frozen=True)
    class Grows(RandomEnds):
        def step(self, state: Any, action: Any) -> Any:
            state = super().step(state, action)
            return state.replace(obs=jnp.concatenate([state.obs, state.obs]))

    with pytest.raises(EnvSpecError, match=r"obs(.|\n)*\(?3(.|\n)*6"):
        train_ppo(Grows(), mlp(), TrainConfig(ppo=CONFIG))


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"n_envs": 10, "n_minibatches": 4}, r"n_envs=10 must divide by n_minibatches=4; .* one of \[1, 2, 5, 10\]"),
        ({"n_envs": 0}, "n_envs must be an integer of at least 1, got 0"),
        ({"rollout_length": -3}, "rollout_length must be an integer of at least 1, got -3"),
        ({"total_steps": True}, "total_steps must be an integer"),
        ({"gae_lambda": 1.5}, "gae_lambda must be a finite number of at least 0 and at most 1, got 1.5"),
        ({"discounting_factor": math.nan}, "discounting_factor must be a finite number"),
        ({"clip_range": 0.0}, "clip_range must be a finite number above 0, got 0.0"),
        ({"learning_rate": math.inf}, "learning_rate must be a finite number"),
        ({"learning_rate": -1.0}, "learning_rate must be a finite number of at least 0, got -1.0"),
        ({"gradient_clipping": 0.0}, "gradient_clipping must be a finite number above 0, or None"),
        ({"weight_decay": -0.1}, "weight_decay must be a finite number of at least 0, or None"),
        ({"critic_loss_weight": math.nan}, "critic_loss_weight must be a finite number"),
        ({"logging_percentiles": (50, 101)}, r"numbers from 0 to 100, at least one, got \(50, 101\)"),
        ({"logging_percentiles": ()}, "at least one"),
    ],
)
def test_hyper_parameters_are_checked_when_made(kwargs, match):
    with pytest.raises(ValueError, match=match):
        PPOConfig(**kwargs)


def test_other_configs_are_checked_too():
    with pytest.raises(ValueError, match="every_steps must be an integer of at least 1, got 0"):
        EvalConfig(every_steps=0)
    with pytest.raises(ValueError, match="episode_length"):
        VideoConfig(episode_length=0)
    with pytest.raises(ValueError, match="seed must be an integer of at least 0"):
        TrainConfig(seed=-1)
    with pytest.raises(ValueError, match=r"seed must be from 0 to 4294967295, .*got 4294967299"):
        TrainConfig(seed=2**32 + 3)
    with pytest.raises(ValueError, match="a seed must be from 0 to 4294967295, got 4294967296"):
        as_key(2**32)
    with pytest.raises(dataclasses.FrozenInstanceError):
        PPOConfig().n_envs = 3  # type: ignore[misc]
    assert (
        PPOConfig(gradient_clipping=1, logging_level=LoggingLevel.ALL | LoggingLevel.ROLLOUT_OBS).gradient_clipping
        == 1.0
    )


def test_a_state_of_another_size_cannot_be_resumed():
    network = mlp()
    state = new_training_state(RandomEnds(), network, 8, 0)
    with pytest.raises(ValueError, match=r"initial_state holds \[8\] environments, the config asks for n_envs=4"):
        train_ppo(RandomEnds(), network, TrainConfig(ppo=CONFIG), initial_state=state)
