"""What ``--help`` says: every option of every command, in words, on narrow screens too."""

import dataclasses
import re

import pytest

from nnx_ppo.algorithms.config import EvalConfig, PPOConfig
from nnx_ppo.cli import main
from nnx_ppo.cli.app import COMMANDS
from nnx_ppo.cli.field_docs import field_docs, plain
from nnx_ppo.cli.networks import NetworkConfig

GROUPS = {"network", "ppo", "eval", "checkpoint"}
"""Fields that stand for several options."""


def help_of(capsys, *words, columns=80):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as caught:
            main([*words, "--help"])
    assert caught.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained_without_markup(command, capsys):
    text = help_of(capsys, command)
    for strange in ("``", ":class:", "{None}", "[[", "dummy", "STR", "(default: )"):
        assert strange not in text
    shown = " ".join(text.replace("│", " ").split())
    docs = field_docs(COMMANDS[command])
    groups = {field.name for field in dataclasses.fields(COMMANDS[command]) if field.name in GROUPS}
    assert docs.keys() | groups == {field.name for field in dataclasses.fields(COMMANDS[command])}
    for name, doc in docs.items():
        assert doc in shown, name


def test_the_fields_of_configurations_are_explained(capsys):
    shown = " ".join(help_of(capsys, "train").replace("│", " ").split())
    for kind in (NetworkConfig, PPOConfig, EvalConfig):
        docs = field_docs(kind)
        assert docs.keys() == {field.name for field in dataclasses.fields(kind)}
        for name, doc in docs.items():
            assert doc in shown, name


@pytest.mark.parametrize("command", ["lesion", "train"])
def test_a_narrow_screen_is_not_exceeded(command, capsys):
    lines = help_of(capsys, command, columns=40).partition("positional arguments")[2].splitlines()
    assert len(lines) > 20
    assert max(len(line) for line in lines if "--network.kind" not in line) <= 40


def test_without_words_the_commands_are_listed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    for command in COMMANDS:
        assert f"• {command}" in printed
    assert help_of(capsys) == printed


def test_version(capsys):
    main(["--version"])
    assert re.match(r"nnx-ppo .*, jax \d.*, flax \d.*, Python 3\.\d+", capsys.readouterr().out)


def fails(capsys, *words):
    with pytest.raises(SystemExit) as caught:
        main(list(words))
    assert caught.value.code == 2
    return " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["trian"], "there is no command 'trian'. Did you mean train?"),
        (["--versoin"], "Unrecognized options: --versoin"),
        (["eval"], "Missing from nnx-ppo eval: RUN Folder that nnx-ppo train made."),
        (["train", "--epochs", "3"], "Perhaps you meant: --ppo.n-epochs INT"),
        (["train", "--network", "gru2"], "Error parsing network: network kind must be one of mlp, lstm"),
        (["train", "--total-steps", "1e6.5"], "Error parsing --total-steps: expected a whole number"),
        (["train", "--log", "disk"], "Expected one of ('jsonl', 'tensorboard', 'wandb')"),
        (["train", "--eval.n-envs", "0"], "n_envs must be an integer of at least 1, got 0"),
    ],
)
def test_mistakes_are_about_the_command_that_was_typed(words, expected, capsys):
    message = fails(capsys, *words)
    assert expected in message
    assert "dummy" not in message
    if words[0] in COMMANDS:
        assert f"nnx-ppo {words[0]} --help" in message


def test_markup_is_taken_away():
    text = 'Stops with a :class:`~nnx_ppo.algorithms.NonFiniteError`,\n    or ``"skip"``; see :func:`record`.'
    assert plain(text) == 'Stops with a NonFiniteError, or "skip"; see record.'
