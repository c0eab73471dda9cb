"""Words of the command line become the values that the configuration takes."""

import pytest
import tyro

from nnx_ppo.algorithms.config import PPOConfig
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.cli.parsing import REGISTRY, format_logging_level, parse_logging_level, parse_pairs


def read(*words: str) -> PPOConfig:
    return tyro.cli(PPOConfig, args=words, registry=REGISTRY)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("NONE", LoggingLevel.NONE),
        ("LOSSES", LoggingLevel.LOSSES),
        ("LOSSES|GRAD_NORM", LoggingLevel.LOSSES | LoggingLevel.GRAD_NORM),
        ("ALL", LoggingLevel.ALL),
        ("ALL|ROLLOUT_OBS", LoggingLevel.ALL | LoggingLevel.ROLLOUT_OBS),
    ],
)
def test_logging_level_reads_and_writes(text, level):
    assert parse_logging_level(text) == level
    assert parse_logging_level(format_logging_level(level)) == level
    assert read("--logging-level", text).logging_level == level


def test_unknown_logging_level_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'LOSES' is no logging level; .*LOSSES.*GRAD_NORM"):
        parse_logging_level("LOSES|GRAD_NORM")


def test_learning_rate_is_a_number_here():
    assert read("--learning-rate", "3e-4").learning_rate == 3e-4
    assert read().learning_rate == PPOConfig.learning_rate


def test_pairs_are_python_literals_or_strings():
    words = ["max_steps=100", "hide=(2,)", "flag=True", "gain=1e-3", "impl=jax", "path=a=b"]
    expected = {"max_steps": 100, "hide": (2,), "flag": True, "gain": 1e-3, "impl": "jax", "path": "a=b"}
    assert parse_pairs(words) == expected


@pytest.mark.parametrize("word", ["hide", "=3"])
def test_a_word_that_is_no_pair_is_named(word):
    with pytest.raises(ValueError, match=f"expected KEY=VALUE, got '{word}'"):
        parse_pairs([word])
