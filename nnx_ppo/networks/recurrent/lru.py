"""LRU: a diagonal linear recurrence, whose whole sequences run in parallel over time."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nnx_ppo._pytree import expand_to
from nnx_ppo.networks._checks import check_features
from nnx_ppo.networks._dtypes import default_float, zero_loss
from nnx_ppo.networks.types import Carry, StatefulModule, StatefulModuleOutput


class LRU(StatefulModule):
    """Linear recurrent unit (Orvieto et al. 2023), ``[B, in_features] -> [B, hidden_features]``.

    ``h_t = λ h_{t-1} + γ (B x_t)`` with complex ``λ`` per unit, ``|λ| < 1`` and ``γ = sqrt(1 - |λ|^2)``;
    the output is ``Re(C h_t) + D x_t``. It has no nonlinearity: put a ``Dense`` with an activation after it. A sequence
    takes ``log2(T)`` parallel steps (:func:`jax.lax.associative_scan`) instead of ``T``. The carry is the real and the
    imaginary part of ``h``, a tuple of ``[B, hidden_features]`` each.

    Args:
        in_features: width of the input.
        hidden_features: number of complex units, and width of the output.
        rngs: where the initial parameters are drawn from.
        min_radius: smallest initial ``|λ|``. A unit remembers for about ``1 / (1 - |λ|)`` steps.
        max_radius: largest initial ``|λ|``.
        max_phase: largest initial angle of ``λ``, radians.

    Raises:
        ValueError: not ``0 <= min_radius < max_radius <= 1``, or ``max_phase`` not positive; when called, an input of
            another width.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        rngs: nnx.Rngs,
        *,
        min_radius: float = 0.9,
        max_radius: float = 0.999,
        max_phase: float = math.pi / 10,
    ):
        if not 0 <= min_radius < max_radius <= 1:
            raise ValueError(
                f"LRU: expected 0 <= min_radius < max_radius <= 1, got min_radius={min_radius!r}, "
                f"max_radius={max_radius!r}."
            )
        if not max_phase > 0:
            raise ValueError(f"LRU: max_phase must be above 0, got {max_phase!r}.")
        self.in_features = in_features
        self.hidden_features = hidden_features
        dtype = default_float()
        n = hidden_features

        def normal(shape: tuple[int, int], scale: float) -> nnx.Param[Any]:
            return nnx.Param(jax.random.normal(rngs.params(), shape, dtype) * scale)

        # Uniform on the ring between the two radii; the double exponential keeps |λ| < 1 whatever the optimizer does.
        area = jax.random.uniform(rngs.params(), (n,), dtype, minval=min_radius**2, maxval=max_radius**2)
        phase = max_phase * jax.random.uniform(rngs.params(), (n,), dtype, minval=1e-3)
        tiny = float(jnp.finfo(dtype).tiny)
        self.log_decay = nnx.Param(jnp.log(-0.5 * jnp.log(jnp.clip(area, tiny, 1 - 1e-6))))
        self.log_phase = nnx.Param(jnp.log(phase))
        self.input_real = normal((in_features, n), 1 / math.sqrt(2 * in_features))
        self.input_imag = normal((in_features, n), 1 / math.sqrt(2 * in_features))
        self.output_real = normal((n, n), 1 / math.sqrt(n))
        self.output_imag = normal((n, n), 1 / math.sqrt(n))
        self.skip = normal((in_features, n), 1 / math.sqrt(in_features))

    def initialize_state(self, batch_size: int) -> Carry:
        zeros = jnp.zeros((batch_size, self.hidden_features), self._dtype())
        return zeros, zeros

    def reset_state(self, state: Carry) -> Carry:
        return self.initialize_state(state[0].shape[0])

    def __call__(self, state: Carry, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        check_features("LRU", x, self.in_features)
        x = jnp.asarray(x).astype(self._dtype())
        eigenvalues = self._eigenvalues()
        h = eigenvalues[None] * jax.lax.complex(*state) + self._drive(x, eigenvalues)
        return StatefulModuleOutput((h.real, h.imag), self._read_out(h, x), zero_loss(x), {})

    def unroll(self, state: Carry, xs: Any, dones: jax.Array, rollout_extras: Any = None) -> StatefulModuleOutput:
        check_features("LRU", xs, self.in_features)
        xs = jnp.asarray(xs).astype(self._dtype())
        eigenvalues = self._eigenvalues()
        hs = linear_recurrence(eigenvalues, jax.lax.complex(*state), self._drive(xs, eigenvalues), dones.astype(bool))
        last = jnp.where(dones[-1].astype(bool)[:, None], 0, hs[-1])
        loss = jnp.zeros(dones.shape, jnp.float32)
        return StatefulModuleOutput((last.real, last.imag), self._read_out(hs, xs), loss, {})

    def _eigenvalues(self) -> jax.Array:
        """``λ``, complex ``[hidden_features]``."""
        return jnp.exp(jax.lax.complex(-jnp.exp(self.log_decay[...]), jnp.exp(self.log_phase[...])))

    def _drive(self, x: jax.Array, eigenvalues: jax.Array) -> jax.Array:
        """``γ (B x)``, complex ``[..., hidden_features]``."""
        # 1 - |λ|^2 through expm1, exact also for units that remember very long.
        gain = jnp.sqrt(-jnp.expm1(-2 * jnp.exp(self.log_decay[...])))
        gain = gain.reshape((1,) * (x.ndim - 1) + (-1,))
        return jax.lax.complex(gain * (x @ self.input_real[...]), gain * (x @ self.input_imag[...]))

    def _read_out(self, h: jax.Array, x: jax.Array) -> jax.Array:
        return h.real @ self.output_real[...] - h.imag @ self.output_imag[...] + x @ self.skip[...]

    def _dtype(self) -> Any:
        return self.skip[...].dtype


def linear_recurrence(coefficients: jax.Array, start: jax.Array, drive: jax.Array, dones: jax.Array) -> jax.Array:
    """All states of ``h_t = a_t h_{t-1} + drive_t``, where ``a_t`` is 0 after a ``done`` and ``coefficients`` else.

    Args:
        coefficients: ``[H]``.
        start: ``h_{-1}``, ``[B, H]``.
        drive: ``[T, B, H]``.
        dones: bool ``[T, B]``.

    Returns:
        ``[T, B, H]``. Steps are composed pairwise: applying ``(a, b)`` and then ``(c, d)`` is ``(c a, c b + d)``.
    """
    first = drive[:1] + (coefficients[None] * start)[None]
    drive = jnp.concatenate([first, drive[1:]])
    after_reset = jnp.concatenate([jnp.zeros_like(dones[:1]), dones[:-1]])
    factors = jnp.where(expand_to(after_reset, 3), 0, coefficients.reshape(1, 1, -1))

    def compose(earlier: Any, later: Any) -> Any:
        return later[0] * earlier[0], later[0] * earlier[1] + later[1]

    return jax.lax.associative_scan(compose, (jnp.broadcast_to(factors, drive.shape), drive))[1]
