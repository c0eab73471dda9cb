"""What users write themselves, on the command line: one message with the line of their file, nothing written."""

import importlib
import pathlib
import sys
import warnings
from typing import Any

import pytest

from nnx_ppo.algorithms.fit import check_fit, memory
from nnx_ppo.algorithms.nonfinite import NonFiniteError
from nnx_ppo.cli import main, training_run
from nnx_ppo.cli.networks import NetworkConfig, build_network
from nnx_ppo.envs import make_env
from tests.cli.test_commands import fails

MODULE = """
import jax
import jax.numpy as jnp
from nnx_ppo import make_mlp_actor_critic
from nnx_ppo.envs import EnvState
from nnx_ppo.networks import Sequential, StatefulModule, StatefulModuleOutput


class Walk:
    observation_size, action_size = 3, 2

    def __init__(self, gain=1.0):
        self.gain = gain

    def reset(self, key):
        return EnvState(jnp.zeros(3), jnp.zeros(()), jnp.zeros((), bool), {}, {})

    def step(self, state, action):
        return state


class Stumble(Walk):
    def step(self, state, action):
        return state.replace(obs=state.obs + action)  # three and two


class Film(Walk):
    def render(self, trajectory, width):
        return []


class Mix(StatefulModule):
    def __call__(self, state, x, rollout_extras=None):
        return x @ jnp.ones((4, 3))


def mixed(env, rngs):
    return Sequential([Mix(), make_mlp_actor_critic(3, 2, [4], [4], rngs)])


def alone(env):
    return make_mlp_actor_critic(3, 2, [4], [4], None)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "users_code.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "users_code", raising=False)
    importlib.invalidate_caches()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            ["users_code:Stumble"],
            ["Stumble.step raised", "at users_code.py:24 in step: return state.replace(obs=state.obs + action)"],
        ),
        (
            ["users_code:Walk", "--network", "users_code:mixed"],
            [
                "Module '0' (Mix, users_code.py:33) raised TypeError",
                "at users_code.py:34 in __call__: return x @ jnp.on",
            ],
        ),
        (
            ["users_code:Walk", "--network", "users_code:alone"],
            ["users_code:alone is called as users_code:alone(env, rngs), but it is alone(env) (too many positional"],
        ),
        (
            ["users_code:Walk", "--env-args", "gian=2"],
            ["called as users_code:Walk(gian=2), but it is Walk(gain=1.0) (got an unexpected keyword argument 'gian')"],
        ),
        (
            ["users_code:Film", "--video", "1"],
            ["render is called as render(trajectory, height=480, width=640), but it is render(trajectory, width) (got"],
        ),
    ],
)
def test_a_mistake_is_one_message_with_the_line(here, capsys, words, parts):
    message = fails(capsys, "train", *words, "--out", "out", "--no-cache")
    for part in parts:
        assert part in message
    assert not (here / "out").exists()


def test_the_same_from_python(here):
    with pytest.raises(TypeError, match=r"users_code:Walk\(speed=1\), but it is Walk\(gain=1.0\)"):
        make_env("users_code:Walk", speed=1)
    with pytest.raises(TypeError, match=r"users_code:alone\(env, rngs\), but it is alone\(env\)"):
        build_network(NetworkConfig(kind="users_code:alone"), make_env("users_code:Walk"), seed=0)


def test_numbers_that_are_not_finite_name_the_option(here, capsys, monkeypatch):
    def train_ppo(*args: Any, **kwargs: Any) -> Any:
        raise NonFiniteError("The reward is NaN.", "reward", 1, None, {})

    def raised_in_the_package(*args: Any) -> bool:
        return True

    monkeypatch.setattr(training_run, "train_ppo", train_ppo)
    monkeypatch.setattr("nnx_ppo.cli.app._is_message", raised_in_the_package)
    message = fails(capsys, "train", "users_code:Walk", "--out", "out", "--no-cache")
    assert (
        "The reward is NaN. For a new run that is --ppo.on-nonfinite skip or ignore; for this one, train.ppo.on_non"
        in (message)
    )


def test_an_error_of_their_own_keeps_its_traceback(here):
    code = pathlib.Path("users_code.py").read_text().replace("        self.gain = gain", "        raise KeyError(gain)")
    pathlib.Path("users_code.py").write_text(code)
    with pytest.raises(KeyError) as caught:
        main(["train", "users_code:Walk", "--out", "out", "--no-cache"])
    assert caught.traceback[-1].path.name == "users_code.py"


def test_warnings_of_the_package_are_one_line_once(here, capsys, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 2**20)
    monkeypatch.setattr(
        training_run, "_train", lambda folder, config, env, network, *rest: check_fit(env, network, config.train.ppo)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        main(["train", "users_code:Walk", "--out", "out", "--no-cache", "--ppo.n-envs", "1024"])
    lines = [line for line in capsys.readouterr().err.splitlines() if "rollout" in line]
    assert len(lines) == 1
    assert lines[0].startswith("Warning: One rollout of n_envs=1,024 times rollout_length=20 steps takes about")
    assert warnings.showwarning.__module__ != "nnx_ppo.cli.plain_warnings"
