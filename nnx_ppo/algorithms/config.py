"""Configuration: frozen dataclasses that refuse nonsense when they are made."""

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from nnx_ppo.algorithms.types import LoggingLevel, TrainingState

LearningRate = int | float | Callable[[Any], Any]
"""A constant, or an optax schedule: gradient step number to learning rate."""

OnNonfinite = Literal["raise", "skip", "ignore"]
"""What training does about values that are NaN or infinite."""


@dataclasses.dataclass(frozen=True)
class PPOConfig:
    """Hyper-parameters of PPO (Schulman et al. 2017, https://arxiv.org/abs/1707.06347)."""

    n_envs: int = 256
    """Environments stepped in parallel; must divide by ``n_minibatches``."""
    rollout_length: int = 20
    """Steps per environment and iteration."""
    total_steps: int = 512_000
    """Environment steps of the whole run; training stops after the iteration that reaches it."""
    gae_lambda: int | float = 0.95
    """λ of generalised advantage estimation, in [0, 1]."""
    discounting_factor: int | float = 0.99
    """γ, in [0, 1]."""
    clip_range: int | float = 0.2
    """ε: the importance ratio is clipped to [1 - ε, 1 + ε]."""
    learning_rate: LearningRate = 1e-4
    """Adam's learning rate, or an optax schedule over gradient steps."""
    normalize_advantages: bool = True
    """Bring the advantages of each minibatch to mean 0 and (population) standard deviation 1."""
    combine_advantages: bool = False
    """Sum the advantages of all reward keys for every action head; else each head takes that of its own key."""
    n_epochs: int = 4
    """Passes over the rollout per iteration."""
    n_minibatches: int = 4
    """Minibatches per pass; each holds whole trajectories of ``n_envs / n_minibatches`` environments."""
    critic_loss_weight: int | float = 1.0
    """Weight of the critic loss, half the mean squared error, in the total loss."""
    gradient_clipping: int | float | None = None
    """Largest global gradient norm; ``None`` for no limit."""
    weight_decay: int | float | None = None
    """Decoupled weight decay (AdamW); ``None`` for plain Adam."""
    logging_level: LoggingLevel = LoggingLevel.LOSSES
    """Families of metrics to compute and report."""
    logging_percentiles: tuple[int | float, ...] | None = None
    """Percentiles to report instead of mean and standard deviation."""
    on_nonfinite: OnNonfinite = "raise"
    """What to do about NaN and infinity in what training learns from: ``"raise"`` stops with a
    :class:`~nnx_ppo.algorithms.nonfinite.NonFiniteError`, ``"skip"`` leaves the gradient steps out that they spoil and
    restarts the environments that they came from, ``"ignore"`` does not look."""

    def __post_init__(self) -> None:
        for name in ("n_envs", "rollout_length", "total_steps", "n_epochs", "n_minibatches"):
            require_count(self, name)
        require_number(self, "gae_lambda", 0.0, 1.0)
        require_number(self, "discounting_factor", 0.0, 1.0)
        require_number(self, "clip_range", 0.0, math.inf, open_low=True)
        if not callable(self.learning_rate):
            require_number(self, "learning_rate", 0.0, math.inf)
        require_number(self, "critic_loss_weight", 0.0, math.inf)
        require_number(self, "gradient_clipping", 0.0, math.inf, open_low=True, optional=True)
        require_number(self, "weight_decay", 0.0, math.inf, optional=True)
        for name in ("normalize_advantages", "combine_advantages"):
            require_bool(self, name)
        require_logging(self)
        if self.on_nonfinite not in get_args(OnNonfinite):
            raise ValueError(f"on_nonfinite must be one of {list(get_args(OnNonfinite))}, got {self.on_nonfinite!r}.")
        if self.n_envs % self.n_minibatches:
            # Bounded, so that an absurd number of environments is refused at once too.
            choices = [n for n in range(1, min(self.n_envs, 2**16) + 1) if self.n_envs % n == 0]
            raise ValueError(
                f"n_envs={self.n_envs} must divide by n_minibatches={self.n_minibatches}; for {self.n_envs} "
                f"environments n_minibatches can be one of {choices}."
            )

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps that one iteration takes, all environments together."""
        return self.n_envs * self.rollout_length


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Evaluation during training: deterministic policy, the same start states each time."""

    enabled: bool = True
    """Whether to evaluate at all."""
    every_steps: int = 50_000
    """Environment steps between two evaluations."""
    n_envs: int = 64
    """Episodes per evaluation, run in parallel."""
    max_episode_length: int = 1000
    """Steps after which an episode that has not ended is cut."""
    logging_level: LoggingLevel = LoggingLevel.NONE
    """Families to report beside reward and lifespan: ``NETWORK_METRICS``, ``ENV_METRICS``."""
    logging_percentiles: tuple[int | float, ...] | None = (0, 25, 50, 75, 100)
    """Percentiles over episodes."""
    initial: bool = True
    """Whether to evaluate before the first iteration too, that of a resumed run included."""

    def __post_init__(self) -> None:
        for name in ("enabled", "initial"):
            require_bool(self, name)
        for name in ("every_steps", "n_envs", "max_episode_length"):
            require_count(self, name)
        require_logging(self)


@dataclasses.dataclass(frozen=True)
class VideoConfig:
    """Videos of one evaluation episode during training; they go to ``video_fn``."""

    enabled: bool = False
    """Whether to render at all."""
    every_steps: int = 200_000
    """Environment steps between two videos."""
    episode_length: int = 1000
    """Steps after which the filmed episode is cut."""
    render_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"height": 480, "width": 640})
    """Keyword arguments of ``env.render``."""

    def __post_init__(self) -> None:
        require_bool(self, "enabled")
        for name in ("every_steps", "episode_length"):
            require_count(self, name)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Everything :func:`nnx_ppo.algorithms.ppo.train_ppo` needs beside the environment and the network."""

    ppo: PPOConfig = dataclasses.field(default_factory=PPOConfig)
    """Hyper-parameters of the algorithm."""
    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
    """Evaluation during training."""
    video: VideoConfig = dataclasses.field(default_factory=VideoConfig)
    """Videos during training."""
    seed: int = 17
    """Seed of environments, exploration and minibatches; the network was seeded when it was made."""
    checkpoint_every_steps: int = 500_000
    """Environment steps between two calls of ``checkpoint_fn``."""

    def __post_init__(self) -> None:
        require_count(self, "checkpoint_every_steps")
        require_count(self, "seed", low=0)
        if self.seed >= 2**32:
            raise ValueError(f"seed must be from 0 to {2**32 - 1}, of which JAX makes a key, got {self.seed}.")
        for name, kind in (("ppo", PPOConfig), ("eval", EvalConfig), ("video", VideoConfig)):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name} must be a {kind.__name__}, got {type(getattr(self, name)).__name__}.")


@dataclasses.dataclass(frozen=True)
class VideoData:
    """One filmed episode, as ``video_fn`` receives it."""

    frames: Any
    """``[T, H, W, 3]`` uint8; the initial state first, nothing of the next episode."""
    step: int
    """Environment steps trained so far."""
    episode_reward: float
    """Total return of the filmed episode, summed over reward keys."""
    episode_length: int
    """Steps of the filmed episode."""


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """What a training run leaves."""

    training_state: TrainingState
    """State after the last iteration; ``training_state.networks`` is the object that was trained."""
    final_metrics: dict[str, Any]
    """What ``log_fn`` received last."""
    eval_history: list[dict[str, Any]]
    """One entry per evaluation: its metrics, plus ``"step"``."""
    total_steps: int
    """Environment steps in total, those before a resume included."""
    total_iterations: int
    """Iterations of this call."""


def require_count(config: Any, name: str, low: int = 1) -> None:
    """Refuse all but an integer of at least ``low``."""
    value = getattr(config, name)
    try:
        number = operator.index(value)
    except TypeError:
        number = low - 1
    if isinstance(value, bool) or number < low:
        raise ValueError(f"{name} must be an integer of at least {low}, got {value!r}.")
    object.__setattr__(config, name, number)


def require_bool(config: Any, name: str) -> None:
    """Refuse all but ``True`` and ``False``."""
    value = getattr(config, name)
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}.")


def require_number(
    config: Any, name: str, low: float, high: float, *, open_low: bool = False, optional: bool = False
) -> None:
    """Refuse all but a finite number in [low, high], or in (low, high] with ``open_low``."""
    value = getattr(config, name)
    if optional and value is None:
        return
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if (
        isinstance(value, bool)
        or not math.isfinite(number)
        or not low <= number <= high
        or (open_low and number == low)
    ):
        bounds = "above" if open_low else "of at least"
        limit = f" and at most {high:g}" if math.isfinite(high) else ""
        none = ", or None" if optional else ""
        raise ValueError(f"{name} must be a finite number {bounds} {low:g}{limit}{none}, got {value!r}.")
    object.__setattr__(config, name, number)


def require_logging(config: Any) -> None:
    """Check ``logging_level`` and ``logging_percentiles`` together."""
    level, percentiles = config.logging_level, config.logging_percentiles
    if not isinstance(level, LoggingLevel):
        raise TypeError(f"logging_level must be a LoggingLevel (combine with |), got {level!r}.")
    if percentiles is None:
        return
    if isinstance(percentiles, str) or not hasattr(percentiles, "__iter__"):
        raise TypeError(f"logging_percentiles must be a tuple of numbers from 0 to 100 or None, got {percentiles!r}.")
    numbers = tuple(percentiles)
    bad = [p for p in numbers if isinstance(p, bool | str) or not 0 <= p <= 100]
    if bad or not numbers:
        raise ValueError(f"logging_percentiles must be numbers from 0 to 100, at least one, got {percentiles!r}.")
    object.__setattr__(config, "logging_percentiles", numbers)
