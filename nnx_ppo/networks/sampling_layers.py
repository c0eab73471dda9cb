"""Action samplers: distribution parameters in, an action and its log-likelihood out."""

import abc
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nnx_ppo._pytree import fold_time
from nnx_ppo.networks._checks import describe_input
from nnx_ppo.networks._dtypes import as_float
from nnx_ppo.networks._keys import initial_keys, key_sequence, next_keys, own_stream
from nnx_ppo.networks.types import Carry, StatefulModule, StatefulModuleOutput


class ActionSampler(StatefulModule):
    """Base of the samplers. A subclass says how to :meth:`draw` an action and how to :meth:`score` it.

    The output is the dict ``{"action": [B, ...], "log_likelihood": [B]}``. Rollout emits what was drawn as
    ``rollout_extras``; replay hands it back, and the stored draw is scored under the current parameters by the
    formula of the rollout. ``regularization_loss`` is ``-entropy_weight * entropy``, ``[B]``.

    The carry is ``{"key": [B]}``, one PRNG key per environment. Every step splits it, and an episode's end does not
    reset it. In eval mode (``deterministic``) the most likely action is taken and keys stay as they are.

    Args:
        rng: where the first keys come from: the stream ``sampling`` (or the default one) of an ``nnx.Rngs``, or an
            ``nnx.RngStream``. The sampler forks its own stream.
        entropy_weight: weight of the entropy bonus, per nat.

    Attributes:
        entropy_weight: as above.
        deterministic: set by ``eval()``, cleared by ``train()``.
    """

    def __init__(self, rng: nnx.Rngs | nnx.RngStream, entropy_weight: float):
        if not math.isfinite(entropy_weight):
            raise ValueError(f"{type(self).__name__}: entropy_weight must be a finite number, got {entropy_weight!r}.")
        self.rng = own_stream(rng)
        self.entropy_weight = entropy_weight
        self.deterministic = False

    @abc.abstractmethod
    def draw(self, x: Any, keys: jax.Array | None) -> Any:
        """Draw one action per sample.

        Args:
            x: distribution parameters, tree of ``[B, ...]``.
            keys: one PRNG key per sample, ``[B]``; ``None`` for the most likely action.

        Returns:
            What :meth:`score` needs to know of the draw, tree of ``[B, ...]``.
        """

    @abc.abstractmethod
    def score(self, x: Any, drawn: Any) -> tuple[dict[str, jax.Array], jax.Array, dict[str, jax.Array]]:
        """Return the output dict, the entropy (``[B]``, nats) and metrics of a draw under the parameters ``x``."""

    def initialize_state(self, batch_size: int) -> Carry:
        return initial_keys(self.rng, batch_size)

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        next_state, keys = (state, None) if self.deterministic else next_keys(state)
        return self._act(next_state, x, keys, rollout_extras)

    def unroll(self, state: Carry, xs: Any, dones: jax.Array, rollout_extras: Any = None) -> StatefulModuleOutput:
        next_state, keys = state, None
        if not self.deterministic:
            # Only the chain of keys is sequential. Replay uses neither keys nor carry, and compiles to no loop.
            next_state, keys = key_sequence(state, dones.shape[0])
        out = self._act(next_state, fold_time(xs), fold_time(keys), fold_time(rollout_extras))
        unfolded = jax.tree.map(lambda leaf: leaf.reshape(dones.shape + leaf.shape[1:]), out.replace(next_state=None))
        return unfolded.replace(next_state=next_state)

    def _act(self, next_state: Carry, x: Any, keys: jax.Array | None, rollout_extras: Any) -> StatefulModuleOutput:
        drawn = self.draw(x, keys) if rollout_extras is None else rollout_extras
        output, entropy, metrics = self.score(x, drawn)
        return StatefulModuleOutput(
            next_state, output, -self.entropy_weight * entropy, {**metrics, "entropy": entropy}, drawn
        )


class NormalTanhSampler(ActionSampler):
    """Diagonal normal distribution squashed by tanh: continuous actions in (-1, 1).

    Input ``[B, 2 * action]``: the means, then the standard deviations before softplus,
    ``sigma = (softplus(raw) + min_std) * std_scale``. The log-likelihood is that of the squashed action (Haarnoja et
    al. 2018, appendix C). The entropy has no closed form: it is that of the normal plus the log-determinant of tanh at
    ``mu + sigma * noise``, with the noise of the rollout, an unbiased estimate that needs no further random numbers.
    Metrics: ``mu``, ``sigma`` (``[B, action]``), ``entropy`` (``[B]``).

    Args:
        rng: see :class:`ActionSampler`.
        entropy_weight: weight of the entropy bonus, per nat.
        min_std: smallest standard deviation, before ``std_scale``.
        std_scale: factor on the standard deviation.

    Raises:
        ValueError: negative ``min_std``, ``std_scale`` not positive; when called, an input that is not
            ``[B, 2 * action]``.
    """

    def __init__(
        self,
        rng: nnx.Rngs | nnx.RngStream,
        entropy_weight: float,
        min_std: float = 1e-3,
        std_scale: float = 1.0,
    ):
        super().__init__(rng, entropy_weight)
        if not (math.isfinite(min_std) and min_std >= 0):
            raise ValueError(f"NormalTanhSampler: min_std must be at least 0, got {min_std!r}.")
        if not (math.isfinite(std_scale) and std_scale > 0):
            raise ValueError(f"NormalTanhSampler: std_scale must be above 0, got {std_scale!r}.")
        self.min_std = min_std
        self.std_scale = std_scale

    def draw(self, x: Any, keys: jax.Array | None) -> dict[str, jax.Array]:
        mu, sigma = self._parameters(x)
        if keys is None:
            return {"raw_action": mu, "noise": jnp.zeros_like(mu)}
        noise = jax.vmap(lambda key: jax.random.normal(key, mu.shape[1:], mu.dtype))(keys)
        return {"raw_action": mu + sigma * noise, "noise": noise}

    def score(self, x: Any, drawn: Any) -> tuple[dict[str, jax.Array], jax.Array, dict[str, jax.Array]]:
        mu, sigma = self._parameters(x)
        raw_action = drawn["raw_action"]
        output = {
            "action": jnp.tanh(raw_action),
            "log_likelihood": normal_tanh_log_likelihood(raw_action, mu, sigma),
        }
        return output, normal_tanh_entropy(mu, sigma, drawn["noise"]), {"mu": mu, "sigma": sigma}

    def _parameters(self, x: Any) -> tuple[jax.Array, jax.Array]:
        if not hasattr(x, "shape") or x.ndim != 2 or x.shape[-1] % 2:
            raise ValueError(
                "NormalTanhSampler: expected an array [B, 2 * action], a mean and a pre-softplus standard deviation "
                f"per action dimension, got {describe_input(x)}."
            )
        mu, raw_std = jnp.split(as_float(x), 2, axis=-1)
        return mu, (jax.nn.softplus(raw_std) + self.min_std) * self.std_scale


class CategoricalSampler(ActionSampler):
    """One of ``K`` discrete actions, drawn by the Gumbel-max trick; the action is int32 ``[B]``.

    Input: logits ``[B, K]``, or a dict ``{"logits": [B, K], "mask": [B, K]}``. Actions whose mask is zero have
    probability 0 and are never drawn; where a sample's mask allows no action at all, it is ignored. The entropy is
    exact. Metrics: ``max_probability``, ``entropy`` (``[B]``).

    Args:
        rng: see :class:`ActionSampler`.
        entropy_weight: weight of the entropy bonus, per nat.

    Raises:
        ValueError: when called, logits that are not ``[B, K]``, or a mask of another shape.
    """

    def draw(self, x: Any, keys: jax.Array | None) -> dict[str, jax.Array]:
        log_p, _ = _masked_log_probabilities(x)
        if keys is not None:
            log_p = log_p + jax.vmap(lambda key: jax.random.gumbel(key, log_p.shape[1:], log_p.dtype))(keys)
        return {"action": jnp.argmax(log_p, axis=-1).astype(jnp.int32)}

    def score(self, x: Any, drawn: Any) -> tuple[dict[str, jax.Array], jax.Array, dict[str, jax.Array]]:
        log_p, allowed = _masked_log_probabilities(x)
        p = jnp.exp(log_p)
        output = {
            "action": drawn["action"],
            "log_likelihood": jnp.take_along_axis(log_p, drawn["action"][:, None], axis=-1)[:, 0],
        }
        entropy = -jnp.sum(p * jnp.where(allowed, log_p, 0), axis=-1)
        return output, entropy, {"max_probability": jnp.max(p, axis=-1)}


def normal_tanh_log_likelihood(raw_action: jax.Array, mu: jax.Array, sigma: jax.Array) -> jax.Array:
    """Log-likelihood of ``tanh(raw_action)`` under a squashed diagonal normal, nats; all ``[..., action] -> [...]``.

    ``log p(tanh u) = log N(u; mu, sigma) - log(1 - tanh(u)^2)``, summed over the last axis.
    """
    normal = -0.5 * jnp.square((raw_action - mu) / sigma) - jnp.log(sigma) - 0.5 * math.log(2 * math.pi)
    return jnp.sum(normal - log_det_tanh(raw_action), axis=-1)


def normal_tanh_entropy(mu: jax.Array, sigma: jax.Array, noise: jax.Array) -> jax.Array:
    """One-sample estimate of the entropy of a squashed diagonal normal, nats; all ``[..., action] -> [...]``.

    ``H = H[N(mu, sigma)] + E[log(1 - tanh(u)^2)]`` at ``u = mu + sigma * noise``, ``noise`` from N(0, 1).
    """
    normal = 0.5 * math.log(2 * math.pi * math.e) + jnp.log(sigma)
    return jnp.sum(normal + log_det_tanh(mu + sigma * noise), axis=-1)


def log_det_tanh(u: jax.Array) -> jax.Array:
    """``log(1 - tanh(u)^2)`` without cancellation, finite with finite gradient for every finite ``u``."""
    return 2 * (math.log(2) - u - jax.nn.softplus(-2 * u))


def _masked_log_probabilities(x: Any) -> tuple[jax.Array, jax.Array]:
    """Return log-probabilities ``[B, K]`` and which actions are allowed, bool ``[B, K]``."""
    logits: Any = x
    mask: Any = None
    if isinstance(x, dict) and "logits" in x:
        logits, mask = x["logits"], x.get("mask")
    if getattr(logits, "ndim", 0) != 2:
        raise ValueError(
            "CategoricalSampler: expected logits [B, K], or a dict of 'logits' and 'mask', "
            f"got {describe_input(logits)}."
        )
    logits = as_float(logits)
    allowed = jnp.ones(logits.shape, bool) if mask is None else jnp.asarray(mask).astype(bool)
    if allowed.shape != logits.shape:
        raise ValueError(
            f"CategoricalSampler: expected a mask of the logits' shape {logits.shape}, got shape {allowed.shape}."
        )
    allowed = allowed | ~jnp.any(allowed, axis=-1, keepdims=True)
    # The lowest finite number rather than -inf, whose gradients would be NaN.
    log_p = jax.nn.log_softmax(jnp.where(allowed, logits, jnp.finfo(logits.dtype).min), axis=-1)
    return log_p, allowed
