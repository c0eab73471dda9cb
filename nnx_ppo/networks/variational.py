"""Variational bottlenecks: a sampled latent, and the price of telling it from noise."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nnx_ppo._pytree import expand_to
from nnx_ppo.networks._checks import describe_input
from nnx_ppo.networks._dtypes import default_float
from nnx_ppo.networks.noise import NoiseLayer
from nnx_ppo.networks.types import Carry, StatefulModuleOutput


class VariationalBottleneck(NoiseLayer):
    """Latent ``z ~ N(mu, sigma)``, with its divergence from N(0, 1) as loss, ``[B, 2 * latent] -> [B, latent]``.

    Input: the means, then the standard deviations before softplus, ``sigma = softplus(raw) + min_std``. The
    ``regularization_loss`` is ``kl_weight * KL(N(mu, sigma) || N(0, 1))``, summed over latents (Alemi et al. 2017).
    In eval mode the latent is ``mu``. Carry and replay: see :class:`~nnx_ppo.networks.noise.NoiseLayer`; replay takes
    the stored noise, so that gradients reach ``mu`` and ``sigma`` through the latent.
    Metrics: ``mu``, ``sigma`` (``[B, latent]``), ``kl_divergence`` (``[B]``, nats).

    Args:
        latent_size: width of the latent.
        rng: where the first keys come from.
        kl_weight: weight of the divergence, per nat.
        min_std: smallest standard deviation.

    Raises:
        ValueError: ``latent_size`` below 1, negative ``min_std``; when called, an input that is not
            ``[B, 2 * latent]``.
    """

    def __init__(self, latent_size: int, rng: nnx.Rngs | nnx.RngStream, kl_weight: float = 1.0, min_std: float = 1e-6):
        super().__init__(rng)
        name = type(self).__name__
        if isinstance(latent_size, bool) or not hasattr(latent_size, "__index__") or latent_size < 1:
            raise ValueError(f"{name}: latent_size must be an integer of at least 1, got {latent_size!r}.")
        if not min_std >= 0:
            raise ValueError(f"{name}: min_std must be at least 0, got {min_std!r}.")
        self.latent_size = latent_size
        self.kl_weight = kl_weight
        self.min_std = min_std

    def noise_shape(self, x: Any) -> tuple[int, ...]:
        return x.shape[:-1] + (self.latent_size,)

    def apply(self, x: jax.Array, noise: jax.Array) -> tuple[Any, Any, dict[str, Any]]:
        mu, raw_std = jnp.split(x, 2, axis=-1)
        sigma = jax.nn.softplus(raw_std) + self.min_std
        divergence = kl_to_standard_normal(mu, sigma)
        metrics = {"mu": mu, "sigma": sigma, "kl_divergence": divergence}
        return mu + sigma * noise, self.kl_weight * divergence, metrics

    def check_input(self, x: Any, n_lead: int) -> None:
        if getattr(x, "ndim", 0) != n_lead + 1 or x.shape[-1] != 2 * self.latent_size:
            raise ValueError(
                f"{type(self).__name__}: expected an array [B, {2 * self.latent_size}], a mean and a pre-softplus "
                f"standard deviation for each of {self.latent_size} latents, got {describe_input(x)}."
            )


class AR1VariationalBottleneck(VariationalBottleneck):
    """Variational bottleneck whose latent is also drawn to that of the step before, so that it changes slowly.

    Adds ``ar1_weight * l2_diff`` to the loss, with ``l2_diff = |z_t - z_{t-1}|^2``, summed over latents; 0 in the first
    step of an episode, which has no step before. The carry is ``{"key": [B], "latent": [B, latent], "started": [B]}``.
    Metrics: those of :class:`VariationalBottleneck`, and ``l2_diff`` (``[B]``).

    Args:
        latent_size: width of the latent.
        rng: where the first keys come from.
        kl_weight: weight of the divergence, per nat.
        min_std: smallest standard deviation.
        ar1_weight: weight of the squared difference.
        backprop_through_time: let its gradient reach the earlier latent too, and not only the later one.

    Raises:
        ValueError: as for :class:`VariationalBottleneck`.
    """

    def __init__(
        self,
        latent_size: int,
        rng: nnx.Rngs | nnx.RngStream,
        kl_weight: float = 1.0,
        min_std: float = 1e-6,
        ar1_weight: float = 1.0,
        backprop_through_time: bool = True,
    ):
        super().__init__(latent_size, rng, kl_weight, min_std)
        self.ar1_weight = ar1_weight
        self.backprop_through_time = backprop_through_time

    def initialize_state(self, batch_size: int) -> Carry:
        latent = jnp.zeros((batch_size, self.latent_size), default_float())
        return {**super().initialize_state(batch_size), "latent": latent, "started": jnp.zeros(batch_size, bool)}

    def reset_state(self, state: Carry) -> Carry:
        return {**state, "latent": jnp.zeros_like(state["latent"]), "started": jnp.zeros_like(state["started"])}

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        out = super().__call__({"key": state["key"]}, x, rollout_extras)
        out = self._penalised(out, state["latent"], state["started"])
        latent = out.output.astype(state["latent"].dtype)
        return out.replace(next_state={**out.next_state, "latent": latent, "started": jnp.ones_like(state["started"])})

    def unroll(self, state: Carry, xs: Any, dones: jax.Array, rollout_extras: Any = None) -> StatefulModuleOutput:
        out = super().unroll({"key": state["key"]}, xs, dones, rollout_extras)
        after = self.after_reset(out.output.astype(state["latent"].dtype), dones.astype(bool))
        before = {name: jnp.concatenate([state[name][None], after[name][:-1]]) for name in after}
        out = self._penalised(out, before["latent"], before["started"])
        return out.replace(next_state={**out.next_state, **{name: after[name][-1] for name in after}})

    def after_reset(self, latents: jax.Array, dones: jax.Array) -> dict[str, jax.Array]:
        """Latent and ``started`` that each step leaves to the next, ``[T, B, ...]``."""
        mask = jnp.broadcast_to(expand_to(dones, latents.ndim), latents.shape)
        return {"latent": jnp.where(mask, 0, latents), "started": ~dones}

    def _penalised(self, out: StatefulModuleOutput, previous: jax.Array, started: jax.Array) -> StatefulModuleOutput:
        if not self.backprop_through_time:
            previous = jax.lax.stop_gradient(previous)
        difference = out.output - previous.astype(out.output.dtype)
        l2_diff = jnp.where(started, jnp.sum(jnp.square(difference), axis=-1), 0)
        return out.replace(
            regularization_loss=out.regularization_loss + self.ar1_weight * l2_diff,
            metrics={**out.metrics, "l2_diff": l2_diff},
        )


def kl_to_standard_normal(mu: jax.Array, sigma: jax.Array) -> jax.Array:
    """``KL(N(mu, sigma) || N(0, 1))`` of diagonal normals, nats; ``[..., latent] -> [...]``."""
    return 0.5 * jnp.sum(jnp.square(mu) + jnp.square(sigma) - 1 - 2 * jnp.log(sigma), axis=-1)
