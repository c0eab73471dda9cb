"""The contract test finds the module that breaks the contract, and names what is broken."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput
from nnx_ppo.testing import ContractError, check_stateful_module


class Keeps(StatefulModule):
    """Running sum of the inputs: keeps the contract, and each subclass breaks one part of it."""

    def initialize_state(self, batch_size):
        return {"sum": jnp.zeros((batch_size, 2))}

    def reset_state(self, state):
        return {"sum": jnp.zeros_like(state["sum"])}

    def __call__(self, state, x, rollout_extras=None):
        total = state["sum"] + x
        return StatefulModuleOutput({"sum": total}, total, jnp.zeros(x.shape[0]), {"x": x}, None)


class ChangesDtype(Keeps):
    def __call__(self, state, x, rollout_extras=None):
        out = super().__call__(state, x)
        return out.replace(next_state={"sum": out.output.astype(jnp.float16)})


class LosesCarry(Keeps):
    def __call__(self, state, x, rollout_extras=None):
        return super().__call__(state, x).replace(next_state=())


class WritesVariable(Keeps):
    def __init__(self):
        self.calls = nnx.Variable(jnp.zeros(()))

    def __call__(self, state, x, rollout_extras=None):
        self.calls[...] = self.calls[...] + 1.0
        return super().__call__(state, x)


class UnrollsWithoutResets(Keeps):
    def unroll(self, state, xs, dones, rollout_extras=None):
        return super().unroll(state, xs, jnp.zeros_like(dones), rollout_extras)


class UnrollsFromAFreshCarry(Keeps):
    def unroll(self, state, xs, dones, rollout_extras=None):
        return super().unroll(self.reset_state(state), xs, dones, rollout_extras)


class ResetsAtTheFirstEndAlone(Keeps):
    def unroll(self, state, xs, dones, rollout_extras=None):
        first = dones & (jnp.cumsum(dones, axis=0) == 1)
        return super().unroll(state, xs, first, rollout_extras)


class MixesSamples(Keeps):
    def __call__(self, state, x, rollout_extras=None):
        return super().__call__(state, x - jnp.mean(x, axis=0, keepdims=True))


class DependsOnPosition(Keeps):
    def __call__(self, state, x, rollout_extras=None):
        return super().__call__(state, x * jnp.arange(x.shape[0], dtype=x.dtype).reshape(-1, 1))


class ResetsToOnes(Keeps):
    def reset_state(self, state):
        return {"sum": jnp.ones_like(state["sum"])}


class LossOverBatch(Keeps):
    def __call__(self, state, x, rollout_extras=None):
        return super().__call__(state, x).replace(regularization_loss=jnp.zeros((x.shape[0], 2)))


class MetricOverBatch(Keeps):
    def __call__(self, state, x, rollout_extras=None):
        return super().__call__(state, x).replace(metrics={"x": jnp.mean(x)})


class DrawsAnewInReplay(Keeps):
    """Adds noise that replay should take from the snapshot, but draws again."""

    def initialize_state(self, batch_size):
        return {"key": jax.random.split(jax.random.key(0), batch_size)}

    def reset_state(self, state):
        return state

    def __call__(self, state, x, rollout_extras=None):
        noise = jax.vmap(lambda key: jax.random.normal(key, (2,)))(state["key"])
        noise = noise if rollout_extras is None else noise + 1.0
        return StatefulModuleOutput(state, x + noise, jnp.zeros(x.shape[0]), {}, {"noise": noise})


class StatisticsChangeShape(Keeps):
    def __init__(self):
        self.mean = nnx.Variable(jnp.zeros(2))

    def update_statistics(self, rollout_extras):
        if rollout_extras is not None:
            self.mean.set_value(jnp.mean(rollout_extras, axis=0))

    def __call__(self, state, x, rollout_extras=None):
        return super().__call__(state, x).replace(rollout_extras=x)


class TakesTwoArguments(Keeps):
    def __call__(self, state, x):  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().__call__(state, x)


class ReturnsATuple(Keeps):
    def __call__(self, state, x, rollout_extras=None):
        return state, x


class GivesNaN(Keeps):
    def __call__(self, state, x, rollout_extras=None):
        return super().__call__(state, x * jnp.nan)


class Counts(Keeps):
    def __init__(self):
        self.n = 0

    def __call__(self, state, x, rollout_extras=None):
        self.n += 1
        return super().__call__(state, x * self.n)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (ChangesDtype, r"changes its carry in __call__ .*'sum'\] is float32\[3, 2\] before and float16\[3, 2\] after"),
        (LosesCarry, r"changes its carry in __call__ .*\['sum'\] is float32\[3, 2\] before and not there after"),
        (WritesVariable, "variable of the module after a call differs.*calls"),
        (UnrollsWithoutResets, "unroll, compared with stepping, differs at .*sum"),
        (UnrollsFromAFreshCarry, r"replay of environments \[0, 1, 2\] of the second rollout"),
        (ResetsAtTheFirstEndAlone, "unroll, compared with stepping|second rollout"),
        (MixesSamples, "batch of one.*differs"),
        (DependsOnPosition, "permuted batch.*differs"),
        (ResetsToOnes, "after a reset, compared with initialize_state, differs"),
        (LossOverBatch, r"float32\[3, 2\] as regularization_loss, expected a scalar or one number per sample, \[B\]"),
        (MetricOverBatch, r"metrics\['x'\] must have the leading axis 3"),
        (DrawsAnewInReplay, "output of a replay by unroll.*differs"),
        (StatisticsChangeShape, r"update_statistics turns the variable mean from float32\[2\] into float32\[3, 2\]"),
        (
            TakesTwoArguments,
            r"defines __call__\(self, state, x\), expected __call__\(self, state, x, rollout_extras=None\)",
        ),
        (ReturnsATuple, "returns a tuple from __call__, expected a StatefulModuleOutput"),
        (GivesNaN, "output is NaN in 30 of 30 numbers, for inputs that are finite"),
        (Counts, "unroll, compared with stepping, .*counters, and for random numbers a key per environment"),
    ],
)
def test_finds_the_breach(module, message):
    with pytest.raises(ContractError, match=message):
        check_stateful_module(module, jnp.zeros(2))


def test_a_module_in_the_place_of_a_function_that_makes_one():
    with pytest.raises(TypeError, match=r"got a module: give lambda: Keeps\(\.\.\.\)"):
        check_stateful_module(Keeps(), jnp.zeros(2))


def test_accepts_a_module_that_keeps_the_contract():
    check_stateful_module(Keeps, jnp.zeros(2))


def test_needs_a_batch_and_a_sequence():
    with pytest.raises(ValueError, match="at least 2, got 5 and 1"):
        check_stateful_module(Keeps, jnp.zeros(2), batch_size=1)
