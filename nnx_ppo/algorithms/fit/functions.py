"""What training calls of the user's functions, and with what: a wrong signature is told before anything compiles."""

from typing import Any

from nnx_ppo._signatures import require_call

CALLED_WITH = {
    "log_fn": ("metrics", "steps"),
    "stop_fn": ("metrics", "steps"),
    "video_fn": ("video_data",),
    "checkpoint_fn": ("training_state", "steps"),
    "on_phase": ("phase",),
    "interrupt_fn": (),
}
"""Positional arguments of each function that :func:`~nnx_ppo.algorithms.ppo.train_ppo` takes."""


def require_functions(**functions: Any) -> None:
    """Refuse a function that does not take what it will be called with; ``None`` is one that was left out.

    Raises:
        TypeError: naming the function, how it is called and how it is defined.
    """
    for name, function in functions.items():
        if function is not None:
            require_call(name, function, *CALLED_WITH[name])
