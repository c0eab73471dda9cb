"""A network takes over what a checkpoint holds: all of it, under other names, or a part; misfits name both sides."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.algorithms.checkpoint_files import CheckpointError
from nnx_ppo.algorithms.checkpointing import make_checkpoint_fn
from nnx_ppo.algorithms.leaves import module_leaves
from nnx_ppo.algorithms.ppo import new_training_state
from nnx_ppo.algorithms.restoring import load_networks, restore_networks
from nnx_ppo.networks.containers import Sequential
from nnx_ppo.networks.factories import make_lstm_actor_critic
from tests.helpers import RandomEnds, assert_same_bits, bits, lstm, mlp


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of an LSTM policy and that policy."""
    folder, network = tmp_path_factory.mktemp("saved"), lstm(seed=1)
    state = new_training_state(RandomEnds(), network, 4, 0)
    with make_checkpoint_fn(folder) as checkpoint_fn:
        checkpoint_fn(state, 7)
    return folder / "step_0000000007", network


def renamed(seed: int = 0, hidden_size: int = 8) -> Sequential:
    """The policy of ``lstm()`` with other names for its parts."""
    parts = make_lstm_actor_critic(3, 2, hidden_size, [8], [8], nnx.Rngs(seed), activation="tanh").named_children()
    return Sequential({"obs": parts["normalizer"], "core": parts["memory"], "heads": parts["heads"]})


def values(network: Any) -> dict[str, np.ndarray]:
    return {name: bits(leaf)[0] for name, leaf in module_leaves(network).items()}


RENAME = {"normalizer": "obs", "memory": "core"}


def test_a_network_is_loaded_as_a_whole(saved):
    path, network = saved
    other = lstm(seed=2)
    load_networks(path, other)
    assert_same_bits(nnx.state(network), nnx.state(other))


def test_names_are_canonical_layer_paths(saved):
    assert {"normalizer/mean", "memory/cell/dense_i/kernel", "heads/action/0/linear/kernel"} <= set(
        module_leaves(saved[1])
    )


def test_another_network_is_refused_and_left_alone(saved):
    path, _ = saved
    other = mlp()
    before = bits(nnx.state(other))
    with pytest.raises(CheckpointError, match=r"0/M2: saved nothing, here float32\[3\].*use restore_networks"):
        load_networks(path, other)
    assert_same_bits(before, nnx.state(other))


def test_renamed_layers_are_taken_over(saved):
    path, network = saved
    other = renamed(seed=3)
    report = restore_networks(path, other, rename=RENAME)
    assert report.missing == report.left == ()
    assert report.taken["core/cell/dense_h/kernel"] == "memory/cell/dense_h/kernel"
    assert report.taken["heads/value/0/linear/bias"] == "heads/value/0/linear/bias"
    expected = values(network)
    for new, old in report.taken.items():
        np.testing.assert_array_equal(values(other)[new], expected[old])
    assert "taken    core/cell/dense_h/bias  from memory/cell/dense_h/bias" in str(report)


def test_the_longest_name_counts(saved):
    other = renamed(seed=3)
    same = {f"heads/value/{i}": f"heads/value/{i}" for i in (0, 1)}
    assert restore_networks(saved[0], other, rename=RENAME | {"heads/value": "nowhere"} | same).missing == ()


def test_a_part_is_taken_and_the_rest_left_alone(saved):
    path, network = saved
    other = lstm(seed=2)
    before = values(other)
    report = restore_networks(path, other, include=["memory/*", "normalizer/*"], exclude=["*/M2"])
    chosen = {name for name in before if name.startswith(("memory", "normalizer"))}
    assert set(report.taken) == chosen - {"normalizer/M2"}
    assert "normalizer/M2" in report.missing
    assert "normalizer/M2" in report.left
    for name, value in values(other).items():
        np.testing.assert_array_equal(value, values(network)[name] if name in report.taken else before[name])
    assert "missing  normalizer/M2" in str(report)
    assert "left     normalizer/M2" in str(report)


def test_what_the_checkpoint_lacks_is_an_error_unless_partial(saved):
    path, _ = saved
    other = renamed(seed=3)
    before = bits(nnx.state(other))
    with pytest.raises(
        CheckpointError,
        match=r"core/cell/dense_h/bias, float32\[32\], is not in the checkpoint "
        r"\(nearest there: memory/cell/dense_h/bias float32\[32\].*partial=True",
    ):
        restore_networks(path, other, rename={"normalizer": "obs"})
    assert_same_bits(before, nnx.state(other))
    report = restore_networks(path, other, rename={"normalizer": "obs"}, partial=True)
    assert set(report.missing) == {name for name in values(other) if name.startswith("core")}
    assert set(report.left) == {name for name in values(saved[1]) if name.startswith("memory")}


def test_another_shape_names_both_paths_and_shapes_and_what_would_fit(saved):
    path, _ = saved
    other = renamed(hidden_size=6)
    before = bits(nnx.state(other))
    for partial in (False, True):
        with pytest.raises(
            CheckpointError,
            match=r"memory/cell/dense_i/kernel is float32\[3, 32\] in the checkpoint, core/cell/dense_i/kernel is "
            r"float32\[3, 24\] here",
        ):
            restore_networks(path, other, rename=RENAME, partial=partial)
    assert_same_bits(before, nnx.state(other))
    with pytest.raises(
        CheckpointError,
        match=r"heads/action/0/linear/kernel is float32\[8, 8\] in the checkpoint, heads/value/1/linear/kernel is "
        r"float32\[8, 1\] here \(nearest that fit it here: heads/action/0/linear/kernel float32\[8, 8\]",
    ):
        restore_networks(
            path,
            lstm(),
            rename={"heads/action/0": "heads/value/1", "heads/value/1": "heads/none"},
            include=["heads/value/1/*"],
        )


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"rename": {"memorry": "x"}}, r"rename names \['memorry'\], which .* does not hold; near: memory"),
        ({"rename": {"heads/action": "heads/value"}}, r"rename gives both .* and .* the name heads/value"),
        ({"include": ["memmory/*"]}, r"the pattern 'memmory/\*' matches no variable of the network; near: memory"),
        ({"exclude": ["zzzz"]}, r"the pattern 'zzzz' matches no variable of the network; it has "),
    ],
)
def test_names_that_match_nothing_are_mistakes(saved, options, match):
    with pytest.raises(CheckpointError, match=match):
        restore_networks(saved[0], lstm(), **options)


def test_random_streams_keep_their_implementation(tmp_path):
    network = mlp()
    streams = [node for _, node in nnx.iter_graph(network) if isinstance(node, nnx.RngKey)]
    streams[0].set_value(jax.random.key(5, impl="rbg"))
    state = new_training_state(RandomEnds(), mlp(), 4, 0)
    with make_checkpoint_fn(tmp_path) as checkpoint_fn:
        checkpoint_fn(dataclasses.replace(state, networks=network), 1)
    with pytest.raises(CheckpointError, match=r"saved key<rbg>\[\], here key<threefry2x32>\[\]"):
        load_networks(tmp_path / "step_0000000001", mlp())
