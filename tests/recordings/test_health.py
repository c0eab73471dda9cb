"""The health of layers against NumPy on the whole array, in memory and chunk by chunk from disk."""

import itertools
import pathlib

import jax
import numpy as np
import pytest
import xarray
from rich.console import Console

from nnx_ppo.recordings import health_table, open_recording, summarize, summary_dataset
from nnx_ppo.recordings.accumulators import Magnitudes
from nnx_ppo.recordings.dimensions import MAX_EXACT_UNITS, Dimensions
from nnx_ppo.recordings.store import RecordingWriter

T, N, U = 3000, 3, 6


def activations(rng):
    """Correlated units, a shifted one, one that is silent, and a spike."""
    x = rng.normal(size=(T, N, U)) @ rng.normal(size=(U, U))
    x[..., 1] += 1000.0
    x[..., 4] *= 1e-4
    x[..., 5] = 0.0
    x[1717, 2, 3] = -5000.0
    return {"0/hidden": x.astype(np.float32), "1": np.tanh(3 * x[..., :4]).astype(np.float32).reshape(T, N, 2, 2)}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    ended = np.zeros((T, N), bool)
    ended[2000:, 0] = True
    return activations(rng), ended


@pytest.fixture(scope="module")
def stored(data, tmp_path_factory):
    layers, ended = data
    path = pathlib.Path(tmp_path_factory.mktemp("health") / "r.zarr")
    rows = {
        "layers": {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in layers.items()},
        "valid": {"": jax.ShapeDtypeStruct((N,), bool)},
    }
    with RecordingWriter(path, rows, chunk_steps=700, attributes={}) as writer:
        for t in range(0, T, 700):
            now = {name: x[t : t + 700] for name, x in layers.items()}
            writer.append({"layers": now, "valid": {"": ~ended[t : t + 700]}})
        writer.finish()
    return open_recording(path)


def both(data, stored):
    return [summarize(*data), summarize(stored)]


def test_moments_and_percentiles_are_those_of_the_valid_steps(data, stored):
    layers, ended = data
    for summaries in both(data, stored):
        for summary in summaries:
            samples = layers[summary.path][~ended].astype(np.float64)
            assert summary.shape == samples.shape[1:]
            assert summary.n_samples == len(samples) == 2000 + 2 * 3000
            assert summary.mean == pytest.approx(samples.mean(), rel=1e-9)
            assert summary.std == pytest.approx(samples.std(), rel=1e-9)
            for level, value in summary.percentiles.items():
                exact = np.percentile(np.abs(samples), level, method="inverted_cdf")
                assert value == pytest.approx(exact, rel=2**-12)


def test_a_spike_of_one_step_is_found_and_located(data, stored):
    for summaries in both(data, stored):
        peak = summaries[0].peak
        assert (peak.value, peak.unit, peak.env, peak.step) == (-5000.0, (3,), 2, 1717)
        assert summaries[0].max_abs == 5000.0
        x = np.where(data[1][..., None, None], 0, np.abs(data[0]["1"]))
        where = summaries[1].peak
        assert x[(where.step, where.env, *where.unit)] == x.max() == abs(where.value)


def test_participation_ratio_is_that_of_the_eigenvalues(data, stored):
    for summaries in both(data, stored):
        for summary in summaries:
            samples = data[0][summary.path][~data[1]].reshape(-1, summary.n_units).astype(np.float64)
            eigenvalues = np.linalg.eigvalsh(np.cov(samples.T))
            expected = eigenvalues.sum() ** 2 / (eigenvalues**2).sum()
            assert summary.participation_ratio == pytest.approx(expected, rel=1e-9)


def participation_ratio(samples):
    dimensions = Dimensions(samples.shape[1])
    for part in np.array_split(samples, 3):
        dimensions.add(part)
    return dimensions.participation_ratio()


def test_participation_ratio_of_known_covariances():
    corners = np.array(list(itertools.product((-1.0, 1.0), repeat=5)))  # covariance: the identity
    assert participation_ratio(corners) == pytest.approx(5)
    assert participation_ratio(1e6 + corners @ np.diag([2**0.5, 1, 0, 0, 0])) == pytest.approx(9 / 5)
    assert participation_ratio(np.outer(np.arange(9), np.ones(4))) == pytest.approx(1)
    assert np.isnan(participation_ratio(np.full((9, 3), 7.0)))
    assert np.isnan(participation_ratio(corners[:, :1]))


@pytest.mark.parametrize(("n_directions", "percent"), [(1, 18), (3, 12), (100, 3), (2500, 3)])
def test_wide_layers_get_an_estimate_of_the_participation_ratio(n_directions, percent):
    """Against the Gram matrix of the samples, whose entries have the same sum of squares as those of the covariance."""
    rng = np.random.default_rng(n_directions)
    wide = MAX_EXACT_UNITS + 52
    x = rng.normal(size=(1000, n_directions)) @ rng.normal(size=(n_directions, wide)) + 100.0
    centred = x - x.mean(axis=0)
    gram = centred @ centred.T
    exact = np.trace(gram) ** 2 / np.sum(gram**2)
    dimensions = Dimensions(wide)
    for part in np.array_split(x, 2):
        dimensions.add(part)
    assert dimensions.participation_ratio() == pytest.approx(exact, rel=percent / 100)  # three standard errors, or 3 %


def test_dead_dormant_and_saturated_units_by_hand():
    rng = np.random.default_rng(1)
    sign = rng.choice([-1.0, 1.0], size=100)
    units = [
        np.full(100, 0.5),  # dead, and neither small nor at a bound
        0.01 * sign,  # mean magnitude 0.01 of an average of 0.6: dormant
        np.where(np.arange(100) < 95, 1.0, 0.0) * sign,  # at the bound in 95 of 100 samples: saturated
        np.where(np.arange(100) < 94, 1.0, 0.0) * sign,  # in 94: not
        0.94 * sign,
    ]
    x = np.stack(units, axis=-1)[:, None]
    (summary,) = summarize({"a": x}, np.zeros((100, 1)))
    assert (summary.n_dead, summary.n_dormant, summary.n_saturated) == (1, 1, 1)
    (summary,) = summarize({"a": x}, np.zeros((100, 1)), dormant_threshold=1.0)
    assert summary.n_dormant == 2  # 0.01 and 0.5 are below the average of 0.668
    (summary,) = summarize({"a": 2 * x}, np.zeros((100, 1)))
    assert (summary.n_saturated, summary.n_dormant, summary.n_dead) == (None, 1, 1)


def test_values_that_are_not_finite_are_counted_wherever_they_are():
    x = np.random.default_rng(2).normal(size=(2500, 1, 2))
    x[3, 0, 0], x[2400, 0, 1] = np.nan, -np.inf
    (summary,) = summarize({"a": x}, np.zeros((2500, 1)))
    finite = x[np.isfinite(x)]
    assert summary.n_nonfinite == 2
    assert summary.mean == pytest.approx(finite.mean())
    assert summary.std == pytest.approx(finite.std())
    assert summary.max_abs == np.abs(finite).max()
    assert np.isnan(summary.participation_ratio)
    (nothing,) = summarize({"a": np.full((4, 1, 2), np.nan)}, np.zeros((4, 1)))
    assert (nothing.peak, nothing.n_nonfinite) == (None, 8)
    assert np.isnan([nothing.mean, nothing.max_abs, nothing.percentiles[50]]).all()


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_magnitudes_are_right_to_a_fortieth_of_a_percent(scale):
    x = np.abs(np.random.default_rng(3).standard_cauchy(10_000)) * scale
    x[:500] = 0.0
    magnitudes = Magnitudes()
    for part in np.split(x, 4):
        magnitudes.add(part)
    for level in (0, 1, 5, 5.01, 50, 99.99, 100):
        exact = np.percentile(x, level, method="inverted_cdf")
        assert magnitudes.percentile(level) == pytest.approx(exact, rel=2**-12, abs=0)


def test_data_set_and_table_say_the_same(data, stored):
    summaries = summarize(stored, percentiles=(50, 99))
    dataset = summary_dataset(summaries)
    assert isinstance(dataset, xarray.Dataset)
    assert dataset.sel(layer="0/hidden")["peak_step"] == 1717
    assert dataset.sel(layer="0/hidden")["peak_unit"] == "3"
    assert dataset["abs_percentile"].sel(layer="1", percentile=99) == summaries[1].percentiles[99]
    assert np.isnan(dataset["n_saturated"].sel(layer="0/hidden"))
    console = Console(width=80)
    with console.capture() as capture:
        console.print(health_table(summaries))
    text = capture.get()
    assert " -5e+03  3:2:1717 " in " ".join(text.split("│")).replace("   ", "  ")
    assert str(summaries[1].n_saturated) in text
    assert summary_dataset([]).sizes["layer"] == 0


def test_progress_counts_chunks_of_layers(stored):
    seen = []
    summarize(stored, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i, 10) for i in range(1, 11)]


def test_mistakes_say_what_is_wrong(data):
    with pytest.raises(ValueError, match=r"percentiles must be from 0 to 100, got \[101\]"):
        summarize(*data, percentiles=(50, 101))
    with pytest.raises(ValueError, match="activations in memory need dones"):
        summarize(data[0])
