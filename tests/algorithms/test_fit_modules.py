"""Modules of a user's that break the contract, one way each: found before anything compiles, with the place."""

import dataclasses
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from nnx_ppo.algorithms.config import PPOConfig
from nnx_ppo.algorithms.fit import FitError, check_fit
from nnx_ppo.networks.adapter import PPOAdapter
from nnx_ppo.networks.containers import Parallel, Sequential
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.sampling_layers import NormalTanhSampler
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput
from tests.helpers import RandomEnds, bits
from tests.helpers_compile import compilations

CONFIG = PPOConfig(n_envs=4, n_minibatches=2)


class Leaky(StatefulModule):
    """Keeps the contract; the classes below break it in one place."""

    def initialize_state(self, batch_size):
        return {"v": jnp.zeros((batch_size, 3))}

    def reset_state(self, state):
        return jax.tree.map(jnp.zeros_like, state)

    def __call__(self, state, x, rollout_extras=None):
        v = 0.5 * state["v"] + x
        return self.out(v)

    def out(self, v, **changed):
        parts = {"next_state": {"v": v}, "output": v, "regularization_loss": jnp.zeros(()), "metrics": {}}
        return StatefulModuleOutput(**{**parts, **changed})


def around(module: StatefulModule) -> Sequential:
    """A network that PPO can train, with ``module`` in the middle of it."""
    rngs = nnx.Rngs(0)
    heads = PPOAdapter(
        action=Sequential([Dense(3, 4, rngs), NormalTanhSampler(rngs, 0.0)]),
        value=Sequential([Dense(3, 4, rngs), Dense(4, 1, rngs)]),
    )
    return Sequential({"encoder": Dense(3, 3, rngs), "memory": module, "heads": heads})


def called(body: Any) -> type[Leaky]:
    """A ``Leaky`` whose call is ``body(self, v, x)``."""

    class Broken(Leaky):
        def __call__(self, state, x, rollout_extras=None):
            return body(self, 0.5 * state["v"] + x, x)

    return Broken


class Narrow(Leaky):
    def initialize_state(self, batch_size):
        return {"v": jnp.zeros((batch_size, 3), jnp.bfloat16)}

    def __call__(self, state, x, rollout_extras=None):
        return self.out(state["v"].astype(x.dtype) + x)


class OneForAll(Leaky):
    def initialize_state(self, batch_size):
        return {"v": jnp.zeros(3)}


class FixedBatch(Leaky):
    def initialize_state(self, batch_size):
        return {"v": jnp.zeros((8, 3))}


class Counts(Leaky):
    def initialize_state(self, batch_size):
        return {"v": jnp.zeros((batch_size, 3)), "n": 0}


class NoExtras(Leaky):
    def __call__(self, state, x):
        return self.out(x)


class OnlyInput(Leaky):
    def __call__(self, x):
        return x


class NamedExtras(Leaky):
    def __call__(self, state, x, *, rollout_extras=None):
        return self.out(x)


class NoBatchSize(Leaky):
    def initialize_state(self):
        return {"v": jnp.zeros((4, 3))}


class NoExtrasInUnroll(Leaky):
    def unroll(self, state, xs, dones):
        return super().unroll(state, xs, dones)


class ResetsToNothing(Leaky):
    def reset_state(self, state):
        return {}


class ResetsToOne(Leaky):
    def reset_state(self, state):
        return {"v": jnp.zeros(3)}


class ResetWithoutState(Leaky):
    def reset_state(self):
        return {}


class Unrolls(Leaky):
    def unroll(self, state, xs, dones, rollout_extras=None):
        return self.out(xs[-1])


class UnrollsCarry(Leaky):
    def unroll(self, state, xs, dones, rollout_extras=None):
        return self.out(xs)


class ReplaysOtherwise(Leaky):
    def __call__(self, state, x, rollout_extras=None):
        output = x if rollout_extras is None else x[:, :1]
        return self.out(0.5 * state["v"] + x, output=output, rollout_extras=x)


class FailsInReplay(Leaky):
    def __call__(self, state, x, rollout_extras=None):
        v = 0.5 * state["v"] + x
        if rollout_extras is not None:
            raise RuntimeError("no replay here")
        return self.out(v, rollout_extras=x)


class GrowsStatistics(Leaky):
    def __init__(self):
        self.mean = nnx.BatchStat(jnp.zeros(3))

    def __call__(self, state, x, rollout_extras=None):
        return self.out(0.5 * state["v"] + x, rollout_extras=x)

    def update_statistics(self, rollout_extras):
        self.mean.set_value(rollout_extras.mean(axis=0))


class FailsInStatistics(GrowsStatistics):
    def update_statistics(self, rollout_extras):
        self.mean.set_value(rollout_extras["x"])


class Keeps(Leaky):
    def __call__(self, state, x, rollout_extras=None):
        self.last = nnx.data(x)
        return self.out(0.5 * state["v"] + x)


class FailsInEval(Leaky):
    def __init__(self):
        self.deterministic = False

    def __call__(self, state, x, rollout_extras=None):
        if self.deterministic:
            return None
        return self.out(0.5 * state["v"] + x)


class Outer(Leaky):
    """A module of the user's around another one: the inner one is to blame."""

    def __init__(self, inner):
        self.inner = inner

    def initialize_state(self, batch_size):
        return self.inner.initialize_state(batch_size)

    def __call__(self, state, x, rollout_extras=None):
        return self.inner(state, x)


def misspelt(self, v, x):
    return self.out(jnp.tnah(v))  # type: ignore[attr-defined]


def wide(self, v, x):
    return self.out(v @ jnp.ones((4, 3)))


PLACE = r"\(\w+, tests/algorithms/test_fit_modules.py:\d+\)"
MODULE = rf"^Module 'memory' {PLACE} "
CARRY = MODULE + r"changes its carry in __call__ \(B = 5\): \['v'\] is float32\[5, 3\] before and "
NO_OUTPUT = r" from __call__, expected a StatefulModuleOutput\(next_state="
LOSS = r" as regularization_loss, expected a scalar or one number per sample, \[B\]: sum over the other axes"
FRONT = r"; expected the batch in front, \[5, ...\], since entry b belongs to environment b"
CALL = r"expected __call__\(self, state, x, rollout_extras=None\): "


def returning(**parts: Any) -> type[Leaky]:
    """A ``Leaky`` that returns something else in some places, each made of its new carry."""
    return called(lambda self, v, x: self.out(v, **{name: make(v) for name, make in parts.items()}))


BROKEN = {
    "a tuple": (called(lambda self, v, x: (v, {"v": v})), MODULE + "returns a tuple" + NO_OUTPUT),
    "an array": (called(lambda self, v, x: v), MODULE + r"returns an array float32\[5, 3\]" + NO_OUTPUT),
    "nothing": (called(lambda self, v, x: None), MODULE + "returns None" + NO_OUTPUT),
    "a dict": (called(lambda self, v, x: {"output": v}), MODULE + "returns a dict" + NO_OUTPUT),
    "another shape": (
        returning(next_state=lambda v: {"v": v[:, :2]}),
        CARRY + r"float32\[5, 2\] after. What comes out must have the structure, shapes",
    ),
    "another dtype": (returning(next_state=lambda v: {"v": v.astype(jnp.float16)}), CARRY + r"float16\[5, 3\] after"),
    "a dtype from the input": (Narrow, r"\['v'\] is bfloat16\[5, 3\] before and float32\[5, 3\] after"),
    "more in the carry": (
        returning(next_state=lambda v: {"v": v, "w": v}),
        r"changes its carry in __call__ \(B = 5\): \['w'\] is not there before and float32\[5, 3\] after",
    ),
    "no carry": (returning(next_state=lambda v: ()), CARRY + "not there after"),
    "another container": (returning(next_state=lambda v: [v]), CARRY + r"not there after; \[0\] is not there before"),
    "carry without batch": (
        OneForAll,
        rf"^Module 'memory' {PLACE}: initialize_state\(5\) gives \['v'\] as float32\[3\]" + FRONT,
    ),
    "carry of a fixed batch": (FixedBatch, r"initialize_state\(5\) gives \['v'\] as float32\[8, 3\]" + FRONT),
    "a number in the carry": (Counts, r"initialize_state\(5\) gives \['n'\] as a Python int" + FRONT),
    "loss per unit": (
        returning(regularization_loss=lambda v: v**2),
        MODULE + r"returns an array float32\[5, 3\]" + LOSS,
    ),
    "loss with an axis too many": (
        returning(regularization_loss=lambda v: jnp.sum(v, 1, keepdims=True)),
        MODULE + r"returns an array float32\[5, 1\]" + LOSS,
    ),
    "loss that is nothing": (returning(regularization_loss=lambda v: None), MODULE + "returns None" + LOSS),
    "extras without batch": (
        returning(rollout_extras=lambda v: v.mean(0)),
        MODULE + r"returns rollout_extras with the only leaf as float32\[3\]" + FRONT,
    ),
    "no extras argument": (NoExtras, MODULE + r"defines __call__\(self, state, x\), " + CALL + "too many positional"),
    "no carry argument": (OnlyInput, MODULE + r"defines __call__\(self, x\), " + CALL),
    "extras by name only": (
        NamedExtras,
        MODULE + r"defines __call__\(self, state, x, \*, rollout_extras=None\), " + CALL,
    ),
    "no batch size": (NoBatchSize, r"defines initialize_state\(self\), expected initialize_state\(self, batch_size\)"),
    "reset without carry": (ResetWithoutState, r"defines reset_state\(self\), expected reset_state\(self, state\)"),
    "unroll without extras": (
        NoExtrasInUnroll,
        MODULE
        + r"defines unroll\(self, state, xs, dones\), expected unroll\(self, state, xs, dones, rollout_extras=None\)",
    ),
    "reset to nothing": (
        ResetsToNothing,
        MODULE + r"changes its carry in reset_state \(B = 5\): \['v'\] is float32\[5, 3\] before and not there after",
    ),
    "reset without batch": (
        ResetsToOne,
        r"in reset_state \(B = 5\): \['v'\] is float32\[5, 3\] before and float32\[3\]",
    ),
    "unroll without time": (
        Unrolls,
        rf"^Module 'memory' {PLACE}: unroll does not give what 6 steps of 5 environments give, \[T, B, ...\]: "
        r"the only leaf is float32\[6, 5, 3\] in steps and float32\[5, 3\] unrolled. Let unroll",
    ),
    "unroll with time in the carry": (
        UnrollsCarry,
        MODULE
        + r"changes its carry in unroll \(B = 5\): \['v'\] is float32\[5, 3\] before and float32\[6, 5, 3\] after",
    ),
    "another output in the replay": (
        ReplaysOtherwise,
        r"unroll, given the rollout_extras of a rollout, does not give what 6 steps .* float32\[6, 5, 3\] in steps and "
        r"float32\[6, 5, 1\] unrolled",
    ),
    "a replay that raises": (
        FailsInReplay,
        MODULE + r"raised RuntimeError in __call__: no replay here\nat tests/algorithms/test_fit_modules.py:\d+ in "
        r"__call__: raise RuntimeError",
    ),
    "statistics that grow": (
        GrowsStatistics,
        r"update_statistics turns the variable \S*memory/mean from float32\[3\] into float32\[5, 3\], given the "
        "rollout_extras of 6 steps of 5 environments",
    ),
    "statistics that raise": (
        FailsInStatistics,
        MODULE + r"raised \w+ in update_statistics: (.|\n)*test_fit_modules.py:\d+ in update_statistics: self.mean",
    ),
    "nothing in eval mode": (FailsInEval, MODULE + "returns None" + NO_OUTPUT),
    "a slip of the pen": (
        called(misspelt),
        MODULE + r"raised AttributeError in __call__: module 'jax.numpy' has no attribute 'tnah'\nat "
        r"tests/algorithms/test_fit_modules.py:\d+ in misspelt: return self.out\(jnp.tnah\(v\)\)",
    ),
    "sizes that do not fit": (
        called(wide),
        MODULE + r"raised TypeError in __call__: dot_general requires contracting (.|\n)*test_fit_modules.py:\d+ in "
        r"wide: return self.out\(v @ jnp.ones(.|\n)*This was tried with the observation float32\[3\] per environment",
    ),
}


@pytest.mark.parametrize(("module", "match"), BROKEN.values(), ids=BROKEN)
def test_broken_modules(module, match):
    network = around(module())
    before = bits(nnx.state(network))
    with compilations() as compiled, pytest.raises(FitError, match=match):
        check_fit(RandomEnds(), network, CONFIG)
    assert compiled == []
    assert type(network["memory"]) is module
    assert all((a == b).all() for a, b in zip(before, bits(nnx.state(network)), strict=True))


def test_the_module_that_they_break_is_fine():
    check_fit(RandomEnds(), around(Leaky()), CONFIG)
    check_fit(RandomEnds(), around(Outer(Leaky())), CONFIG)


@pytest.mark.parametrize("name", ["another dtype", "loss per unit", "sizes that do not fit", "carry of a fixed batch"])
def test_the_innermost_module_is_to_blame(name):
    module, _ = BROKEN[name]
    with pytest.raises(FitError, match=r"Module 'memory/inner' \("):
        check_fit(RandomEnds(), around(Outer(module())), CONFIG)


def test_a_parent_may_mend_what_its_child_gives():
    """What a module returns matters only where the network as a whole is wrong."""

    class Mends(Outer):
        def __call__(self, state, x, rollout_extras=None):
            return self.out(self.inner(state, x))

    check_fit(RandomEnds(), around(Mends(called(lambda self, v, x: v)())), CONFIG)


def test_the_place_is_the_line_of_the_user():
    with pytest.raises(FitError) as caught:
        check_fit(RandomEnds(), around(called(wide)()), CONFIG)
    (line,) = re.findall(r"test_fit_modules.py:(\d+) in wide", str(caught.value))
    assert "v @ jnp.ones((4, 3))" in pathlib.Path(__file__).read_text().splitlines()[int(line) - 1]


def test_one_network_in_two_places_is_watched_once():
    shared = Dense(3, 3, nnx.Rngs(0))
    network = Sequential({"twice": Sequential({"a": shared, "b": shared}), "rest": around(Leaky())})
    check_fit(RandomEnds(), network, CONFIG)
    with pytest.raises(FitError, match="does not accept the environment's observation"):
        check_fit(RandomEnds(observation_size=4), Sequential([Parallel(a=shared), around(Leaky())]), CONFIG)


def test_an_array_on_the_module_itself_is_a_warning():
    with pytest.warns(UserWarning, match=MODULE + "keeps an array on itself when it is called, self.last: it is lost"):
        check_fit(RandomEnds(), around(Keeps()), CONFIG)


def test_parents_and_children_may_agree_on_something_else():
    class TakesMore(Leaky):
        def __call__(self, state, x, gain):
            return self.out(gain * x)

    class Gives(Outer):
        def __call__(self, state, x, rollout_extras=None):
            return self.inner(state, x, gain=0.5)

    class Plain(Leaky):
        """A class that wants no subclass goes unwatched."""

        def __init_subclass__(cls, **kwargs):
            raise TypeError("final")

        def initialize_state(self, batch_size):
            return ()

        def reset_state(self, state):
            return state

        def __call__(self, state, x, rollout_extras=None):
            return self.out(x, next_state=())

    check_fit(RandomEnds(), around(Gives(TakesMore())), CONFIG)
    check_fit(RandomEnds(), Sequential([Plain(), *around(Leaky()).modules.values()]), CONFIG)


def test_the_count_in_the_docs_is_the_count_here():
    docs = (pathlib.Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()
    assert f"{len(BROKEN)} modules and 11 environments with one fault each" in docs


@dataclasses.dataclass
class Options:
    gain: float = 0.5


@pytest.mark.parametrize("value", [Options(), {"gain": 0.5}, [1, 2], {1, 2}], ids=lambda value: type(value).__name__)
def test_what_a_module_holds_must_be_hashable(value):
    class Holds(Leaky):
        def __init__(self):
            self.options = value

    match = (
        MODULE + rf"holds something that cannot be hashed, self.options = {re.escape(repr(value))} \(unhashable type"
    )
    with pytest.raises(FitError, match=match):
        check_fit(RandomEnds(), around(Holds()), CONFIG)


def test_a_network_of_known_shapes_is_not_tried_again():
    calls = []
    counts = called(lambda self, v, x: calls.append(v) or self.out(v))
    check_fit(RandomEnds(), around(counts()), CONFIG)
    once = len(calls)
    check_fit(RandomEnds(), around(counts()), CONFIG)
    assert len(calls) == once > 0
    check_fit(RandomEnds(p_end=0.1), Sequential([around(counts())]), CONFIG)
    assert len(calls) == 2 * once
