"""CTRNN: the leaky-integrator rate network of systems neuroscience."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nnx_ppo._pytree import fold_time
from nnx_ppo.networks._checks import check_features
from nnx_ppo.networks._dtypes import default_float, zero_loss
from nnx_ppo.networks._keys import initial_keys, key_sequence, next_keys, normal, own_stream
from nnx_ppo.networks.activations import resolve_function
from nnx_ppo.networks.types import Carry, StatefulModule, StatefulModuleOutput


class CTRNN(StatefulModule):
    """Continuous-time recurrent network in Euler steps, ``[B, in_features] -> [B, hidden_features]``.

    ``tau dv/dt = -v + r W + x W_in + b`` with the rates ``r = activation(v)`` as output, so that per step, with
    ``α = dt / tau`` (Song, Yang & Wang 2016):
    ``v_t = (1 - α) v_{t-1} + α (r_{t-1} W + x_t W_in + b) + sqrt(2 α) recurrent_noise ξ_t``.
    The carry is ``{"v": [B, hidden_features]}``, first zero, and with noise ``"key"``, one PRNG key per environment.
    In eval mode (``deterministic``) there is no noise.

    Args:
        in_features: width of the input.
        hidden_features: number of units.
        rngs: where the initial kernels, and with noise the first keys, are drawn from.
        tau: time constant, seconds; one number, or one per unit.
        dt: duration of a step, seconds; at most ``tau``.
        trainable_tau: let the time constants learn; they stay above ``dt``.
        activation: function from ``v`` to rates, or its name.
        excitatory_fraction: fraction of units whose outgoing recurrent weights are all positive; those of the others
            are all negative (Dale's law). The excitatory units come first. ``None``: weights of any sign.
        recurrent_noise: standard deviation of ``v`` that the noise alone would cause in a unit without input, in
            the limit of small ``α``.
        input_noise: standard deviation of noise added to the input at every step.
        kernel_init: initialiser of the input kernel.
        recurrent_kernel_init: initialiser of the recurrent kernel. Under Dale's law magnitudes are taken, and those of
            inhibitory units scaled up, so that excitation and inhibition balance.
        bias_init: initialiser of the bias.

    Raises:
        ValueError: ``dt`` or a ``tau`` that does not fit, negative noise, a fraction that leaves no excitatory or no
            inhibitory unit; when called, an input of another width.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        rngs: nnx.Rngs,
        *,
        tau: float | Sequence[float] = 0.1,
        dt: float = 0.02,
        trainable_tau: bool = False,
        activation: Callable[[jax.Array], jax.Array] | str = nnx.relu,
        excitatory_fraction: float | None = None,
        recurrent_noise: float = 0.0,
        input_noise: float = 0.0,
        kernel_init: Callable[..., Any] = nnx.initializers.lecun_normal(),
        recurrent_kernel_init: Callable[..., Any] = nnx.initializers.orthogonal(),
        bias_init: Callable[..., Any] = nnx.initializers.zeros_init(),
    ):
        taus = _check_times(tau, dt, hidden_features, trainable_tau)
        if not (recurrent_noise >= 0 and input_noise >= 0):
            raise ValueError(
                f"CTRNN: noise must be at least 0, got recurrent_noise={recurrent_noise!r}, "
                f"input_noise={input_noise!r}."
            )
        self.in_features = in_features
        self.hidden_features = hidden_features
        self.dt = dt
        self.activation = resolve_function(activation)
        self.recurrent_noise = recurrent_noise
        self.input_noise = input_noise
        self.n_excitatory = _n_excitatory(excitatory_fraction, hidden_features)
        self.deterministic = False

        dtype = default_float()
        self.input_kernel = nnx.Param(kernel_init(rngs.params(), (in_features, hidden_features), dtype))
        kernel = recurrent_kernel_init(rngs.params(), (hidden_features, hidden_features), dtype)
        if self.n_excitatory is not None:
            balance = self.n_excitatory / (hidden_features - self.n_excitatory)
            kernel = kernel.at[self.n_excitatory :].multiply(balance)
        self.recurrent_kernel = nnx.Param(kernel)
        self.bias = nnx.Param(bias_init(rngs.params(), (hidden_features,), dtype))
        self.trainable_tau = trainable_tau
        # Inverse of tau = dt (1 + softplus(raw)).
        raw = np.log(np.expm1(taus / dt - 1)) if trainable_tau else None
        self.raw_tau = None if raw is None else nnx.Param(jnp.asarray(raw, dtype))
        self.taus = None if trainable_tau else tuple(taus.tolist())
        self.rng = own_stream(rngs) if recurrent_noise or input_noise else None

    @property
    def tau(self) -> jax.Array:
        """Time constants, seconds, ``[hidden_features]``."""
        if self.raw_tau is not None:
            return self.dt * (1 + jax.nn.softplus(self.raw_tau[...]))
        return jnp.asarray(self.taus, self._dtype())

    def signed_kernel(self) -> jax.Array:
        """Recurrent weights as they act, ``[from, to]``: under Dale's law each row has one sign."""
        kernel = self.recurrent_kernel[...]
        if self.n_excitatory is None:
            return kernel
        excitatory = jnp.arange(self.hidden_features)[:, None] < self.n_excitatory
        return jnp.where(excitatory, 1, -1).astype(kernel.dtype) * jnp.abs(kernel)

    def initialize_state(self, batch_size: int) -> Carry:
        v = jnp.zeros((batch_size, self.hidden_features), self._dtype())
        return {"v": v} if self.rng is None else {"v": v, **initial_keys(self.rng, batch_size)}

    def reset_state(self, state: Carry) -> Carry:
        return {**state, "v": jnp.zeros_like(state["v"])}

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        check_features("CTRNN", x, self.in_features)
        noise, keys = None, {}
        if self._is_noisy():
            keys, now = next_keys({"key": state["key"]})
            noise = self._draw(now) if rollout_extras is None else rollout_extras
        v = self._step(state["v"], self._drive(jnp.asarray(x), noise), self.signed_kernel())
        return StatefulModuleOutput({**state, **keys, "v": v}, self.activation(v), zero_loss(x), {}, noise)

    def unroll(self, state: Carry, xs: Any, dones: jax.Array, rollout_extras: Any = None) -> StatefulModuleOutput:
        check_features("CTRNN", xs, self.in_features)
        noise, keys = None, {}
        if self._is_noisy():
            keys, now = key_sequence({"key": state["key"]}, dones.shape[0])
            noise = self._draw(now) if rollout_extras is None else rollout_extras
        # One matmul for all T steps; the scan holds the recurrence alone.
        drive = self._drive(fold_time(jnp.asarray(xs)), fold_time(noise)).reshape(dones.shape + (-1,))
        kernel = self.signed_kernel()

        def step(v: Carry, inputs: Any) -> tuple[Carry, jax.Array]:
            driven, done = inputs
            v = self._step(v, driven, kernel)
            return jnp.where(done.reshape(-1, 1), 0, v), v

        v, vs = jax.lax.scan(step, state["v"], (drive, dones.astype(bool)))
        loss = jnp.zeros(dones.shape, jnp.float32)
        return StatefulModuleOutput({**state, **keys, "v": v}, self.activation(vs), loss, {}, noise)

    def _is_noisy(self) -> bool:
        return self.rng is not None and not self.deterministic

    def _alpha(self) -> jax.Array:
        return (self.dt / self.tau)[None]

    def _draw(self, keys: jax.Array) -> dict[str, jax.Array]:
        """Standard normal noise for the input and for the units, one row per key."""
        both = normal(keys, (self.in_features + self.hidden_features,), self._dtype())
        return {"input": both[..., : self.in_features], "recurrent": both[..., self.in_features :]}

    def _drive(self, x: jax.Array, noise: Any) -> jax.Array:
        """What does not depend on the step before, ``[B, in_features] -> [B, hidden_features]``."""
        x = x.astype(self._dtype())
        alpha = self._alpha()
        if noise is not None:
            x = x + self.input_noise * noise["input"]
        drive = alpha * (x @ self.input_kernel[...] + self.bias[...][None])
        if noise is not None:
            drive = drive + jnp.sqrt(2 * alpha) * self.recurrent_noise * noise["recurrent"]
        return drive

    def _step(self, v: jax.Array, drive: jax.Array, kernel: jax.Array) -> jax.Array:
        alpha = self._alpha()
        return (1 - alpha) * v + alpha * (self.activation(v) @ kernel) + drive

    def _dtype(self) -> Any:
        return self.input_kernel[...].dtype


def _check_times(tau: Any, dt: float, n: int, trainable: bool) -> np.ndarray:
    taus = np.asarray(tau, np.float64)
    if taus.shape not in ((), (n,)):
        raise ValueError(f"CTRNN: tau must be one number or one per unit ({n}), got shape {taus.shape}.")
    if not (dt > 0 and (taus >= dt).all()):
        raise ValueError(f"CTRNN: expected 0 < dt <= tau (seconds), got dt={dt!r}, smallest tau={float(taus.min())!r}.")
    if trainable and not (taus > dt).all():
        raise ValueError(f"CTRNN: a trainable tau must start above dt={dt!r}, got {float(taus.min())!r}.")
    return np.broadcast_to(taus, (n,))


def _n_excitatory(fraction: float | None, n: int) -> int | None:
    if fraction is None:
        return None
    count = round(fraction * n)
    if not 0 < count < n:
        raise ValueError(
            f"CTRNN: excitatory_fraction={fraction!r} of {n} units leaves {count} excitatory and {n - count} "
            "inhibitory ones; both are needed. Use a fraction such as 0.8."
        )
    return count
