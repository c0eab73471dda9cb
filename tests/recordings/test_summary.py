"""Layer summaries against numbers worked out by hand."""

import numpy as np
import pytest
from flax import nnx
from rich.console import Console

from nnx_ppo.networks import make_lstm_actor_critic
from nnx_ppo.recordings import in_network_order, layer_table, summarize

# Two steps, two episodes; the second one ends after its first step.
DONES = np.array([[False, False], [False, True]])
HIDDEN = np.array([[[1.0, 0.0, 5.0], [3.0, 0.0, 5.0]], [[-4.0, 0.0, 5.0], [100.0, 7.0, 9.0]]])


def render(table) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_steps_after_the_end_of_an_episode_do_not_count():
    (layer,) = summarize({"0/hidden": HIDDEN}, DONES)
    assert (layer.path, layer.shape, layer.n_units) == ("0/hidden", (3,), 3)
    assert layer.mean == pytest.approx((1 + 3 - 4 + 3 * 5) / 9)
    assert layer.max_abs == 5.0


def test_a_unit_that_never_changes_is_dead_whatever_its_value():
    (layer,) = summarize({"0": HIDDEN}, DONES)
    assert layer.n_dead == 2
    (all_alive,) = summarize({"0": HIDDEN}, np.zeros((2, 2)))
    assert all_alive.n_dead == 0


def test_a_spike_of_one_step_shows_in_the_maximum():
    x = np.zeros((50, 1, 4))
    x[17, 0, 2] = -8.0
    (layer,) = summarize({"0": x}, np.zeros((50, 1)))
    assert layer.max_abs == 8.0
    assert layer.n_dead == 3


def test_nonfinite_values_are_counted_and_left_out():
    x = np.array([[[1.0]], [[np.nan]], [[3.0]], [[np.inf]]])
    (layer,) = summarize({"0": x}, np.zeros((4, 1)))
    assert (layer.mean, layer.max_abs, layer.n_nonfinite, layer.n_dead) == (2.0, 3.0, 2, 0)
    assert "2 non-finite" in render(layer_table([layer]))


def test_scalars_and_integers_are_layers_too():
    (layer,) = summarize({"action": np.array([[0, 1], [2, 3]])}, np.zeros((2, 2)))
    assert (layer.shape, layer.mean, layer.max_abs, layer.n_units) == ((), 1.5, 3.0, 1)


def test_table_has_a_row_per_layer():
    text = render(layer_table(summarize({"1/action/0": HIDDEN}, DONES)))
    assert "1/action/0" in text
    assert "2 of 3" in text
    assert "5.000" in text


def test_wrong_leading_axes_name_the_layer_and_both_shapes():
    with pytest.raises(ValueError, match=r"0/hidden: expected leading axes \[T, N\] = \[3, 2\], got shape \[2, 2, 3\]"):
        summarize({"0/hidden": HIDDEN}, np.zeros((3, 2)))


def test_a_path_is_not_a_recording():
    with pytest.raises(ValueError, match=r"takes a recording, as open_recording\(path\) gives it, .* got 'r.zarr'"):
        summarize("r.zarr")


def test_layers_are_sorted_as_they_stand_in_the_network():
    network = make_lstm_actor_critic(3, 1, 4, [4] * 11, [4], nnx.Rngs(0))
    paths = [
        "heads/value/0",
        "heads/action/10",
        "heads/action/2",
        "heads/action/12/log_likelihood",
        "memory",
        "normalizer",
    ]
    ordered = in_network_order(dict.fromkeys(paths), network)
    assert list(ordered) == [
        "normalizer", "memory", "heads/action/2", "heads/action/10", "heads/action/12/log_likelihood", "heads/value/0",
    ]  # fmt: skip
