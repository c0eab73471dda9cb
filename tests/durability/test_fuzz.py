"""Bad input, drawn at random: always a result, or a typed error with a message; never a crash from deep inside.

The same inputs each time (``derandomize``), so that a failure is one for everybody. ``EXAMPLES`` counts them.
"""

import dataclasses
import json
import pathlib
import shutil
import sys
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

import nnx_ppo
from nnx_ppo.algorithms.checkpoint_files import CheckpointError
from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig, VideoConfig
from nnx_ppo.algorithms.fit import check_fit
from nnx_ppo.algorithms.loggers import JsonLinesLogger, read_metrics
from nnx_ppo.algorithms.restoring import load_networks
from nnx_ppo.algorithms.retention import Retention
from nnx_ppo.cli import main
from nnx_ppo.cli import train as train_module
from nnx_ppo.cli.run_config import from_json
from nnx_ppo.envs.check import check_env
from nnx_ppo.envs.types import EnvState
from nnx_ppo.networks import Dense, NormalTanhSampler, Parallel, PPOAdapter, Sequential
from tests.helpers import RandomEnds, bits, lstm, mlp

EXAMPLES = {
    "config": 400,
    "environment": 150,
    "network": 40,
    "words": 80,
    "metrics": 300,
    "run": 150,
    "checkpoint": 120,
}
"""Inputs tried, 1,240 in all."""
PACKAGE, TESTS = pathlib.Path(nnx_ppo.__file__).parent, pathlib.Path(__file__).parents[1]


def fuzz(what: str) -> Any:
    return hypothesis.settings(
        max_examples=EXAMPLES[what],
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=5),
    st.sampled_from([(), (1, 2), [], {}, b"x", 1j, np.float32(2), np.int64(3), np.zeros(2), object(), len]),
)


@fuzz("config")
@hypothesis.given(st.sampled_from([PPOConfig, EvalConfig, VideoConfig, TrainConfig, Retention]), st.data())
def test_configurations(kind, data):
    config = kind()
    name = data.draw(st.sampled_from([f.name for f in dataclasses.fields(kind)]))
    value = data.draw(ODD)
    # Past the annotations, which are checked in tests only.
    object.__setattr__(config, name, value)
    try:
        config.__post_init__()
    except (ValueError, TypeError) as error:
        check_refusal(error, name, here=False)
    else:
        assert repr(config)


LEAVES = st.sampled_from(
    [
        jnp.zeros(()), jnp.zeros(3), jnp.zeros((2, 2)), jnp.zeros(0), jnp.zeros(3, jnp.int32), jnp.zeros((), bool),
        jnp.full(3, jnp.nan), jnp.asarray(jnp.inf), jnp.zeros(3, jnp.bfloat16), jnp.zeros(3, jnp.complex64), 1.0, 0,
        True, None, "text", {}, {"a": jnp.zeros(3)}, {"a": {}}, [jnp.zeros(2)], (), jax.random.key(0), np.zeros(3),
    ]
)  # fmt: skip
FIELDS = ("obs", "reward", "done", "info", "metrics")


class Odd:
    """An environment that returns what it was given, after a step something else."""

    observation_size, action_size = 3, 2

    def __init__(self, at_reset: dict[str, Any], after_step: dict[str, Any], lacks: str | None):
        self.parts = [dict(PLAIN) | at_reset, dict(PLAIN) | at_reset | after_step]
        self.lacks = lacks

    def _state(self, part: dict[str, Any]) -> Any:
        return EnvState(**{name: value for name, value in part.items() if name != self.lacks}, data=None)

    def reset(self, key: jax.Array) -> Any:
        return self._state(self.parts[0])

    def step(self, state: Any, action: Any) -> Any:
        return self._state(self.parts[1])


PLAIN = {"obs": jnp.zeros(3), "reward": jnp.zeros(()), "done": jnp.zeros((), bool), "info": {}, "metrics": {}}


@fuzz("environment")
@hypothesis.given(
    st.dictionaries(st.sampled_from(FIELDS), LEAVES, max_size=2),
    st.dictionaries(st.sampled_from(FIELDS), LEAVES, max_size=2),
    st.one_of(st.none(), st.none(), st.sampled_from(FIELDS)),
)
def test_environments(at_reset, after_step, lacks):
    env = Odd(at_reset, after_step, lacks)
    try:
        spec = check_env(env)
        check_fit(env, mlp(), PPOConfig())
    except (ValueError, TypeError) as error:
        check_refusal(error)
    else:
        assert spec.obs is not None


def check_refusal(error: BaseException, name: str = "", here: bool = True) -> None:
    """A message that names ``name``; with ``here`` raised by this package, not by something under it that fell over."""
    assert name in str(error)
    assert len(str(error)) > 10
    # Annotations are checked in tests only, but they refuse too.
    assert not here or isinstance(error, TypeCheckError) or raised_here(error), error


def raised_here(error: BaseException) -> bool:
    """Whether this package refused, or something under it fell over."""
    trace: Any = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    file = pathlib.Path(trace.tb_frame.f_code.co_filename)
    return file.is_relative_to(PACKAGE) or file.is_relative_to(TESTS)


@fuzz("network")
@hypothesis.given(st.data())
def test_networks(data):
    size, rngs = st.sampled_from([1, 2, 3, 4]), nnx.Rngs(0)
    pick = data.draw

    def layer() -> Any:
        return Dense(pick(size), pick(size), rngs)

    def sampler() -> Any:
        return Sequential([layer(), NormalTanhSampler(rngs, 0.1)])

    heads = pick(st.sampled_from(["both", "no action", "no value", "dict", "none"]))
    as_list = pick(st.integers(0, 3)) == 0
    try:
        action = {"no action": layer, "dict": lambda: Parallel(a=sampler(), b=sampler())}.get(heads, sampler)()
        value = {"no value": sampler, "dict": lambda: Parallel(a=layer(), c=layer())}.get(heads, layer)()
        layers = [layer() for _ in range(pick(st.integers(0, 2)))]
        layers += [] if heads == "none" else [PPOAdapter(action=action, value=value)]
        network = layers if as_list else Sequential(layers)
        check_fit(RandomEnds(trees=pick(st.booleans())), network, PPOConfig())
    except (ValueError, TypeError) as error:
        check_refusal(error)


WORDS = st.sampled_from(
    [
        "train", "eval", "record", "plot", "demo", "probe:counting", "gymnax:CartPole-v1", "nowhere", "--out", "out",
        "--seed", "3", "-1", "nan", "--ppo.n-envs", "8", "7", "--ppo.learning-rate", "1e-3", "--network", "lstm", "mlp",
        "a:b", "--resume", "--total-steps", "--keep-last", "0", "None", "--log", "jsonl", "wandb", "--env-args", "x=1",
        "x", "--eval.no-enabled",
        "--ppo.logging-level", "ALL", "LOSES", "--video", "2", "--no-cache", "--", "-h", "--anneal-learning-rate", "",
    ]
)  # fmt: skip


@fuzz("words")
@hypothesis.given(st.lists(WORDS, max_size=6), st.booleans())
def test_command_lines(tmp_path_factory, words, training):
    if training:
        words = ["train", "probe:counting", "--out", "out", *words]
    elif words[:1] == ["demo"]:
        words = words[1:]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("words"))
        patch.setattr(train_module, "train_run", lambda config, out: sys.exit(0))
        with pytest.raises(SystemExit) as caught:
            main([*words, *(["--no-cache"] if words[:1] == ["train"] else [])])
        assert caught.value.code in (0, 2)
        assert list(pathlib.Path.cwd().iterdir()) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3),
    max_leaves=6,
)
LINE = st.one_of(
    st.binary(max_size=20),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.builds(lambda steps, v: json.dumps({"steps": steps, "x": v}).encode(), st.integers(0, 99), JSON),
    st.sampled_from([b"[" * 5000, b'{"steps": ' + b"9" * 5000 + b"}", b'{"steps": 1', b"\xff\xfe", b"NaN"]),
)


@fuzz("metrics")
@hypothesis.given(st.lists(LINE, max_size=6), st.integers(0, 200))
def test_metrics_files(tmp_path_factory, lines, keep):
    path = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
    path.write_bytes(b"\n".join(lines))
    for row in read_metrics(path):
        assert "steps" in row
    with JsonLinesLogger(path, keep_bytes=keep) as logger:
        logger({"loss": 0.5}, 7)
    assert read_metrics(path)[-1] == {"steps": 7, "loss": 0.5}


@fuzz("run")
@hypothesis.given(st.one_of(st.text(max_size=20), JSON.map(json.dumps), st.data()))
def test_run_descriptions(given):
    text = given
    if not isinstance(given, str):
        config: Any = {"env": "x", "train": {"ppo": {}, "eval": {}}, "network": {}, "checkpoints": {}}
        where = given.draw(st.sampled_from([config, config["train"], config["train"]["ppo"], config["network"]]))
        names = ["env", "seed", "n_envs", "learning_rate", "logging_level", "kind", "keep_last", "log", "ppo", "zzz"]
        where[given.draw(st.sampled_from(names))] = given.draw(JSON)
        text = json.dumps(config)
    try:
        assert from_json(text).env
    except (ValueError, TypeError) as error:
        check_refusal(error, here=False)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    from nnx_ppo.algorithms.checkpointing import make_checkpoint_fn
    from nnx_ppo.algorithms.ppo import new_training_state

    folder, network = tmp_path_factory.mktemp("saved"), lstm(seed=1)
    with make_checkpoint_fn(folder) as checkpoint_fn:
        checkpoint_fn(new_training_state(RandomEnds(), network, 4, 0), 1)
    (path,) = folder.iterdir()
    return path, bits(nnx.state(network))


@fuzz("checkpoint")
@hypothesis.given(st.data())
def test_checkpoint_bytes(saved, tmp_path_factory, data):
    original, expected = saved
    path = tmp_path_factory.mktemp("spoilt") / original.name
    shutil.copytree(original, path)
    files = sorted(p for p in path.rglob("*") if p.is_file())
    for _ in range(data.draw(st.integers(1, 2))):
        spoil(data.draw(st.sampled_from(files)), files, data.draw)
    network = lstm(seed=2)
    before = bits(nnx.state(network))
    try:
        load_networks(path, network)
    except CheckpointError as error:
        check_refusal(error, path.name)
        after = before
    else:
        after = expected
    for a, b in zip(bits(nnx.state(network)), after, strict=True):
        np.testing.assert_array_equal(a, b)


def spoil(file: pathlib.Path, files: list[pathlib.Path], draw: Any) -> None:
    """Damage one file of a checkpoint."""
    how = draw(st.sampled_from(["flip", "cut", "grow", "remove", "swap", "replace", "folder"]))
    if not file.is_file():
        return
    data = file.read_bytes()
    at = draw(st.integers(0, max(len(data) - 1, 0)))
    if how == "flip" and data:
        file.write_bytes(data[:at] + bytes([data[at] ^ draw(st.integers(1, 255))]) + data[at + 1 :])
    elif how == "cut":
        file.write_bytes(data[:at])
    elif how == "grow":
        file.write_bytes(data + draw(st.binary(min_size=1, max_size=9)))
    elif how == "remove":
        file.unlink()
    elif how == "swap":
        file.write_bytes(draw(st.sampled_from([f for f in files if f.is_file()])).read_bytes())
    elif how == "replace":
        file.write_bytes(draw(st.one_of(st.binary(max_size=50), JSON.map(lambda v: json.dumps(v).encode()))))
    elif how == "folder":
        file.unlink()
        file.mkdir()


def test_the_count_in_the_docs_is_the_count_here():
    docs = (pathlib.Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()
    assert f"{sum(EXAMPLES.values()):,} inputs" in docs
