"""Environments by name: every family, a user's factory, and messages that help to find the right name."""

import doctest
import pathlib
import sys

import pytest

import nnx_ppo.envs.registry
from nnx_ppo.envs import (
    BraxEnv,
    CountingEnv,
    GymnaxEnv,
    MemoryCue,
    MissingExtraError,
    UnknownEnvError,
    list_envs,
    make_env,
)


def test_each_family_by_name_with_overrides() -> None:
    assert make_env("probe:memory_cue", delay=5) == MemoryCue(delay=5)
    pendulum = make_env("gymnax:Pendulum-v1", hide=(2,), max_steps_in_episode=11)
    assert isinstance(pendulum, GymnaxEnv)
    assert (pendulum.observation_size, pendulum.params.max_steps_in_episode) == (2, 11)
    fast = make_env("brax:fast", episode_length=4)
    assert isinstance(fast, BraxEnv)
    assert fast.max_len == 4
    assert make_env("playground:CartpoleBalance", episode_length=8).max_len == 8


def test_a_users_factory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "user_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tasks.py").write_text(
        "from nnx_ppo.envs import CountingEnv\ndef make_counter(length=3):\n    return CountingEnv(length=length)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert make_env("user_package.tasks:make_counter") == CountingEnv(length=3)
    assert make_env("user_package.tasks:make_counter", length=6) == CountingEnv(length=6)
    with pytest.raises(
        UnknownEnvError, match=r"'user_package.tasks' has no function 'make_count'. Did you mean make_c"
    ):
        make_env("user_package.tasks:make_count")


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("gymnax:Pendulum-v0", "gymnax has no environment 'Pendulum-v0'. Did you mean Pendulum-v1"),
        ("probe:memorycue", "there is no probe 'memorycue'. Did you mean memory_cue"),
        ("gymnx:Pendulum-v1", "'gymnx' is neither a family .* nor a module .*Did you mean gymnax"),
        ("no.such.module:make", "'no.such.module' is neither a family"),
        ("Pendulum-v1", "expected 'family:name' or .*got 'Pendulum-v1'. Did you mean gymnax:Pendulum-v1"),
        ("zzzzzzzz", "got 'zzzzzzzz'. Families are: gymnax, playground, brax, probe"),
    ],
)
def test_unknown_names_come_with_near_ones(name: str, match: str) -> None:
    with pytest.raises(UnknownEnvError, match=match):
        make_env(name)


def test_an_option_that_the_environment_does_not_have() -> None:
    with pytest.raises(ValueError, match=r"probe:counting has no option 'lenght'. Did you mean length"):
        make_env("probe:counting", lenght=3)


def test_an_option_of_a_wrong_kind_is_named() -> None:
    with pytest.raises(ValueError, match="length: expected a number of steps") as caught:
        make_env("probe:counting", length=-3)
    assert caught.value.__notes__ == ["probe:counting was to be made with length=-3."]


def test_lists() -> None:
    assert "probe:counting" in list_envs("probe")
    everything = list_envs()
    for name in ("gymnax:CartPole-v1", "playground:CartpoleBalance", "brax:ant", "probe:tree"):
        assert name in everything
    with pytest.raises(UnknownEnvError, match=r"unknown family 'gym'. Did you mean gymnax"):
        list_envs("gym")


def test_families_that_are_not_installed_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnax", None)
    assert not [name for name in list_envs() if name.startswith("gymnax:")]
    with pytest.raises(MissingExtraError, match="pip install"):
        list_envs("gymnax")


def test_the_example_in_the_docstring_runs() -> None:
    result = doctest.testmod(nnx_ppo.envs.registry)
    assert result.attempted > 0
    assert result.failed == 0
