"""Pictures show the numbers they were given, in the order asked for; what they are computed from is checked by hand."""

import pathlib

import jax
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from nnx_ppo.recordings import (
    align_to_events,
    compare_recordings,
    linear_cka,
    open_recording,
    plot_aligned,
    plot_heat_map,
    plot_histograms,
    plot_similarity,
    plot_traces,
    plot_trajectories,
    principal_components,
    unit_order,
)
from nnx_ppo.recordings.store import RecordingWriter

RNG = np.random.default_rng(0)


def texts(figure):
    """All that is written, with the box it takes, after layout."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    found, not_drawn = [], set()
    for axis in [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]:
        low, high = sorted(axis.get_view_interval())
        ticks = zip(axis.get_major_ticks(), axis.get_majorticklocs(), strict=True)
        minor = zip(axis.get_minor_ticks(), axis.get_minorticklocs(), strict=True)
        beyond = [tick for tick, place in [*ticks, *minor] if not low <= place <= high]
        not_drawn |= {label for tick in beyond for label in (tick.label1, tick.label2)}
    for text in set(figure.findobj(Text)):
        if text.get_visible() and text.get_text().strip() and text not in not_drawn:
            found.append((text.get_text(), text.get_window_extent(canvas.get_renderer())))
    return found


def assert_readable(figure):
    """No text leaves the figure or lies on another one."""
    found = [(t, box) for t, box in texts(figure) if box.width > 1 and box.height > 1]
    width, height = figure.bbox.width, figure.bbox.height
    for text, box in found:
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1, text  # noqa: PT018
    seen = []
    for text, box in found:
        for other, there in seen:
            overlap = min(box.x1, there.x1) - max(box.x0, there.x0), min(box.y1, there.y1) - max(box.y0, there.y0)
            assert min(overlap) < 1.5, (text, other)
        seen.append((text, box))


def test_a_heat_map_shows_units_over_time_in_the_order_asked_for():
    x = np.zeros((10, 3))
    x[[7, 2, 5], [0, 1, 2]] = [1.0, 3.0, 2.0]
    figure = plot_heat_map(x, sort="peak", time_step=0.5, events=[4], title="a layer")
    axes = figure.axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), x[:, [1, 2, 0]].T)
    assert axes.images[0].get_extent() == [-0.25, 4.75, -0.5, 2.5]
    assert axes.lines[0].get_xdata() == [2.0, 2.0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("time (s)", "unit, sorted by its peak")
    assert_readable(figure)
    figure = plot_heat_map(x, normalize=True)
    np.testing.assert_allclose(figure.axes[0].images[0].get_array().mean(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose(figure.axes[0].images[0].get_array().std(axis=1), 1)
    assert figure.axes[0].get_xlabel() == "time (environment steps)"


def test_orders_of_units():
    t = np.linspace(0, 20, 200)
    phases = np.array([2.0, 0.0, 1.0, 3.0])
    waves = np.sin(t[:, None] + phases)
    order = list(unit_order(waves, "correlation"))
    start = order.index(1)
    around = order[start:] + order[:start]  # by angle: the circle begins anywhere, and goes either way round
    assert around in ([1, 2, 0, 3], [1, 3, 0, 2])
    assert list(unit_order(waves + [3, 2, 1, 0], "mean")) == [3, 2, 1, 0]
    assert list(unit_order(waves, None)) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="sort must be None, 'peak', 'mean' or 'correlation', got 'size'"):
        unit_order(waves, "size")


def test_traces_are_the_units_asked_for():
    x = RNG.normal(size=(30, 2, 4))
    figure = plot_traces(x, [5, 0], events=[3], title="two units")
    flat = x.reshape(30, 8)
    for axes, unit in zip(figure.axes, (5, 0), strict=True):
        np.testing.assert_array_equal(axes.lines[-1].get_ydata(), flat[:, unit])
        assert axes.get_ylabel() == f"unit {unit}"
    assert_readable(figure)
    assert_readable(plot_traces(x * 1e-4, range(8)))
    with pytest.raises(ValueError, match=r"units must be from 0 to 7, which the layer has, got \[8\]"):
        plot_traces(x, [8])
    with pytest.raises(ValueError, match="got 21: choose some"):
        plot_traces(x, [0] * 21)
    with pytest.raises(ValueError, match=r"nothing to draw: expected activations \[T, units\], got shape \[0, 3\]"):
        plot_traces(np.zeros((0, 3)), [0])


def test_histograms_count_the_steps_that_count():
    valid = np.ones((50, 2), bool)
    valid[20:, 1] = False
    layers = {f"a/rather/long/name/of/a/layer/number/{i}": RNG.normal(size=(50, 2, 3)) for i in range(4)}
    first = next(iter(layers.values()))
    first[0, 0, 0] = np.nan
    figure = plot_histograms(layers, valid, title="histograms")
    counts = [sum(bar.get_height() for bar in axes.patches) for axes in figure.axes if axes.get_visible()]
    assert counts == [70 * 3 - 1, 210, 210, 210]
    assert_readable(figure)
    flat = plot_histograms({"0": np.linspace(0, 1, 600).reshape(100, 2, 3)}, np.ones((100, 2), bool)).axes[0]
    flat.figure.draw_without_rendering()
    assert flat.get_ylim()[0] < 1 <= 10 < flat.get_ylim()[1]  # all bins hold 10: still two powers of ten are marked
    assert not any(label.get_text() for label in flat.yaxis.get_minorticklabels())
    with pytest.raises(ValueError, match="no layer to draw"):
        plot_histograms({}, valid)


def test_principal_components_are_the_eigenvectors_of_the_covariance():
    x = RNG.normal(size=(200, 4)) @ RNG.normal(size=(4, 4)) + 5
    components = principal_components(x, 3)
    values, vectors = np.linalg.eigh(np.cov(x.T))
    np.testing.assert_allclose(components.explained, values[::-1][:3] / values.sum())
    np.testing.assert_allclose(np.abs(components.directions @ vectors[:, ::-1][:, :3]), np.eye(3), atol=1e-9)
    np.testing.assert_allclose(components.project(x).var(axis=0), values[::-1][:3] * 199 / 200)
    assert (np.take_along_axis(components.directions, np.abs(components.directions).argmax(1)[:, None], 1) > 0).all()
    with pytest.raises(ValueError, match="n_components must be from 1 to 4"):
        principal_components(x, 5)
    with pytest.raises(ValueError, match="need finite values"):
        principal_components(np.full((3, 3), np.nan), 1)


def test_trajectories_are_one_path_per_episode_and_do_not_jump():
    x = RNG.normal(size=(12, 2, 3))
    valid, episode = np.ones((12, 2), bool), np.zeros((12, 2), int)
    valid[10:, 0] = False
    episode[5:, 1] = 1
    speed = RNG.normal(size=(12, 2))
    figure = plot_trajectories(x, valid, episode, color=speed, color_label="speed (m/s)", title="paths")
    (lines,) = figure.axes[0].collections
    plane = principal_components(x[valid], 2).project(x)
    expected = [plane[t : t + 2, 0] for t in range(9)]
    expected += [plane[t : t + 2, 1] for t in [*range(4), *range(5, 11)]]
    np.testing.assert_allclose(lines.get_segments(), expected)
    np.testing.assert_array_equal(lines.get_array(), [*speed[:9, 0], *speed[:4, 1], *speed[5:11, 1]])
    assert figure.axes[1].get_ylabel() == "speed (m/s)"
    assert_readable(figure)
    figure = plot_trajectories(x, valid, episode, time_step=0.1)
    times = figure.axes[0].collections[0].get_array()
    np.testing.assert_allclose(times, [*np.arange(9) * 0.1, *np.arange(4) * 0.1, *np.arange(6) * 0.1])
    assert figure.axes[1].get_ylabel() == "time since the episode's start (s)"
    with pytest.raises(ValueError, match="needs at least two units"):
        plot_trajectories(x[..., :1], valid)
    with pytest.raises(ValueError, match=r"must share the axes \[T, N\], got \[12, 2, 3\], \[11, 2\]\."):
        plot_trajectories(x, valid[1:])


def test_windows_around_events_do_not_reach_into_another_episode():
    """One environment: an episode of 3 steps and one of 5, an event in each, and a step that does not count."""
    x = np.arange(9.0)[:, None]
    episode = np.array([0, 0, 0, 1, 1, 1, 1, 1, 1])[:, None]
    valid = np.ones((9, 1), bool)
    valid[8] = False
    events = np.zeros((9, 1), bool)
    events[[1, 4, 8]] = True
    aligned = align_to_events(x, events, before=2, after=3, valid=valid, episode=episode)
    nan = np.nan
    np.testing.assert_array_equal(aligned.lags, [-2, -1, 0, 1, 2, 3])
    np.testing.assert_array_equal(aligned.windows, [[nan, 0, 1, 2, nan, nan], [nan, 3, 4, 5, 6, 7]])
    np.testing.assert_array_equal(aligned.count, [0, 2, 2, 2, 1, 1])
    np.testing.assert_array_equal(aligned.mean, [nan, 1.5, 2.5, 3.5, 6, 7])
    np.testing.assert_allclose(aligned.sem, [nan, 1.5, 1.5, 1.5, nan, nan])
    units = align_to_events(np.stack([x, -x], axis=-1), events, before=0, after=1, valid=valid, episode=episode)
    np.testing.assert_array_equal(units.windows, [[[1, -1], [2, -2]], [[4, -4], [5, -5]]])
    figure = plot_aligned({"unit 1": aligned, "unit 2": aligned}, time_step=0.1, title="cue")
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), aligned.mean)
    np.testing.assert_array_equal(figure.axes[1].lines[0].get_ydata(), aligned.count)
    assert figure.axes[1].get_xlabel() == "time from the event (s)"
    assert_readable(figure)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"events": np.zeros((9, 1), bool)}, "no event at a step that counts"),
        ({"before": -1}, "at least 0, got -1 and 1"),
        ({"valid": np.ones((8, 1), bool)}, r"must share the axes \[T, N\]"),
    ],
)
def test_events_that_cannot_be(change, match):
    options = {"events": np.ones((9, 1), bool), "before": 1, "after": 1, **change}
    with pytest.raises(ValueError, match=match):
        align_to_events(np.zeros((9, 1)), **options)


def hsic_cka(x, y):
    """CKA by its definition with kernels: HSIC of the centred Gram matrices."""
    n = len(x)
    centre = np.eye(n) - 1 / n
    k, m = centre @ x @ x.T @ centre, centre @ y @ y.T @ centre
    return np.sum(k * m) / np.sqrt(np.sum(k * k) * np.sum(m * m))


def test_cka_is_that_of_the_gram_matrices_and_knows_no_rotation_or_scale():
    x = RNG.normal(size=(60, 5)) + 3
    y = np.tanh(x @ RNG.normal(size=(5, 7))) + 0.3 * RNG.normal(size=(60, 7))
    assert linear_cka(x, y) == pytest.approx(hsic_cka(x, y), rel=1e-10)
    assert 0.1 < linear_cka(x, y) < 0.9
    rotation, _ = np.linalg.qr(RNG.normal(size=(5, 5)))
    assert linear_cka(x @ rotation * 7.0 - 2.0, y) == pytest.approx(linear_cka(x, y), rel=1e-10)
    assert linear_cka(x, x @ rotation) == pytest.approx(1.0)
    assert linear_cka(x * [1, 1, 1, 1, 10], y) != pytest.approx(linear_cka(x, y), rel=1e-2)  # one axis is no scale
    assert np.isnan(linear_cka(np.ones((60, 2)), y))
    with pytest.raises(
        ValueError, match=r"expected the same samples, \[S, P\] and \[S, Q\], got \[60, 5\] and \[59, 7\]"
    ):
        linear_cka(x, y[1:])


def test_recordings_are_compared_over_the_steps_that_count_in_both(tmp_path):
    x = {"a": RNG.normal(size=(40, 2, 3)).astype(np.float32), "b": RNG.normal(size=(40, 2, 2, 2)).astype(np.float32)}
    valid = np.ones((40, 2), bool)
    valid[30:, 1] = False
    rows = {"layers": {k: jax.ShapeDtypeStruct(v.shape[1:], v.dtype) for k, v in x.items()}}
    rows["valid"] = {"": jax.ShapeDtypeStruct((2,), bool)}
    with RecordingWriter(pathlib.Path(tmp_path / "r"), rows, chunk_steps=16, attributes={}) as writer:
        for t in range(0, 40, 16):
            now = {k: v[t : t + 16] for k, v in x.items()}
            writer.append({"layers": now, "valid": {"": valid[t : t + 16]}})
        writer.finish()
    stored = open_recording(tmp_path / "r")
    for left, right in ((x, x), (stored, stored), (stored, x)):
        similarity = compare_recordings(left, right, valid)
        assert (similarity.rows, similarity.columns, similarity.n_samples) == (("a", "b"), ("a", "b"), 70)
        flat = [each[valid].reshape(70, -1) for each in x.values()]
        expected = [[hsic_cka(a, b) for b in flat] for a in flat]
        np.testing.assert_allclose(similarity.cka, expected, rtol=1e-6)
    assert compare_recordings(stored, stored, max_samples=10).n_samples == 10
    figure = plot_similarity(similarity, first="seed 0", second="seed 1", title="two seeds")
    assert [text.get_text() for text in figure.axes[0].texts[:2]] == ["1.00", f"{similarity.cka[0, 1]:.2f}"]
    assert_readable(figure)
    with pytest.raises(ValueError, match=r"same steps and environments, got \[40, 2\] and \[39, 2\]"):
        compare_recordings(stored, {k: v[1:] for k, v in x.items()}, valid[1:])
    with pytest.raises(ValueError, match="need valid"):
        compare_recordings(x, x)
    with pytest.raises(ValueError, match="no step counts in both"):
        compare_recordings(x, x, np.zeros((40, 2), bool))
