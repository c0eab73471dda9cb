"""A reusable contract test for stateful modules: one call checks everything that the library relies on."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nnx_ppo.algorithms.fit import FitError
from nnx_ppo.algorithms.fit.trial import try_network
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput, reset_where

__all__ = ["ContractError", "check_stateful_module"]


class ContractError(AssertionError):
    """A module breaks the contract of :class:`StatefulModule`; the message says which part, where, and by how much."""


def check_stateful_module(
    make_module: Callable[[], StatefulModule],
    example_input: Any,
    *,
    n_steps: int = 5,
    batch_size: int = 3,
    seed: int = 0,
    tolerance: float | None = None,
) -> None:
    """Check that a module keeps the contract of :class:`~nnx_ppo.networks.types.StatefulModule`.

    Checked are: leading batch axes; a carry of stable structure, shapes and dtypes; that a call writes no variable
    (random streams excepted); that :meth:`unroll` equals stepping across episode ends, also for a rollout of one step,
    and works under ``jit``; that replay with the emitted ``rollout_extras`` reproduces the output, also of a second
    rollout that goes on where the first one stopped, with an episode end at every step, and for selections of
    environments; that samples do not influence each other, down to a batch of one; that a reset gives the carry of a
    fresh episode (PRNG keys excepted) and leaves the other environments bit-identical; that statistics take the
    snapshots of a rollout; that finite inputs give no NaN.

    Args:
        make_module: returns a new module; two calls must return equal ones.
        example_input: one sample, *without* batch axis: a tree of arrays. Test inputs are floats scattered around it
            with standard deviation 1; integer and boolean leaves are repeated as they are.
        n_steps: ``T`` of the test, at least 2.
        batch_size: ``B`` of the test, at least 2.
        seed: of test inputs and episode ends.
        tolerance: largest absolute or relative difference that counts as equal; by default 1e-5, or 1e-10 where the
            compared numbers are float64.

    Raises:
        ContractError: the module breaks the contract.
        TypeError: ``make_module`` is a module, and not a function that makes one.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from nnx_ppo.networks import LSTM
        >>> check_stateful_module(lambda: LSTM(3, 4, nnx.Rngs(0)), jnp.zeros(3))
    """
    if n_steps < 2 or batch_size < 2:
        raise ValueError(f"n_steps and batch_size must be at least 2, got {n_steps} and {batch_size}.")
    if isinstance(make_module, StatefulModule):
        raise TypeError(
            "make_module must be a function that returns a new module, got a module: give lambda: "
            f"{type(make_module).__name__}(...)."
        )
    case = _Case(make_module, example_input, n_steps, batch_size, seed, tolerance)
    for check in (
        _check_numbers,
        _check_unroll,
        _check_rollout_of_one,
        _check_replay,
        _check_permutation,
        _check_batch_of_one,
        _check_next_rollout,
        _check_reset,
        _check_statistics,
    ):
        check(case)


class _Case:
    """A module with inputs, episode ends and a stepped rollout to compare with; compiles each call once."""

    def __init__(
        self,
        make_module: Callable[[], StatefulModule],
        example_input: Any,
        n_steps: int,
        batch_size: int,
        seed: int,
        tolerance: float | None,
    ):
        rng = np.random.default_rng(seed)
        self.batch_size = batch_size
        self.tolerance = tolerance
        self.module = make_module()
        self.inputs = jax.tree.map(lambda leaf: _scatter(rng, leaf, (n_steps, batch_size)), example_input)
        dones = rng.random((n_steps, batch_size)) < 0.4
        # Whatever the seed: an episode that ends inside the rollout, and one that runs through.
        dones[0, 0], dones[:, 1] = True, False
        self.dones = jnp.asarray(dones)
        _check_shapes(self.module, self.inputs)
        self.start = self.module.initialize_state(batch_size)
        _check_leading_axis("initialize_state", self.start, batch_size)
        self.before = _snapshot(self.module)
        graphdef, rng_state, self.variables = nnx.split(self.module, nnx.RngState, ...)

        def run(variables: Any, *args: Any) -> tuple[Any, Any]:
            copy = nnx.merge(graphdef, rng_state, variables)
            return copy.unroll(*args), _snapshot(copy)

        # Sequences are compiled, single calls are not, so that both ways of running a module are tried.
        self._unroll = jax.jit(run)
        self.rollout = self.step_through(self.start, self.inputs, self.dones)

    def step(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        out = self.module(state, x, rollout_extras)
        self.compare_variables("a call", _snapshot(self.module))
        _compare_types("next_state, compared with the carry given in,", out.next_state, state)
        _check_axes(out, jax.tree.leaves(x)[0].shape[0])
        return out

    def unroll(self, state: Any, xs: Any, dones: jax.Array, rollout_extras: Any = None) -> StatefulModuleOutput:
        out, variables = self._unroll(self.variables, state, xs, dones, rollout_extras)
        self.compare_variables("unroll", variables)
        return out

    def step_through(self, state: Any, xs: Any, dones: jax.Array, rollout_extras: Any = None) -> StatefulModuleOutput:
        """Do in a Python loop, one call a step, what ``unroll`` does at once."""
        outs = []
        for t in range(dones.shape[0]):
            x, extras = _take((xs, rollout_extras), t)
            out = self.step(state, x, extras)
            state = reset_where(self.module, dones[t], out.next_state)
            loss = np.broadcast_to(np.asarray(out.regularization_loss), dones.shape[1:])
            outs.append(out.replace(next_state=None, regularization_loss=loss))
        return _stack(outs).replace(next_state=state)

    def input_at(self, t: int) -> Any:
        return _take(self.inputs, t)

    def compare(self, what: str, got: Any, expected: Any, exact: bool = False) -> None:
        _compare(what, got, expected, 0.0 if exact else self.tolerance)

    def compare_variables(self, after: str, variables: Any) -> None:
        _compare(f"a variable of the module after {after}", variables, self.before, 0.0)


def _check_axes(out: StatefulModuleOutput, batch_size: int) -> None:
    for name in ("output", "metrics", "rollout_extras"):
        _check_leading_axis(name, getattr(out, name), batch_size)
    if jnp.shape(out.regularization_loss) not in ((), (batch_size,)):
        raise ContractError(
            f"regularization_loss must be a scalar or one number per sample, shape ({batch_size},), "
            f"got shape {jnp.shape(out.regularization_loss)}."
        )


def _check_shapes(module: StatefulModule, inputs: Any) -> None:
    """What training finds out before it compiles anything."""
    sample = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), inputs)
    try:
        try_network(module, sample)
    except FitError as error:
        raise ContractError(str(error)) from error


def _check_numbers(case: _Case) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(case.rollout.output):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and (n := int(jnp.isnan(leaf).sum())):
            raise ContractError(
                f"output{jax.tree_util.keystr(path)} is NaN in {n} of {leaf.size} numbers, for inputs that are finite."
            )


def _check_unroll(case: _Case) -> None:
    got = case.unroll(case.start, case.inputs, case.dones)
    try:
        case.compare("unroll, compared with stepping,", got, case.rollout)
    except ContractError as error:
        raise ContractError(
            f"{error} All that changes from call to call belongs into the carry: counters, and for random numbers "
            "a key per environment (see NoiseLayer)."
        ) from None


def _check_rollout_of_one(case: _Case) -> None:
    first = _take(case.inputs, slice(1))
    got = case.unroll(case.start, first, case.dones[:1])
    expected = case.step_through(case.start, first, case.dones[:1])
    case.compare("unroll of one step, compared with one call,", got, expected)


def _check_replay(case: _Case) -> None:
    for how, run in (("unroll", case.unroll), ("stepping", case.step_through)):
        replay = run(case.start, case.inputs, case.dones, case.rollout.rollout_extras)
        for name in ("output", "regularization_loss", "next_state"):
            got, expected = getattr(replay, name), getattr(case.rollout, name)
            case.compare(f"{name} of a replay by {how}, compared with the rollout,", got, expected)


def _check_permutation(case: _Case) -> None:
    order = np.roll(np.arange(case.batch_size), 1)
    state, x = case.rollout.next_state, case.input_at(0)
    out, permuted = case.step(state, x), case.step(_take(state, order), _take(x, order))
    for name in ("output", "next_state", "metrics", "rollout_extras"):
        what = f"{name} of a permuted batch, compared with the permuted {name},"
        case.compare(what, getattr(permuted, name), _take(getattr(out, name), order))


def _check_batch_of_one(case: _Case) -> None:
    state, x = case.rollout.next_state, case.input_at(0)
    out, alone = case.step(state, x), case.step(_take(state, slice(1)), _take(x, slice(1)))
    for name in ("output", "next_state"):
        what = f"{name} of a batch of one, compared with the same sample in a larger batch,"
        case.compare(what, getattr(alone, name), _take(getattr(out, name), slice(1)))
    _check_leading_axis("initialize_state(1)", case.module.initialize_state(1), 1)


def _check_next_rollout(case: _Case) -> None:
    n_steps, batch_size = case.dones.shape
    start = case.rollout.next_state
    # One environment ends at each step, another one at each turn.
    dones = jnp.asarray(np.arange(n_steps)[:, None] % batch_size == np.arange(batch_size)[None])
    rollout = case.step_through(start, case.inputs, dones)
    everyone = np.arange(batch_size)
    for index in (everyone, everyone[::-1] // 2):
        chosen = (slice(None), index)
        xs, extras = _take((case.inputs, rollout.rollout_extras), chosen)
        replay = case.unroll(_take(start, index), xs, dones[:, index], extras)
        who = f"environments {index.tolist()} of the second rollout"
        for name in ("output", "regularization_loss"):
            expected = _take(getattr(rollout, name), chosen)
            case.compare(f"{name} of a replay of {who}, compared with that rollout,", getattr(replay, name), expected)
        case.compare(f"the carry after a replay of {who}", replay.next_state, _take(rollout.next_state, index))


def _check_reset(case: _Case) -> None:
    used = case.rollout.next_state
    _compare_types("reset_state, compared with the carry given in,", case.module.reset_state(used), used)
    reset = reset_where(case.module, jnp.arange(case.batch_size) == 0, used)
    fresh = case.module.initialize_state(case.batch_size)
    without_keys = lambda tree: [leaf for leaf in jax.tree.leaves(tree) if not _is_key(leaf)]  # noqa: E731
    for got, expected in zip(without_keys(reset), without_keys(fresh), strict=True):
        case.compare("the carry after a reset, compared with initialize_state,", got[:1], expected[:1], exact=True)
    others = slice(1, None)
    what = "the carry of an environment that was not reset"
    case.compare(what, _take(reset, others), _take(used, others), exact=True)


def _check_statistics(case: _Case) -> None:
    case.module.update_statistics(None)
    case.compare_variables("update_statistics(None)", _snapshot(case.module))
    case.module.update_statistics(case.rollout.rollout_extras)
    after = _snapshot(case.module)
    _compare_types("a variable after update_statistics, compared with before,", after, case.before)


def _snapshot(module: StatefulModule) -> Any:
    """Contents of all variables but the random streams; arrays, since variables would show later writes too."""
    return nnx.to_pure_dict(nnx.state(module, nnx.Not(nnx.RngState)))


def _scatter(rng: np.random.Generator, leaf: Any, lead: tuple[int, ...]) -> jax.Array:
    leaf = jnp.asarray(leaf)
    repeated = np.broadcast_to(np.asarray(leaf), lead + leaf.shape)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        repeated = repeated + rng.normal(size=repeated.shape)
    return jnp.asarray(repeated, leaf.dtype)


def _take(tree: Any, index: Any) -> Any:
    """Index the leading axis of every leaf, on the host, where it need not be compiled for each shape."""

    def take(leaf: Any) -> jax.Array:
        leaf = jnp.asarray(leaf)
        if _is_key(leaf):
            data = np.asarray(jax.random.key_data(leaf))[index]
            return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(leaf))
        return jnp.asarray(np.asarray(leaf)[index])

    return jax.tree.map(take, tree)


def _stack(trees: list[Any]) -> Any:
    """Stack trees of arrays along a new leading axis, on the host."""
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack([np.asarray(leaf) for leaf in leaves])), *trees)


def _check_leading_axis(what: str, tree: Any, batch_size: int) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if jnp.shape(leaf)[:1] != (batch_size,):
            raise ContractError(
                f"{what}{jax.tree_util.keystr(path)} must have the leading axis {batch_size} (batch), "
                f"got shape {jnp.shape(leaf)}."
            )


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.asarray(leaf).dtype, jax.dtypes.prng_key)


def _compare_types(what: str, got: Any, expected: Any) -> None:
    if jax.tree.structure(got) != jax.tree.structure(expected):
        raise ContractError(
            f"{what} has another structure: expected {jax.tree.structure(expected)}, got {jax.tree.structure(got)}."
        )
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        a, b = jnp.asarray(a), jnp.asarray(b)
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise ContractError(
                f"{what} differs at {jax.tree_util.keystr(path) or 'its only leaf'}: expected {b.dtype}{b.shape}, "
                f"got {a.dtype}{a.shape}."
            )


def _compare(what: str, got: Any, expected: Any, tolerance: float | None) -> None:
    _compare_types(what, got, expected)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        a, b = _as_numpy(a), _as_numpy(b)
        # Integers, booleans and PRNG keys are equal or they are not.
        exact = not np.issubdtype(a.dtype, np.floating)
        limit = 0.0 if exact else _default_tolerance(a.dtype) if tolerance is None else tolerance
        same = np.isclose(a, b, rtol=limit, atol=limit, equal_nan=True)
        if not same.all():
            worst = np.max(np.abs(a.astype(float) - b.astype(float))[~same])
            first = tuple(int(i) for i in np.argwhere(~same)[0])
            raise ContractError(
                f"{what} differs at {jax.tree_util.keystr(path) or 'its only leaf'}: {int((~same).sum())} of {a.size} "
                f"numbers, by up to {worst:.3g} (allowed: {limit:g}), first at index {first}."
            )


def _as_numpy(leaf: Any) -> np.ndarray:
    leaf = jnp.asarray(leaf)
    array = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def _default_tolerance(dtype: Any) -> float:
    return 1e-10 if dtype == np.float64 else 1e-5
