"""A run's configuration survives JSON, and a wrong file names what is wrong."""

import dataclasses
import json

import pytest

from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.cli.networks import NetworkConfig
from nnx_ppo.cli.run_config import RunConfig, from_json, to_json

FULL = RunConfig(
    env="gymnax:Pendulum-v1",
    env_args={"max_steps_in_episode": 50},
    reward_scale=0.5,
    network=NetworkConfig(kind="lstm", actor_hidden_sizes=(8, 4), critic_hidden_sizes=(), normalize_obs=False),
    train=TrainConfig(
        ppo=PPOConfig(
            learning_rate=3e-4,
            gradient_clipping=0.5,
            logging_level=LoggingLevel.LOSSES | LoggingLevel.GRAD_NORM,
            logging_percentiles=(2.5, 50),
        ),
        eval=EvalConfig(enabled=False, logging_percentiles=None),
        seed=3,
    ),
)


@pytest.mark.parametrize("config", [RunConfig(env="x"), FULL], ids=["defaults", "full"])
def test_round_trip(config):
    assert from_json(to_json(config)) == config


def test_every_field_is_in_the_file():
    data = json.loads(to_json(FULL))
    for path, kind in (("ppo", PPOConfig), ("eval", EvalConfig)):
        assert set(data["train"][path]) == {field.name for field in dataclasses.fields(kind)}
    assert data["train"]["ppo"]["logging_level"] == "LOSSES|GRAD_NORM"


def test_a_schedule_is_refused():
    config = dataclasses.replace(FULL, train=TrainConfig(ppo=PPOConfig(learning_rate=lambda step: 1e-3)))
    with pytest.raises(TypeError, match="constant learning rate only"):
        to_json(config)


def test_unknown_and_refused_fields_are_named():
    data = json.loads(to_json(FULL))
    data["train"]["ppo"]["n_env"] = 3
    with pytest.raises(ValueError, match=r"n_env.*config\.train\.ppo"):
        from_json(json.dumps(data))
    data["train"]["ppo"].pop("n_env")
    data["train"]["ppo"]["gae_lambda"] = 1.5
    with pytest.raises(ValueError, match="gae_lambda must be"):
        from_json(json.dumps(data))


@pytest.mark.parametrize(("text", "match"), [("[]", "is a JSON object, got list"), ("[" * 10**5, "nested too deeply")])
def test_what_is_no_description_is_refused(text, match):
    with pytest.raises(ValueError, match=match):
        from_json(text)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_reward_scale_is_checked(scale):
    with pytest.raises(ValueError, match="reward_scale must be a finite number above 0"):
        RunConfig(env="x", reward_scale=scale)
