"""Ready-made networks: multilayer perceptrons and actor-critics."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from flax import nnx

from nnx_ppo.networks.activations import Activation
from nnx_ppo.networks.adapter import PPOAdapter
from nnx_ppo.networks.containers import Sequential
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.normalizer import Normalizer
from nnx_ppo.networks.recurrent import LSTM
from nnx_ppo.networks.sampling_layers import CategoricalSampler, NormalTanhSampler
from nnx_ppo.networks.types import StatefulModule
from nnx_ppo.networks.utils import Flattener

ObsSize = int | tuple[int, ...] | Mapping[str, Any]
"""Size of a flat observation, its shape, or a (nested) dict of those."""


def make_mlp_layers(
    sizes: Sequence[int],
    rngs: nnx.Rngs,
    activation: Activation = nnx.relu,
    activation_last_layer: bool = True,
    **linear_kwargs: Any,
) -> list[Dense]:
    """Return the :class:`Dense` layers of a multilayer perceptron.

    Args:
        sizes: width of the input, then of each layer.
        rngs: where the initial kernels are drawn from.
        activation: function (or its name) after each layer.
        activation_last_layer: whether the last layer has it too.
        **linear_kwargs: passed on to :class:`flax.nnx.Linear`.

    Raises:
        ValueError: fewer than two sizes, or one that is not a positive integer.
    """
    sizes = _checked(sizes)
    last = len(sizes) - 2
    return [
        Dense(n_in, n_out, rngs, activation if i < last or activation_last_layer else None, **linear_kwargs)
        for i, (n_in, n_out) in enumerate(itertools.pairwise(sizes))
    ]


def _checked(sizes: Sequence[int]) -> list[int]:
    sizes = list(sizes)
    if len(sizes) < 2 or any(isinstance(n, bool) or not hasattr(n, "__index__") or n < 1 for n in sizes):
        raise ValueError(f"sizes must be positive integers, the input's and at least one layer's, got {sizes!r}.")
    return sizes


def make_mlp(
    sizes: Sequence[int],
    rngs: nnx.Rngs,
    activation: Activation = nnx.relu,
    activation_last_layer: bool = True,
    **linear_kwargs: Any,
) -> Sequential:
    """Return a multilayer perceptron, ``[B, sizes[0]] -> [B, sizes[-1]]``; arguments as :func:`make_mlp_layers`."""
    return Sequential(make_mlp_layers(sizes, rngs, activation, activation_last_layer, **linear_kwargs))


def make_mlp_actor_critic(
    obs_size: ObsSize,
    action_size: int,
    actor_hidden_sizes: Sequence[int],
    critic_hidden_sizes: Sequence[int],
    rngs: nnx.Rngs,
    activation: Activation = nnx.relu,
    normalize_obs: bool = True,
    initializer_scale: float = 1.0,
    entropy_weight: float = 1e-2,
    min_std: float = 1e-1,
    std_scale: float = 1.0,
    *,
    discrete_actions: bool = False,
) -> Sequential:
    """Return an actor and a critic without shared layers.

    ``Sequential([Normalizer, PPOAdapter(action=Sequential([..., sampler]), value=Sequential([...]))])``; without the
    ``Normalizer`` for ``normalize_obs=False``, and with a ``Flattener`` in front of the adapter where an observation is
    not a flat array.

    Args:
        obs_size: size or shape of the observation, or a (nested) dict of those.
        action_size: number of action dimensions, or of choices with ``discrete_actions``.
        actor_hidden_sizes: widths of the actor's hidden layers.
        critic_hidden_sizes: widths of the critic's hidden layers.
        rngs: where initial parameters and the sampler's stream come from.
        activation: function of the hidden layers, or its name (``"relu"``, ``"swish"``, ``"tanh"``, ...).
        normalize_obs: whether to normalise observations by running statistics.
        initializer_scale: kernels are drawn uniformly with variance ``initializer_scale / fan_in``; that of the
            actor's last layer with a hundredth of it, so that the first policy hardly depends on the observation
            (Andrychowicz et al. 2021, https://arxiv.org/abs/2006.05990, section 3.2).
        entropy_weight: weight of the entropy bonus, per nat.
        min_std: smallest standard deviation of an action before tanh (continuous actions).
        std_scale: factor on that standard deviation.
        discrete_actions: sample one of ``action_size`` choices instead of a vector in (-1, 1).

    Example:
        >>> from flax import nnx
        >>> network = make_mlp_actor_critic(3, 1, [64, 64], [64, 64], nnx.Rngs(0), activation="swish")
        >>> len(network)
        2
    """
    heads = _make_heads(
        _flat_size(obs_size),
        action_size,
        actor_hidden_sizes,
        critic_hidden_sizes,
        rngs,
        activation=activation,
        initializer_scale=initializer_scale,
        sampler=_make_sampler(rngs, discrete_actions, entropy_weight, min_std, std_scale),
    )
    return Sequential([*_make_input_layers(obs_size, normalize_obs).values(), heads])


def make_lstm_actor_critic(
    obs_size: ObsSize,
    action_size: int,
    hidden_size: int,
    actor_hidden_sizes: Sequence[int],
    critic_hidden_sizes: Sequence[int],
    rngs: nnx.Rngs,
    activation: Activation = nnx.relu,
    normalize_obs: bool = True,
    initializer_scale: float = 1.0,
    entropy_weight: float = 1e-2,
    min_std: float = 1e-1,
    std_scale: float = 1.0,
    *,
    discrete_actions: bool = False,
    encoder_sizes: Sequence[int] = (),
    trainable_initial_state: bool = False,
) -> Sequential:
    """Return an actor and a critic on one shared LSTM.

    A ``Sequential`` of the named layers ``"normalizer"`` (with ``normalize_obs``), ``"flatten"`` (where an observation
    is not a flat array), ``"encoder"`` (with ``encoder_sizes``), ``"memory"`` (the :class:`LSTM`) and ``"heads"`` (the
    :class:`PPOAdapter`).

    Args:
        obs_size: size or shape of the observation, or a (nested) dict of those.
        action_size: number of action dimensions, or of choices with ``discrete_actions``.
        hidden_size: units of the LSTM.
        actor_hidden_sizes: widths of the hidden layers between the LSTM and the action.
        critic_hidden_sizes: widths of the hidden layers between the LSTM and the value.
        rngs: where initial parameters and the sampler's stream come from.
        activation: as in :func:`make_mlp_actor_critic`, and so on up to ``discrete_actions``.
        normalize_obs: as there.
        initializer_scale: as there; the LSTM keeps its own initialisation.
        entropy_weight: as there.
        min_std: as there.
        std_scale: as there.
        discrete_actions: as there.
        encoder_sizes: widths of dense layers in front of the LSTM.
        trainable_initial_state: see :class:`LSTM`.
    """
    size = _flat_size(obs_size)
    layers = _make_input_layers(obs_size, normalize_obs)
    if encoder_sizes:
        kernel_init = _kernel_init(initializer_scale)
        layers["encoder"] = make_mlp([size, *encoder_sizes], rngs, activation, kernel_init=kernel_init)
        size = encoder_sizes[-1]
    layers["memory"] = LSTM(size, hidden_size, rngs, trainable_initial_state=trainable_initial_state)
    layers["heads"] = _make_heads(
        hidden_size,
        action_size,
        actor_hidden_sizes,
        critic_hidden_sizes,
        rngs,
        activation=activation,
        initializer_scale=initializer_scale,
        sampler=_make_sampler(rngs, discrete_actions, entropy_weight, min_std, std_scale),
    )
    return Sequential(layers)


def _make_input_layers(obs_size: ObsSize, normalize_obs: bool) -> dict[str, StatefulModule]:
    layers: dict[str, StatefulModule] = {"normalizer": Normalizer(obs_size)} if normalize_obs else {}
    if isinstance(obs_size, Mapping) or (isinstance(obs_size, tuple) and len(obs_size) != 1):
        layers["flatten"] = Flattener()
    return layers


def _make_heads(
    in_size: int,
    action_size: int,
    actor_hidden_sizes: Sequence[int],
    critic_hidden_sizes: Sequence[int],
    rngs: nnx.Rngs,
    *,
    activation: Activation,
    initializer_scale: float,
    sampler: NormalTanhSampler | CategoricalSampler,
) -> PPOAdapter:
    def make_layers(hidden_sizes: Sequence[int], out_size: int, last_scale: float) -> list[StatefulModule]:
        *sizes, _ = _checked([in_size, *hidden_sizes, out_size])
        kernel_init = _kernel_init(initializer_scale)
        hidden = make_mlp_layers(sizes, rngs, activation, kernel_init=kernel_init) if hidden_sizes else []
        last = Dense(sizes[-1], out_size, rngs, kernel_init=_kernel_init(last_scale * initializer_scale))
        return [*hidden, last]

    n_parameters = action_size if isinstance(sampler, CategoricalSampler) else 2 * action_size
    return PPOAdapter(
        action=Sequential([*make_layers(actor_hidden_sizes, n_parameters, _LAST_ACTOR_LAYER), sampler]),
        value=Sequential(make_layers(critic_hidden_sizes, 1, 1.0)),
    )


def _make_sampler(
    rngs: nnx.Rngs, discrete_actions: bool, entropy_weight: float, min_std: float, std_scale: float
) -> NormalTanhSampler | CategoricalSampler:
    if discrete_actions:
        return CategoricalSampler(rngs, entropy_weight)
    return NormalTanhSampler(rngs, entropy_weight, min_std, std_scale)


_LAST_ACTOR_LAYER = 1e-2
"""Variance of the actor's last kernel relative to that of the others."""


def _kernel_init(scale: float) -> Any:
    return nnx.initializers.variance_scaling(scale, "fan_in", "uniform")


def _flat_size(obs_size: ObsSize) -> int:
    if isinstance(obs_size, Mapping):
        return sum(_flat_size(size) for size in obs_size.values())
    size = 1
    for n in obs_size if isinstance(obs_size, tuple) else (obs_size,):
        if isinstance(n, bool) or not hasattr(n, "__index__") or n < 1:
            raise ValueError(f"obs_size must be a positive integer, a shape, or a dict of those, got {obs_size!r}.")
        size *= n.__index__()
    return size
