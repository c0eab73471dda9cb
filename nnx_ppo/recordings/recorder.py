"""Record any number of steps or episodes to disk; the device computes the next chunk while this one is written."""

import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from nnx_ppo._versions import versions
from nnx_ppo.algorithms.rollout import recordable_copy
from nnx_ppo.envs.types import RLEnv
from nnx_ppo.envs.vector import vectorize
from nnx_ppo.networks._rng import as_key
from nnx_ppo.networks.naming import describe
from nnx_ppo.networks.recording import Patterns
from nnx_ppo.networks.types import StatefulModule
from nnx_ppo.recordings import layout
from nnx_ppo.recordings.chunks import NEVER, Program
from nnx_ppo.recordings.extra import analysis_packages
from nnx_ppo.recordings.extra_fields import Extras
from nnx_ppo.recordings.freeing import returning_memory
from nnx_ppo.recordings.progress import RecordingProgress
from nnx_ppo.recordings.reading import Recording, open_recording
from nnx_ppo.recordings.store import RecordingWriter, require_free
from nnx_ppo.recordings.summary import in_network_order

LARGEST_ARRAY_BYTES = 4 * 2**20
"""Of a chunk: large enough that a file takes longer to compress than to make, small enough for processor caches."""
CHUNK_BYTES = 64 * 2**20
"""Of a chunk, all arrays together."""
MAX_CHUNK_STEPS = 10_000
DTYPES = ("float16", "bfloat16", "float32")
PACKAGES = ("nnx-ppo", "jax", "flax", "numpy", "zarr")

Reset = Literal["auto", "never"]
ExtraFields = Sequence[str] | Mapping[str, Callable[[Any], Any] | None]


def record(
    env: RLEnv,
    network: StatefulModule,
    path: str | os.PathLike[str],
    *,
    n_envs: int,
    key: Any,
    n_steps: int | None = None,
    n_episodes: int | None = None,
    reset: Reset = "auto",
    include: Patterns = None,
    exclude: Patterns = None,
    what: Sequence[str] = ("output",),
    extras: ExtraFields = (),
    dtype: str | None = None,
    chunk_steps: int | None = None,
    replace: bool = False,
    attributes: Mapping[str, Any] | None = None,
    show_progress: bool = True,
) -> Recording:
    """Record every layer while the policy acts without exploration, to a Zarr store of any size.

    Memory: two chunks, whatever the length. The values depend on ``(env, network, n_envs, key, reset)`` alone, not on
    ``chunk_steps``, nor on how many steps or episodes are asked for. ``network`` stays as it is, whatever its mode. A
    second recording of the same shapes compiles nothing. Needs the ``analysis`` extra.

    On Ctrl-C, an exception or a full disk, and if the process is killed, the chunks that are complete stay, and the
    store says how many.

    Args:
        env: a single environment.
        network: the network, ordinary or already recordable.
        path: folder to make, ``.zarr`` by custom.
        n_envs: environments in parallel, ``N``.
        key: PRNG key or int seed; start states and everything random follow from it.
        n_steps: steps of each environment, ``T``. With ``n_episodes`` the most steps that are taken.
        n_episodes: episodes of each environment, the same number of each, so that short ones are not favoured. The
            recording ends with the last of them; ``valid`` is false where an environment has done its share.
        reset: ``"auto"``: episode follows episode, with the network's memory reset at each start, as in training.
            ``"never"``: one episode, stepped on after its end, as in ``record_activations_rollout``; ``valid`` is false
            there.
        include: glob patterns on the canonical layer path; only these layers.
        exclude: glob patterns; not these layers.
        what: ``"output"``, ``"carry"``, ``"pre_activation"``; see
            :func:`~nnx_ppo.networks.recording.with_recording`.
        extras: what else to keep of the environment: paths into its state, ``("metrics/speed", "data/qpos")``, or a
            dict from names to functions of a single state (``None`` for a path). ``metrics`` are those of the step,
            like the reward; everything else is of the state that the observation shows.
        dtype: round layers to ``"float16"`` or ``"bfloat16"`` (or float64 ones to ``"float32"``); the largest error of
            each layer is in the attribute ``rounding_error`` of the store.
        chunk_steps: steps of a chunk; by default as many as make its largest array 4 MiB, and all at most 64 MiB.
        replace: put the recording in the place of one that exists, once it is complete.
        attributes: what else to note in the store, anything that JSON can hold: configuration, checkpoint.
        show_progress: draw a progress bar on standard error, where that is a terminal.

    Returns:
        The recording, open for reading.

    Raises:
        ValueError: neither ``n_steps`` nor ``n_episodes``, a number that is not positive, an unknown option, or a path
            that is taken.
        ImportError: zarr is missing.

    Example:
        >>> import tempfile
        >>> from flax import nnx
        >>> from nnx_ppo.envs import make_env
        >>> from nnx_ppo.networks import make_mlp_actor_critic
        >>> env = make_env("probe:counting")
        >>> network = make_mlp_actor_critic(1, 1, [8], [8], nnx.Rngs(0))
        >>> folder = tempfile.TemporaryDirectory()
        >>> recording = record(env, network, folder.name + "/r.zarr", n_envs=2, n_episodes=3, key=0)
        >>> recording.layer("1/action/0").shape
        (12, 2, 8)
    """
    path = pathlib.Path(path)
    _require_options(n_envs, n_steps, n_episodes, chunk_steps, reset, dtype)
    analysis_packages()
    require_free(path, replace)
    recordable = recordable_copy(network, include=include, exclude=exclude, what=what)
    key = as_key(key)

    def program(chunk_steps: int) -> Program:
        return Program(
            env,
            recordable,
            n_envs=n_envs,
            chunk_steps=chunk_steps,
            restarts=reset == "auto",
            dtype=None if dtype is None else jnp.dtype(dtype),
            extras=_extras(extras),
        )

    rows = program(1).shapes(key)
    rows[layout.LAYERS] = in_network_order(rows[layout.LAYERS], network)
    chunk_steps = chunk_steps or _chunk_steps(rows, n_steps)
    about = _attributes(env, network, n_envs, key, reset, dtype, n_episodes) | dict(attributes or {})
    with (
        returning_memory(),
        RecordingWriter(path, rows, chunk_steps=chunk_steps, attributes=about, replace=replace) as writer,
        RecordingProgress(n_envs, n_steps, n_episodes, show=show_progress) as progress,
    ):
        for rows, rounding in _run(program(chunk_steps), key, chunk_steps, n_steps, n_episodes, reset):
            writer.append(rows, {"rounding_error": rounding} if dtype else {})
            progress.update(rows)
            del rows  # or this chunk would live until the one after the next is on its way
        progress.verifying()
        writer.finish()
    return open_recording(path)


def _run(
    program: Program, key: jax.Array, chunk_steps: int, n_steps: int | None, n_episodes: int | None, reset: Reset
) -> Iterator[tuple[dict[str, Any], dict[str, float]]]:
    """Yield chunks on the host; the next one is dispatched before one is fetched."""
    stop_at = NEVER if n_episodes is None else n_episodes
    valid_below = min(stop_at, 1) if reset == "never" else stop_at
    left = NEVER if n_steps is None else n_steps
    state = program.start(key)

    def dispatch(state: Any) -> tuple[int, Any]:
        asked = min(chunk_steps, left)
        return asked, program.chunk(state, asked, valid_below, stop_at)

    asked, pending = dispatch(state)
    while True:
        left -= asked if n_steps is not None else 0
        state, rows, count = pending
        following = dispatch(state) if left > 0 else None
        rows, count, rounding = jax.device_get((rows, count, state.rounding))
        if count > 0:
            yield jax.tree.map(lambda x: x[:count], rows), {name: float(x) for name, x in rounding.items()}  # noqa: B023
        if following is None or count < asked:
            return
        asked, pending = following
        # Before the next dispatch only the chunk on its way may be alive.
        del rows, following


def _require_options(
    n_envs: int, n_steps: int | None, n_episodes: int | None, chunk_steps: int | None, reset: Any, dtype: Any
) -> None:
    if n_steps is None and n_episodes is None:
        raise ValueError("say how long to record: n_steps=..., or n_episodes=... of each environment.")
    numbers = {"n_envs": n_envs, "n_steps": n_steps, "n_episodes": n_episodes, "chunk_steps": chunk_steps}
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}.")
    if reset not in ("auto", "never"):
        raise ValueError(f"reset must be 'auto' or 'never', got {reset!r}.")
    if reset == "never" and n_episodes not in (None, 1):
        raise ValueError(f"reset='never' records one episode of each environment, got n_episodes={n_episodes}.")
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype must be None or one of {', '.join(DTYPES)}, got {dtype!r}.")


def _extras(extras: ExtraFields) -> Extras:
    if isinstance(extras, str):
        raise ValueError(
            f"extras must be a sequence of names or a dict, got the string {extras!r}: write ({extras!r},)."
        )
    if not isinstance(extras, Mapping):
        return Extras(tuple(extras))
    functions = {name: function for name, function in extras.items() if function is not None}
    return Extras(tuple(name for name, function in extras.items() if function is None), functions)


def _chunk_steps(rows: Any, n_steps: int | None) -> int:
    sizes = [leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(rows)]
    limits = (LARGEST_ARRAY_BYTES // max(sizes), CHUNK_BYTES // sum(sizes), MAX_CHUNK_STEPS, n_steps or MAX_CHUNK_STEPS)
    return max(1, min(limits))


def _attributes(
    env: Any, network: StatefulModule, n_envs: int, key: jax.Array, reset: str, dtype: str | None, quota: int | None
) -> dict[str, Any]:
    time_step = getattr(env, "dt", None)
    return {
        "key": {"implementation": str(jax.random.key_impl(key)), "data": np.asarray(jax.random.key_data(key)).tolist()},
        # Without addresses: the same environment is to have the same name in every recording.
        "env": re.sub(r" at 0x[0-9a-f]+", "", repr(env)),
        "network": str(describe(network, vectorize(env).spec().obs)),
        "n_envs": n_envs,
        "reset": reset,
        "n_episodes": quota,
        "dtype": dtype,
        "time_step": None if time_step is None else float(time_step),
        "versions": versions(PACKAGES),
    }
