"""What to say of the calls of a trial: which of the modules is at fault, and in what."""

from typing import Any

import jax
import jax.numpy as jnp

from nnx_ppo._blame import raised_at
from nnx_ppo.algorithms.fit.contract import loss_fault, output_fault, signature_fault
from nnx_ppo.algorithms.fit.text import changes, unbatched
from nnx_ppo.algorithms.fit.watch import Call, Watch
from nnx_ppo.networks.types import StatefulModuleOutput


def explain(watch: Watch, error: Exception, obs: str) -> str:
    """What to say of an exception out of a network."""
    where = raised_at(error)
    if not where and watch.raised and (fault := signature_fault(*watch.raised)):
        return fault
    # A parent that stumbles over what its child returned stumbles right after that call; a container adds losses later.
    suspects = watch.calls if not where else watch.calls[-1:]
    if fault := next((fault for fault in map(_output_fault, suspects) if fault is not None), None):
        return fault
    if not where and (call := watch.first(has_wrong_loss, "__call__", "unroll")):
        return wrong_loss(call)
    if not where and (fault := unroll_fault(watch)):
        return fault
    module, method = watch.raised[:2] if watch.raised else ("The network", "a method")
    cause = f"{module} raised {type(error).__name__} in {method}: {error}"
    if where:
        return f"{cause}\n{where}\nThis was tried with the observation {obs}; nothing is trained yet."
    return f"The network does not accept the environment's observation, {obs}. {cause}"


def _output_fault(call: Call) -> str | None:
    fault = output_fault(call.result, call.method) if call.method in ("__call__", "unroll") else None
    return None if fault is None else f"{call.module} {fault}"


def has_wrong_loss(call: Call) -> bool:
    """Whether a step or sequence came with a loss that is neither a scalar nor one number per sample."""
    return jnp.shape(call.result.regularization_loss) not in ((), call.lead)


def wrong_loss(call: Call) -> str:
    """What to say of it."""
    return f"{call.module} {loss_fault(call.result.regularization_loss)}"


def unroll_fault(watch: Watch) -> str | None:
    """What to say of the first module whose unroll does not give what its steps give, with time in front."""
    steps: dict[str, Any] = {}
    for call in watch.calls:
        if call.method == "__call__":
            steps.setdefault(call.module, call.result)
        elif call.method == "unroll" and isinstance(steps.get(call.module), StatefulModuleOutput):
            t, n = call.lead
            expected = _structs_over_time(steps[call.module].output, t)
            if shapes(expected) != shapes(call.result.output):
                differ = changes(expected, call.result.output, "in steps", "unrolled")
                when = "" if call.args[3:] in ((), (None,)) else ", given the rollout_extras of a rollout,"
                return (
                    f"{call.module}: unroll{when} does not give what {t} steps of {n} environments give, [T, B, ...]: "
                    f"{differ}. Let unroll, and calls with rollout_extras, return outputs of these shapes and dtypes."
                )
    return None


def shapes(tree: Any) -> Any:
    """Structure and shapes; in which precision a sequence is computed is the module's own affair."""
    return jax.tree.structure(tree), [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]


def _structs_over_time(tree: Any, t: int) -> Any:
    # Shapes alone, since the values belong to a trace that may be over.
    def struct(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((t, *jnp.shape(leaf)), getattr(leaf, "dtype", jnp.float32))

    return jax.tree.map(struct, tree)


def unbatched_extras(call: Call) -> str:
    """Leaves of a step's snapshots that have no batch in front, as words."""
    return unbatched(call.result.rollout_extras, *call.lead)


def carry_of(call: Call) -> Any:
    """The carry that a call gave back."""
    return call.result if call.method == "reset_state" else call.result.next_state
