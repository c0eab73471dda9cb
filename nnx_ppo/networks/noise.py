"""GaussianNoise: normal noise added to whatever passes through, in training only."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nnx_ppo._pytree import fold_time
from nnx_ppo.networks._checks import describe_input
from nnx_ppo.networks._dtypes import as_float, zero_loss
from nnx_ppo.networks._keys import initial_keys, key_sequence, next_keys, normal, own_stream
from nnx_ppo.networks.types import Carry, StatefulModule, StatefulModuleOutput


class NoiseLayer(StatefulModule):
    """Base of the layers that draw standard normal noise. A subclass says in :meth:`apply` what becomes of it.

    The carry is ``{"key": [B]}``, one PRNG key per environment, which the end of an episode does not reset. Rollout
    emits the noise as ``rollout_extras``; replay hands it back, so that the same noise meets the current parameters,
    and gradients pass (Kingma & Welling 2014). In eval mode (``deterministic``) there is no noise, and keys stay.

    Args:
        rng: where the first keys come from: the stream ``sampling`` (or the default one) of an ``nnx.Rngs``, or an
            ``nnx.RngStream``. The layer forks its own stream.
    """

    def __init__(self, rng: nnx.Rngs | nnx.RngStream):
        self.rng = own_stream(rng)
        self.deterministic = False

    def initialize_state(self, batch_size: int) -> Carry:
        return initial_keys(self.rng, batch_size)

    def draw(self, x: Any, keys: jax.Array | None) -> Any:
        """Return the noise for an input ``[..., F]``: one row per key, zeros where there is no key."""
        shape = self.noise_shape(x)
        if keys is None:
            return jnp.zeros(shape, as_float(x).dtype)
        return normal(keys, shape[keys.ndim :], as_float(x).dtype)

    def noise_shape(self, x: Any) -> tuple[int, ...]:
        """Shape of the noise for an input, leading axes included."""
        return x.shape

    @abc.abstractmethod
    def apply(self, x: jax.Array, noise: jax.Array) -> tuple[Any, Any, dict[str, Any]]:
        """Return output, regularization loss ``[B]`` and metrics for ``x`` and its noise, leaves ``[B, ...]``."""

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        self.check_input(x, 1)
        next_state, keys = (state, None) if self.deterministic else next_keys(state)
        noise = self.draw(x, keys) if rollout_extras is None else rollout_extras
        output, loss, metrics = self.apply(as_float(x), noise)
        return StatefulModuleOutput(next_state, output, loss, metrics, noise)

    def unroll(self, state: Carry, xs: Any, dones: jax.Array, rollout_extras: Any = None) -> StatefulModuleOutput:
        self.check_input(xs, 2)
        next_state, keys = (state, None) if self.deterministic else key_sequence(state, dones.shape[0])
        noise = self.draw(xs, keys) if rollout_extras is None else rollout_extras
        parts = self.apply(fold_time(as_float(xs)), fold_time(noise))
        output, loss, metrics = jax.tree.map(lambda leaf: leaf.reshape(dones.shape + leaf.shape[1:]), parts)
        return StatefulModuleOutput(next_state, output, loss, metrics, noise)

    def check_input(self, x: Any, n_lead: int) -> None:
        """Refuse an input that is not an array with ``n_lead`` batch axes and one of features."""
        if getattr(x, "ndim", 0) < n_lead + 1:
            raise ValueError(f"{type(self).__name__}: expected an array [B, F], got {describe_input(x)}.")


class GaussianNoise(NoiseLayer):
    """``x + std * noise`` with noise from N(0, 1), ``[B, ...] -> [B, ...]``; the identity in eval mode.

    Args:
        std: standard deviation, in units of the input.
        rng: see :class:`NoiseLayer`.

    Raises:
        ValueError: a negative ``std``; when called, an input without batch and feature axis.
    """

    def __init__(self, std: float, rng: nnx.Rngs | nnx.RngStream):
        super().__init__(rng)
        if not std >= 0:
            raise ValueError(f"GaussianNoise: std must be at least 0, got {std!r}.")
        self.std = std

    def apply(self, x: jax.Array, noise: jax.Array) -> tuple[Any, Any, dict[str, Any]]:
        return x + self.std * noise, zero_loss(x), {}
