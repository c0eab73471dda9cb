"""A saved policy comes back bit for bit, in a network that was built with another seed."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.cli.policy import load_policy, save_policy
from nnx_ppo.networks import Dense, Sequential, make_lstm_actor_critic


def make(seed, hidden_size=4):
    return make_lstm_actor_critic(3, 2, hidden_size, [5], [6], nnx.Rngs(seed))


def as_data(network):
    def data(x):
        return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)

    return [data(x) for x in jax.tree.leaves(nnx.state(network))]


def test_round_trip_is_bit_identical(tmp_path):
    saved, other = make(0), make(1)
    saved.initialize_state(2)  # draws keys, so that a count is not zero
    assert any((a != b).any() for a, b in zip(as_data(saved), as_data(other), strict=True))
    save_policy(tmp_path / "final", saved, steps=1234)
    assert load_policy(tmp_path / "final", other) == 1234
    for a, b in zip(as_data(saved), as_data(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_random_keys_are_stored_as_data_with_their_implementation(tmp_path):
    network = make(0)
    save_policy(tmp_path / "final", network, steps=1)
    keys = json.loads((tmp_path / "final" / "policy.json").read_text())["keys"]
    assert keys
    assert set(keys.values()) == {"fry"} or all("fry" in impl for impl in keys.values())


def test_saving_again_replaces(tmp_path):
    save_policy(tmp_path / "final", make(0), steps=1)
    save_policy(tmp_path / "final", make(1), steps=2)
    network = make(2)
    assert load_policy(tmp_path / "final", network) == 2
    np.testing.assert_array_equal(as_data(network)[0], as_data(make(1))[0])
    assert [p.name for p in tmp_path.iterdir()] == ["final"]


def test_another_network_is_refused_with_paths_and_shapes(tmp_path):
    save_policy(tmp_path / "final", make(0, hidden_size=4), steps=1)
    with pytest.raises(ValueError, match=r"does not fit.*memory.*saved float32\[.*network has float32\["):
        load_policy(tmp_path / "final", make(0, hidden_size=5))
    with pytest.raises(ValueError, match="network has nothing"):
        load_policy(tmp_path / "final", Sequential([Dense(3, 2, nnx.Rngs(0))]))


def test_nothing_is_pickled(tmp_path):
    save_policy(tmp_path / "final", make(0), steps=1)
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.read_bytes()[:2] in (b"\x80\x04", b"\x80\x05")]
