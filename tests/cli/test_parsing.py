"""Words of the command line become the values that the configuration takes."""

import pytest
import tyro

from nnx_ppo.algorithms.config import PPOConfig
from nnx_ppo.algorithms.config_json import format_logging_level, parse_logging_level
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.cli.options import REGISTRY
from nnx_ppo.cli.parsing import parse_number, parse_pairs, parse_whole_number


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


@pytest.mark.parametrize(
    ("text", "number"), [("12", 12), ("-3", -3), ("1_000", 1000), ("2e6", 2_000_000), ("1.5e1", 15), ("4.0", 4)]
)
def test_whole_numbers(text, number):
    assert parse_whole_number(text) == number
    assert isinstance(parse_whole_number(text), int)


@pytest.mark.parametrize("text", ["7.5", "abc", "", "inf", "nan", "1e-3"])
def test_what_is_no_whole_number_is_named(text):
    with pytest.raises(ValueError, match=f"expected a whole number such as 800000 or 8e5, got '{text}'"):
        parse_whole_number(text)


def test_numbers_stay_what_they_are():
    assert [repr(parse_number(text)) for text in ("25", "2.5", "1e-3")] == ["25", "2.5", "0.001"]
    with pytest.raises(ValueError, match=r"expected a number such as 3, 0.5 or 1e-3, got 'x'"):
        parse_number("x")


def test_options_that_can_be_none():
    assert read("--gradient-clipping", "0.5").gradient_clipping == 0.5
    assert read("--gradient-clipping", "None").gradient_clipping is None
    assert read("--logging-percentiles", "2.5", "50").logging_percentiles == (2.5, 50)
    assert read("--logging-percentiles", "None").logging_percentiles is None
