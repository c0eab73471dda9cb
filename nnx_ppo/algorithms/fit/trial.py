"""All that training does with a network, tried by shapes alone; what is wrong is said of the module that does it."""

import functools
import itertools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nnx_ppo._pytree import PyTreeNode, has_leaves
from nnx_ppo.algorithms.fit.contract import FitError, loss_fault, output_fault, require_hashable
from nnx_ppo.algorithms.fit.faults import (
    carry_of,
    explain,
    has_wrong_loss,
    shapes,
    unbatched_extras,
    unroll_fault,
    wrong_loss,
)
from nnx_ppo.algorithms.fit.text import changes, describe_spec, unbatched
from nnx_ppo.algorithms.fit.watch import Watch, title
from nnx_ppo.networks.naming import named_modules, path_string
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput


class Trial(PyTreeNode):
    """What a network does with one batch, as trees of ``jax.ShapeDtypeStruct`` ``[B, ...]``.

    Attributes:
        carry: of ``B`` environments.
        output: of one step.
        rollout_extras: of one step.
    """

    carry: Any
    output: Any
    rollout_extras: Any


def try_network(networks: StatefulModule, obs: Any) -> tuple[Trial, int]:
    """Start, step, reset, unroll, replay, evaluate and fold statistics once; nothing is computed.

    Args:
        networks: the network; neither its variables nor its random streams change.
        obs: observation of one environment, a tree of ``jax.ShapeDtypeStruct``.

    Returns:
        What it does, and the batch size ``B`` of that.

    Raises:
        FitError: naming the module, what was expected of it, what came, and what to do.
    """
    graphdef, variables = nnx.split(networks)
    require_hashable(networks, graphdef)
    leaves, treedef = jax.tree.flatten((variables, obs))
    return _tried(graphdef, treedef, tuple(map(_struct, leaves)), jnp.result_type(float))


def _struct(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(leaf), leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf))


@functools.lru_cache(maxsize=64)
def _tried(graphdef: Any, treedef: Any, leaves: tuple[jax.ShapeDtypeStruct, ...], precision: Any) -> tuple[Trial, int]:
    del precision  # what is made inside depends on it
    variables, obs = jax.tree.unflatten(treedef, leaves)
    n, t = _unused_sizes(leaves)
    watch = Watch()

    def trial(variables: Any, x: Any) -> Trial:
        network = nnx.merge(graphdef, variables, copy=True)
        watch.put_on(network)
        return _Run(network, watch, n, t).all(x)

    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((n, *leaf.shape), leaf.dtype), obs)
    try:
        return jax.eval_shape(trial, variables, batch), n
    except FitError:
        raise
    except Exception as error:
        raise FitError(explain(watch, error, f"{describe_spec(obs)} per environment")) from error


def _unused_sizes(leaves: tuple[jax.ShapeDtypeStruct, ...]) -> tuple[int, int]:
    """A batch size and a number of steps that are no other size, so that no axis can pass for another."""
    used = {size for leaf in leaves for size in leaf.shape}
    free = (size for size in itertools.count(3) if size not in used)
    return next(free), next(free)


class _Run:
    """One trial of a copy of a network, inside ``jax.eval_shape``."""

    def __init__(self, network: StatefulModule, watch: Watch, n: int, t: int):
        self.network, self.watch, self.n, self.t = network, watch, n, t

    def all(self, x: Any) -> Trial:
        before = _attributes(self.network)
        carry = self.start()
        out = self.network(carry, x)
        self.require_step(carry, out)
        _warn_of_what_is_kept(before, _attributes(self.network))
        if has_leaves(carry):
            self.require_same_carry(carry, self.network.reset_state(carry), "reset_state")
        extras = self.over_time(out.rollout_extras)
        self.unroll(carry, x, out, None)
        self.unroll(carry, x, out, extras)
        self.fold_statistics(extras)
        self.network.eval()
        self.require_step(carry, self.network(carry, x))
        return Trial(carry, out.output, out.rollout_extras)

    def start(self) -> Any:
        carry = self.network.initialize_state(self.n)
        if wrong := unbatched(carry, self.n):
            call = self.watch.first(lambda call: unbatched(call.result, call.args[0]) != "", "initialize_state")
            module, wrong = (call.module, unbatched(call.result, call.args[0])) if call else ("The network", wrong)
            raise FitError(f"{module}: initialize_state({self.n}) gives {wrong}; {_BATCHED.format(n=self.n)}")
        return carry

    def unroll(self, carry: Any, x: Any, step: StatefulModuleOutput, extras: Any) -> None:
        out = self.network.unroll(carry, self.over_time(x), jnp.zeros((self.t, self.n), bool), extras)
        self.require_output(out, "unroll")
        self.require_same_carry(carry, out.next_state, "unroll")
        self.require_loss(out, "unroll")
        if shapes(self.over_time(step.output)) != shapes(out.output):
            raise FitError(unroll_fault(self.watch) or "The network's unroll gives another output than its steps.")

    def fold_statistics(self, extras: Any) -> None:
        before = _types(self.network)
        self.network.update_statistics(extras)
        after = _types(self.network)
        if name := next((name for name in before if before[name] != after.get(name)), None):
            raise FitError(
                f"update_statistics turns the variable {name} from {before[name]} into {after.get(name)}, given the "
                f"rollout_extras of {self.t} steps of {self.n} environments. A variable keeps its shape and dtype: "
                "average over the two leading axes, or cast."
            )

    def require_step(self, carry: Any, out: Any) -> None:
        self.require_output(out, "__call__")
        self.require_same_carry(carry, out.next_state, "__call__")
        self.require_loss(out, "__call__")
        if wrong := unbatched(out.rollout_extras, self.n):
            call = self.watch.first(lambda call: unbatched_extras(call) != "", "__call__")
            module, wrong = (call.module, unbatched_extras(call)) if call else ("The network", wrong)
            raise FitError(f"{module} returns rollout_extras with {wrong}; {_BATCHED.format(n=self.n)}")

    def require_output(self, out: Any, method: str) -> None:
        if (fault := output_fault(out, method)) is not None:
            raise FitError(f"{title('', self.network)} {fault}")

    def require_same_carry(self, carry: Any, after: Any, method: str) -> None:
        if not (differ := changes(carry, after)):
            return
        call = self.watch.first(lambda call: changes(call.args[0], carry_of(call)) != "", method)
        module, differ = (call.module, changes(call.args[0], carry_of(call))) if call else ("The network", differ)
        raise FitError(
            f"{module} changes its carry in {method} (B = {self.n}): {differ}. What comes out must have the "
            "structure, shapes and dtypes of what came in, which initialize_state made: the next step starts from it."
        )

    def require_loss(self, out: StatefulModuleOutput, method: str) -> None:
        lead = (self.n,) if method == "__call__" else (self.t, self.n)
        if jnp.shape(out.regularization_loss) not in ((), lead):
            call = self.watch.first(has_wrong_loss, "__call__", "unroll")
            raise FitError(wrong_loss(call) if call else f"The network {loss_fault(out.regularization_loss)}")

    def over_time(self, tree: Any) -> Any:
        return _over_time(tree, self.t)


def _over_time(tree: Any, t: int) -> Any:
    """The same at each of ``t`` steps."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (t, *jnp.shape(leaf))), tree)


_BATCHED = (
    "expected the batch in front, [{n}, ...], since entry b belongs to environment b. Make one entry per environment, "
    "with jnp.broadcast_to or jax.vmap, say."
)


def _warn_of_what_is_kept(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> None:
    """An array on the module itself would be lost after each step, as one module serves many environments."""
    for who, attributes in after.items():
        for name, value in attributes.items():
            if isinstance(value, jax.Array) and value is not before.get(who, {}).get(name):
                warnings.warn(
                    f"{who} keeps an array on itself when it is called, self.{name}: it is lost after the step. What "
                    "the next step needs belongs into the carry (next_state), what is to be logged into metrics.",
                    stacklevel=1,
                )


def _attributes(network: StatefulModule) -> dict[str, dict[str, Any]]:
    return {title(path, module): dict(vars(module)) for path, module in named_modules(network).items()}


def _types(network: StatefulModule) -> dict[str, str]:
    flat: Any = nnx.to_flat_state(nnx.state(network, nnx.Not(nnx.RngState)))
    leaves = ((path, leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf) for path, leaf in flat)
    return {path_string(path): describe_spec(value) for path, value in leaves}
