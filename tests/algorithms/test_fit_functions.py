"""Functions of the user's that take other arguments than they get: told at once, with both signatures."""

import dataclasses
import functools
from typing import Any

import optax
import pytest
from flax import nnx

from nnx_ppo._signatures import require_call
from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig, VideoConfig
from nnx_ppo.algorithms.fit.functions import CALLED_WITH, require_functions
from nnx_ppo.algorithms.ppo import train_ppo
from nnx_ppo.algorithms.update import new_optimizer
from nnx_ppo.algorithms.video import draw
from tests.helpers import RandomEnds, mlp
from tests.helpers_compile import compilations

CONFIG = TrainConfig(ppo=PPOConfig(n_envs=4, n_minibatches=2, total_steps=80), eval=EvalConfig(enabled=False))


class Film(RandomEnds):
    """Draws, but without any choice of a size."""

    def render(self, trajectory: Any) -> Any:
        raise AssertionError("not before training")


def refused(match: str, env: Any = None, config: TrainConfig = CONFIG, **kwargs: Any) -> None:
    network = mlp()
    with compilations() as compiled, pytest.raises(TypeError, match=match):
        train_ppo(env or RandomEnds(), network, config, **kwargs)
    assert compiled == []


@pytest.mark.parametrize(
    ("name", "function", "match"),
    [
        (
            "log_fn",
            lambda metrics: None,
            r"^log_fn is called as log_fn\(metrics, steps\), .* <lambda>\(metrics\) \(too ",
        ),
        ("stop_fn", lambda: True, r"stop_fn\(metrics, steps\), but it is <lambda>\(\) \(too many"),
        ("video_fn", lambda frames, step: None, r"video_fn\(video_data\), .*\(frames, step\) \(missing a required arg"),
        ("checkpoint_fn", lambda state: None, r"checkpoint_fn\(training_state, steps\), .*<lambda>\(state\)"),
        ("on_phase", lambda: None, r"on_phase\(phase\), .*<lambda>\(\)"),
        ("interrupt_fn", lambda signum: True, r"interrupt_fn\(\), .*<lambda>\(signum\) \(missing a required argument"),
    ],
)
def test_the_callers_functions(name, function, match):
    refused(match, **{name: function})


def test_what_is_no_function():
    with pytest.raises(
        TypeError, match=r"^log_fn must be a function, which is called as log_fn\(metrics, steps\), got 'w"
    ):
        require_functions(log_fn="wandb")


def test_every_function_of_train_ppo_is_looked_at():
    functions = {name for name, kind in train_ppo.__annotations__.items() if "Callable" in str(kind)}
    assert functions == set(CALLED_WITH)


def test_render_must_take_its_options():
    config = dataclasses.replace(CONFIG, video=VideoConfig(enabled=True))
    match = r"render is called as render\(trajectory, height=480, width=640\), but it is render\(trajectory"
    refused(match, env=Film(), config=config, video_fn=lambda data: None)


def test_an_error_in_render_names_the_environment():
    with pytest.raises(AssertionError, match="not before training") as caught:
        draw(Film(), [None, None], {})
    assert caught.value.__notes__ == ["Film.render raised this, given 2 states and {}."]


@pytest.mark.parametrize(
    ("rate", "match"),
    [
        (lambda: 1e-3, r"learning_rate is called as learning_rate\(count\), but it is <lambda>\(\)"),
        (
            lambda count: None,
            "learning_rate is a function that returns None, expected a schedule: gradient step number",
        ),
        (lambda count: count, r"returns ShapeDtypeStruct\(shape=\(\), dtype=int32.*expected a schedule"),
    ],
)
def test_learning_rates_that_are_no_schedules(rate, match):
    refused(match, config=dataclasses.replace(CONFIG, ppo=dataclasses.replace(CONFIG.ppo, learning_rate=rate)))


def test_what_is_fine_passes():
    for rate in (1e-3, optax.linear_schedule(1e-3, 0.0, 10), lambda count: optax.cosine_decay_schedule(1e-3, 5)(count)):
        assert isinstance(new_optimizer(mlp(), rate, None, None), nnx.Optimizer)
    require_call("f", functools.partial(lambda a, b, c: None, 1), "b", "c")
    require_call("f", lambda *args, **kwargs: None, "a", b=1)
    require_call("f", print, "a", "b")
    require_call("f", type("NoSignature", (), {"__signature__": 3, "__call__": lambda self: None})(), "a")
    with pytest.raises(
        TypeError, match=r"f is called as f\(a, height=3\).*\(a\) \(got an unexpected keyword argument 'he"
    ):
        require_call("f", lambda a: None, "a", height=3)
