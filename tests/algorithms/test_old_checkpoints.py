"""A run that an earlier version wrote loads for ever: ``fixtures/run_format_1`` must never be written again.

``expected.json`` beside it holds the same numbers as text, so that they do not depend on any checkpoint code.
"""

import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_ppo.algorithms.snapshots import snapshot
from nnx_ppo.cli import load_policy
from nnx_ppo.cli.restore import restore_run
from nnx_ppo.cli.resume import load_newest
from nnx_ppo.cli.training_run import resume_run

OLD = pathlib.Path(__file__).parents[1] / "fixtures" / "run_format_1"


@pytest.fixture(scope="module")
def expected():
    return {
        name: np.asarray(entry["values"], jnp.dtype(entry["dtype"]))
        for name, entry in json.loads((OLD / "expected.json").read_text()).items()
    }


def test_every_array_is_what_it_was(expected):
    folder, config, _, network = restore_run(OLD)
    loaded = load_newest(folder.checkpoints, config, network)
    assert loaded is not None
    assert loaded["step"] == 16
    assert loaded["config"].ppo.n_envs == 2
    arrays = snapshot(loaded["training_state"])
    assert arrays.keys() == expected.keys()
    for name, (array, _) in arrays.items():
        np.testing.assert_array_equal(array.reshape(expected[name].shape), expected[name], err_msg=name)
        assert array.dtype == expected[name].dtype


def test_the_policy_acts(expected):
    policy = load_policy(OLD)
    kernel = policy["heads"]["action"][0].linear.kernel.get_value()
    np.testing.assert_array_equal(kernel, expected["networks:heads/action/0/linear/kernel"])
    out = policy(policy.initialize_state(3), jnp.ones((3, 2)))
    assert out.output.actions.shape[0] == 3


def test_the_run_goes_on(tmp_path):
    shutil.copytree(OLD, tmp_path / "run")
    folder, network = resume_run(tmp_path / "run", 32)
    assert [row["steps"] for row in folder.metrics()] == [0, 8, 16, 24, 32]
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(network["heads"]["action"][0].linear.kernel))
