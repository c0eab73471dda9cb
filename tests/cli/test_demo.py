"""The demo leaves pictures, a recording and a closing table, and finds another folder the second time."""

import dataclasses

import numpy as np
import pytest

from nnx_ppo.cli import demo, main
from nnx_ppo.cli.run_folder import RunFolder
from nnx_ppo.recordings.plots import plot_activations

PNG = b"\x89PNG"


@pytest.fixture
def small(monkeypatch):
    ppo = dataclasses.replace(demo.DEMO.train.ppo, n_envs=8, rollout_length=4, n_epochs=1, n_minibatches=2)
    evaluation = dataclasses.replace(demo.DEMO.train.eval, n_envs=2, every_steps=32, max_episode_length=5)
    network = dataclasses.replace(demo.DEMO.network, hidden_size=4, actor_hidden_sizes=(4,), critic_hidden_sizes=(4,))
    train = dataclasses.replace(demo.DEMO.train, ppo=ppo, eval=evaluation)
    monkeypatch.setattr(demo, "DEMO", dataclasses.replace(demo.DEMO, train=train, network=network))
    monkeypatch.setattr(demo, "EPISODE_LENGTH", 6)


def test_demo(small, tmp_path, monkeypatch, capsys):
    drawn = {}

    def draw(activations, dones, **options):
        drawn.update(activations)
        return plot_activations(activations, dones, **options)

    monkeypatch.setattr(demo, "plot_activations", draw)
    out = tmp_path / "my runs" / "demo_run"
    main(["demo", "--out", str(out), "--total-steps", "64"])
    assert (out / "learning_curve.png").read_bytes().startswith(PNG)
    assert (out / "activations.png").read_bytes().startswith(PNG)
    recorded = np.load(out / "recordings" / "activations.npz")
    assert recorded["memory"].shape == (6, demo.RECORDED_EPISODES, 4)
    assert drawn.keys() == set(recorded.files) - {"dones"}
    assert drawn["heads/action/2/log_likelihood"].shape[-1] == 1
    assert recorded["normalizer"].shape[-1] == 2, "the angular velocity must be hidden"
    assert [row["steps"] for row in RunFolder.open(out).metrics()] == [0, 32, 64]
    printed = capsys.readouterr().out
    for word in ("dead units", "memory", "activations.png", f"nnx-ppo eval '{out}'", f"nnx-ppo record '{out}'"):
        assert word in printed

    main(["demo", "--out", str(out), "--total-steps", "32"])
    assert (out.parent / "demo_run-2" / "activations.png").is_file()
    assert "demo_run-2" in capsys.readouterr().err


def test_the_demo_as_shipped_is_a_memory_task():
    assert demo.DEMO.network.kind == "lstm"
    assert demo.DEMO.env_args == {"hide": (2,)}
