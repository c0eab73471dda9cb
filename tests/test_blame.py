"""The line of the user's code, out of tracebacks through libraries, wrappers and causes."""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import pytest

from nnx_ppo._blame import defined_at, raised_at
from nnx_ppo.networks import Dense

HERE = "tests/test_blame.py"


def stumble(x):
    return x @ jnp.ones((9, 9))  # the deepest line of this file


def caught(function, *args):
    with pytest.raises(Exception) as info:  # noqa: PT011
        function(*args)
    return info.value


@pytest.mark.parametrize(
    ("function", "where"),
    [
        (lambda: jax.eval_shape(stumble, jnp.zeros(3)), "in stumble: return x @ jnp.ones((9, 9))  # the deepest line"),
        (lambda: json.loads("{"), 'in <lambda>: (lambda: json.loads("{")'),
        (lambda: functools.reduce(lambda a, b: 1 // b, [1, 0]), "in <lambda>: (lambda: functools.reduce"),
    ],
)
def test_the_deepest_line_of_the_user_counts(function, where):
    text = raised_at(caught(function))
    assert text.startswith(f"at {HERE}:")
    assert where in text
    line = int(text.split(":")[1].split(" ")[0])
    assert pathlib.Path(HERE).read_text().splitlines()[line - 1].strip() in text


def test_the_cause_counts_where_the_error_itself_says_nothing():
    error = ValueError("made by hand")
    error.__cause__ = caught(stumble, jnp.zeros(3))
    assert "in stumble" in raised_at(error)
    error.__cause__ = error  # a circle
    assert raised_at(error) == ""


def test_code_without_a_file():
    error = caught(eval, compile("1 // 0", "<made up>", "eval"), {})
    assert f"at {HERE}:" in raised_at(error)


def test_where_functions_are_defined(tmp_path, monkeypatch):
    first = int(defined_at(stumble).removeprefix(f"{HERE}:"))
    assert pathlib.Path(HERE).read_text().splitlines()[first - 1] == "def stumble(x):"
    assert defined_at(functools.wraps(stumble)(lambda x: x)) == defined_at(stumble)
    for library in (len, json.loads, Dense.__call__, jnp.sum, functools.partial(stumble), 3):
        assert defined_at(library) == ""
    monkeypatch.chdir(tmp_path)
    assert defined_at(stumble) == f"{pathlib.Path(__file__).resolve()}:{first}"
