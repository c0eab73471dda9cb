"""Pictures show the data they were given, with labelled axes."""

import sys

import numpy as np
import pytest

from nnx_ppo.recordings import Curve, plot_activations, plot_heat_map, plot_learning_curve, plot_learning_curves


def test_learning_curve_draws_the_points_and_the_band(tmp_path):
    figure = plot_learning_curve([0, 100, 200], [1.0, 2.0, 4.0], [0.0, 1.0, 3.0], [2.0, 3.0, 5.0], title="run")
    (axes,) = figure.axes
    (line,) = axes.lines
    np.testing.assert_array_equal(line.get_xydata(), [[0, 1], [100, 2], [200, 4]])
    band = axes.collections[0].get_paths()[0].vertices
    assert {(0.0, 0.0), (200.0, 5.0)} <= {tuple(v) for v in band}
    assert axes.get_xlabel() == "environment steps"
    assert "reward" in axes.get_ylabel()
    figure.savefig(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_learning_curves_share_a_panel_and_can_be_told_apart():
    curves = {f"run {i}": Curve([0, 10], [0.0, float(i)]) for i in range(9)}
    curves["band"] = Curve([0, 10], [1.0, 2.0], [0.0, 1.0], [2.0, 3.0])
    (axes,) = plot_learning_curves(curves, ylabel="return").axes
    assert [line.get_label() for line in axes.lines] == list(curves)
    np.testing.assert_array_equal(axes.lines[8].get_xydata(), [[0, 0], [10, 8]])
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == len(curves)
    (band,) = axes.collections
    assert {(0.0, 0.0), (10.0, 3.0)} <= {tuple(v) for v in band.get_paths()[0].vertices}
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(curves)
    assert axes.get_ylabel() == "return"
    (alone,) = plot_learning_curves({"return": Curve([0, 10], [0.0, 1.0])}, ylabel="return").axes
    assert alone.get_legend() is None


def test_no_curve_is_an_error():
    with pytest.raises(ValueError, match="no curve to draw"):
        plot_learning_curves({}, ylabel="return")


def test_activations_are_units_over_time_of_one_episode_up_to_its_end():
    x = np.arange(5 * 2 * 3, dtype=np.float32).reshape(5, 2, 3)
    dones = np.zeros((5, 2))
    dones[4, 1] = 1.0
    figure = plot_activations({"0/hidden": x, "0/log_likelihood": x[..., 0]}, dones, env=1)
    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title(loc="left") for axes in panels] == ["0/hidden"]
    np.testing.assert_array_equal(panels[0].images[0].get_array(), x[:4, 1].T)
    assert "time" in panels[0].get_xlabel()
    assert panels[0].get_ylabel() == "unit"


def test_colours_are_centred_on_zero_even_for_a_silent_layer():
    figure = plot_activations({"0": np.zeros((5, 1, 3))}, np.zeros((5, 1)))
    (image,) = figure.axes[0].images
    assert image.get_clim() == (-1.0, 1.0)


@pytest.mark.parametrize(
    ("spikes", "arrows"), [((), "neither"), ((9.0,), "max"), ((-9.0,), "min"), ((9.0, -9.0), "both")]
)
def test_the_bar_of_colours_ends_in_an_arrow_where_values_lie_beyond_it(spikes, arrows):
    x = np.ones((400, 1, 2))
    x[: len(spikes), 0, 0] = spikes
    for figure in (plot_activations({"0": x}, np.zeros((400, 1))), plot_heat_map(x[:, 0])):
        (image,) = figure.axes[0].images
        assert image.get_clim() == (-1.0, 1.0)
        assert image.colorbar.extend == arrows


def test_unknown_episode_is_an_error():
    with pytest.raises(ValueError, match="one of the 2 episodes recorded, 0 to 1, got 2"):
        plot_activations({"0": np.zeros((5, 2, 3))}, np.zeros((5, 2)), env=2)


def test_nothing_to_draw_is_an_error():
    with pytest.raises(ValueError, match=r"no layer with a unit axis among \['x'\]"):
        plot_activations({"x": np.zeros((5, 1))}, np.zeros((5, 1)))


def test_missing_matplotlib_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'nnx-ppo\[analysis\]'"):
        plot_learning_curve([0], [1.0])
