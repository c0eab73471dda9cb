"""Whether a rollout can fit into memory at all: reckoned from shapes before anything compiles, said when it cannot."""

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import jax

from nnx_ppo.algorithms.config import PPOConfig
from nnx_ppo.algorithms.fit.trial import Trial
from nnx_ppo.envs.check import EnvSpec

_ADVICE = "Lower n_envs or rollout_length (of PPOConfig; --ppo.n-envs, --ppo.rollout-length)"


def warn_of_memory(spec: EnvSpec, trial: Trial, batch_size: int, config: PPOConfig) -> None:
    """Warn where the device has less memory than one rollout takes.

    Args:
        spec: of one environment.
        trial: what the network does with a batch.
        batch_size: of the trial.
        config: number of environments and of steps.
    """
    needed = rollout_bytes(spec, trial, batch_size, config)
    available = available_bytes()
    if available is not None and needed > available:
        warnings.warn(
            f"One rollout of n_envs={config.n_envs:,} times rollout_length={config.rollout_length:,} steps takes about "
            f"{_gib(needed)}, and the update more, where {jax.devices()[0].device_kind!r} has {_gib(available)}. "
            f"{_ADVICE}.",
            stacklevel=1,
        )


def rollout_bytes(spec: EnvSpec, trial: Trial, batch_size: int, config: PPOConfig) -> int:
    """Bytes of what a rollout keeps for the loss, and of the states of all environments, without what an update needs.

    Kept of each step are the observation, the network's snapshots, the log-likelihoods, the reward, two flags, and
    value, advantage and target.
    """
    output = trial.output
    per_env = _bytes(spec.state) + 2 * _bytes(trial.carry) // batch_size
    per_step = _bytes((spec.obs, spec.reward)) + 2
    per_step += _bytes((trial.rollout_extras, output.loglikelihoods, [output.value_estimates] * 3)) // batch_size
    return config.n_envs * (per_env + config.rollout_length * per_step)


def available_bytes() -> int | None:
    """Memory of the first device, or of the machine where that is its processor; ``None`` where it is not told."""
    device = jax.devices()[0]
    stats = device.memory_stats() or {}
    if device.platform == "cpu" and "bytes_limit" not in stats:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return stats.get("bytes_limit")


@contextlib.contextmanager
def advice_on_memory() -> Iterator[None]:
    """Add what to do to the error of a device that runs out of memory."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            error.add_note(f"{_ADVICE}, or for an evaluation EvalConfig.n_envs (--eval.n-envs).")
        raise


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _gib(n: int) -> str:
    return f"{n / 2**30:,.1f} GiB"
