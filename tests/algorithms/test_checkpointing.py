"""Checkpoints hold everything bit by bit, are written while training goes on, and say what is wrong with them."""

import dataclasses
import json
import pickle
import shutil
import threading
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from nnx_ppo._pytree import PyTreeNode
from nnx_ppo.algorithms import checkpoint_files, checkpointing
from nnx_ppo.algorithms.checkpoint_files import CheckpointError, DamagedCheckpointError, complete_checkpoints
from nnx_ppo.algorithms.checkpoint_loading import load_checkpoint
from nnx_ppo.algorithms.checkpointing import latest_checkpoint, make_checkpoint_fn
from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig
from nnx_ppo.algorithms.leaves import structured, tree_leaves
from nnx_ppo.algorithms.loggers import JsonLinesLogger, log_to, read_metrics
from nnx_ppo.algorithms.ppo import new_training_state, ppo_step, train_ppo
from nnx_ppo.algorithms.retention import Retention
from nnx_ppo.algorithms.types import TrainingState
from tests.helpers import RandomEnds, assert_same_bits, bits, lstm, mlp

ENV = RandomEnds()
PPO = PPOConfig(n_envs=4, rollout_length=5, total_steps=60, n_epochs=2, n_minibatches=2, learning_rate=1e-2)
CONFIG = TrainConfig(ppo=PPO, eval=EvalConfig(enabled=False), checkpoint_every_steps=20)


def state_of(network: Any, seed: int = 0) -> TrainingState:
    return new_training_state(ENV, network, 4, seed, 1e-2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of three iterations with a checkpoint after each, and how it ended."""
    folder = tmp_path_factory.mktemp("trained")
    network = lstm()
    with make_checkpoint_fn(folder, CONFIG) as checkpoint_fn:
        result = train_ppo(ENV, network, CONFIG, checkpoint_fn=checkpoint_fn)
    return folder, result


@pytest.fixture
def folder(trained, tmp_path):
    """A copy of the checkpoints, to spoil."""
    shutil.copytree(trained[0], tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def test_a_loaded_state_is_the_saved_one_and_goes_on_to_the_bit(trained):
    folder, result = trained
    assert [p.name for p in complete_checkpoints(folder)] == [f"step_00000000{s}" for s in (60, 40, 20)]
    network = lstm(seed=5)
    loaded = load_checkpoint(folder / "step_0000000020", network, state_of(network).optimizer)
    assert (loaded["step"], loaded["config"], loaded["training_state"].steps_taken) == (20, CONFIG, 20)
    assert loaded["training_state"].networks is network
    rows: list[int] = []
    again = train_ppo(ENV, network, CONFIG, initial_state=loaded["training_state"], log_fn=lambda m, s: rows.append(s))
    assert rows == [40, 60]
    for name in ("env_states", "network_states", "rng_key"):
        assert_same_bits(getattr(result.training_state, name), getattr(again.training_state, name))
    for name in ("networks", "optimizer"):
        assert_same_bits(
            nnx.state(getattr(result.training_state, name)), nnx.state(getattr(again.training_state, name))
        )
    assert type(again.training_state.env_states) is type(result.training_state.env_states)


def test_a_loaded_state_serves_ppo_step_and_another_networks_object(trained):
    folder, _ = trained
    first, second, third = mlp_like = [lstm(seed=s) for s in (1, 2, 3)]
    states = [load_checkpoint(folder / "step_0000000040", n, state_of(n).optimizer) for n in mlp_like]
    ppo_step(ENV, states[0]["training_state"], PPO)
    train_ppo(ENV, second, CONFIG, initial_state=states[1]["training_state"])
    assert_same_bits(nnx.state(first), nnx.state(second))
    fresh = lstm(seed=9)
    train_ppo(ENV, fresh, CONFIG, initial_state=states[2]["training_state"])
    assert_same_bits(nnx.state(fresh), nnx.state(second))
    assert not np.array_equal(bits(nnx.state(third))[0], bits(nnx.state(fresh))[0])


class Simulator(PyTreeNode):
    """Everything that an environment state may hold."""

    typed: Any
    rbg: Any
    raw: Any
    half: Any
    empty: Any
    weak: Any
    many_weak: Any
    small: Any
    number: Any
    flag: Any
    nested: Any


def simulator_state() -> Simulator:
    return Simulator(
        typed=jax.random.split(jax.random.key(3), 4),
        rbg=jax.random.split(jax.random.key(4, impl="rbg"), 4),
        raw=jax.random.split(jax.random.PRNGKey(5), 4),
        half=jnp.asarray([1.5, -0.0, jnp.nan, jnp.inf], jnp.bfloat16),
        empty=jnp.zeros((4, 0, 3), jnp.float16),
        weak=jnp.asarray(0.1),
        many_weak=jnp.stack([jnp.asarray(x) for x in (0.1, 1e-30, -0.0, float("nan"))]),
        small=jnp.asarray([-128, 0, 1, 127], jnp.int8),
        number=2**31 - 1,
        flag=True,
        nested={"a/b": (jnp.ones((4, 2)), None, [jnp.zeros(4, bool)]), "a": {"b": jnp.arange(4)}},
    )


def test_every_kind_of_leaf_survives(tmp_path):
    network = mlp()
    state = state_of(network).replace(env_states=simulator_state(), rng_key=jax.random.key(7, impl="rbg"))
    with make_checkpoint_fn(tmp_path) as checkpoint_fn:
        checkpoint_fn(state, 1)
    loaded = load_checkpoint(tmp_path / "step_0000000001", network, state.optimizer)["training_state"]
    env_states = structured(loaded.env_states, simulator_state, "states")
    assert jax.tree.structure(env_states) == jax.tree.structure(state.env_states)
    saved = tree_leaves(state.env_states) | {"key": state.rng_key}
    for name, leaf in (tree_leaves(env_states) | {"key": loaded.rng_key}).items():
        assert type(leaf) is type(saved[name]), name
        if isinstance(leaf, jax.Array):
            assert (leaf.dtype, leaf.shape) == (saved[name].dtype, saved[name].shape), name
            assert getattr(leaf, "weak_type", None) == getattr(saved[name], "weak_type", None), name
            assert bits(leaf)[0].tobytes() == bits(saved[name])[0].tobytes(), name
        else:
            assert leaf == saved[name]
    assert env_states.number == 2**31 - 1
    assert env_states.flag is True


def test_another_structure_of_environment_states_is_named(tmp_path):
    network = mlp()
    state = state_of(network)
    with make_checkpoint_fn(tmp_path) as checkpoint_fn:
        checkpoint_fn(state.replace(env_states={"obs": jnp.zeros((4, 3))}), 1)
    loaded = load_checkpoint(tmp_path / "step_0000000001", network, state.optimizer)["training_state"]
    with pytest.raises(
        ValueError, match=r"the environment's states of the checkpoint do not fit.*\.reward: saved noth"
    ):
        ppo_step(ENV, loaded, PPO)


def test_float64_survives_and_is_refused_where_jax_has_32_bits(tmp_path):
    network = mlp()
    state = state_of(network)
    with jax.enable_x64(True):
        wide = {"x": jnp.asarray([1 / 3, 1e300]), "n": jnp.asarray([2**40])}
    with make_checkpoint_fn(tmp_path) as checkpoint_fn:
        checkpoint_fn(state.replace(env_states=wide), 1)
    with pytest.raises(CheckpointError, match=r"of (float64|int64) was saved with 64-bit numbers.*JAX_ENABLE_X64=1"):
        load_checkpoint(tmp_path / "step_0000000001", network, state.optimizer)
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        loaded = load_checkpoint(tmp_path / "step_0000000001", network, state.optimizer)["training_state"]
        leaves = loaded.env_states.leaves
    assert np.asarray(leaves["['x']"]).tolist() == [1 / 3, 1e300]
    assert np.asarray(leaves["['n']"]).tolist() == [2**40]


def test_nothing_is_pickled(trained):
    for path in trained[0].rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert data[:2] not in (b"\x80\x04", b"\x80\x05"), path
            with pytest.raises(Exception):  # noqa: B017, PT011 - any refusal will do
                pickle.loads(data)


class Gate:
    """A writer that waits to be let through, and can be told to fail."""

    def __init__(self, monkeypatch):
        self.open, self.started, self.error = threading.Event(), threading.Event(), None
        write = checkpointing.write_checkpoint

        def gated(*args):
            self.started.set()
            assert self.open.wait(30)
            if self.error is not None:
                raise self.error
            return write(*args)

        monkeypatch.setattr(checkpointing, "write_checkpoint", gated)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    network = mlp()
    state = state_of(network)
    before = bits((state.env_states, nnx.state(network)))
    with make_checkpoint_fn(tmp_path) as checkpoint_fn:
        checkpoint_fn(state, 0)
        assert gate.started.wait(30)
        state, _ = ppo_step(ENV, state, PPO)  # donates what is being saved, changes the network in place
        assert complete_checkpoints(tmp_path) == []
        threading.Timer(0.2, gate.open.set).start()
        checkpoint_fn(state, 20)  # waits for the first
        assert (tmp_path / "step_0000000000").is_dir()
    other = mlp(1)
    loaded = load_checkpoint(tmp_path / "step_0000000000", other, state_of(other).optimizer)["training_state"]
    leaves = structured(loaded.env_states, lambda: state.env_states, "states")
    assert_same_bits(before, (leaves, nnx.state(other)))


@pytest.mark.parametrize("how", ["next", "wait", "close"])
def test_an_error_of_the_writer_surfaces(tmp_path, monkeypatch, how):
    state = state_of(mlp())
    checkpoint_fn = make_checkpoint_fn(tmp_path)
    checkpoint_fn(state, 1)
    checkpoint_fn.wait()
    gate = Gate(monkeypatch)
    gate.error = OSError(28, "No space left on device")
    gate.open.set()
    checkpoint_fn(state, 2)
    with pytest.raises(CheckpointError, match=r"after 2 steps could not be written in .*No space left on device"):
        {"next": lambda: checkpoint_fn(state, 3), "wait": checkpoint_fn.wait, "close": checkpoint_fn.close}[how]()
    checkpoint_fn.close()
    assert [p.name for p in tmp_path.iterdir()] == ["step_0000000001"]


def test_an_error_of_training_is_not_hidden_by_one_of_the_writer(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    gate.error = OSError(28, "No space left on device")
    gate.open.set()

    def log_fn(metrics, steps):
        if steps == 40:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine") as caught, make_checkpoint_fn(tmp_path) as checkpoint_fn:
        train_ppo(ENV, mlp(), CONFIG, checkpoint_fn=checkpoint_fn, log_fn=log_fn)
    assert any("No space left" in note for note in caught.value.__notes__)


def test_train_ppo_waits_for_the_last_checkpoint(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    threading.Timer(1.0, gate.open.set).start()
    config = dataclasses.replace(CONFIG, checkpoint_every_steps=10**6)
    train_ppo(ENV, mlp(), config, checkpoint_fn=make_checkpoint_fn(tmp_path))
    assert latest_checkpoint(tmp_path) == tmp_path / "step_0000000060"


def test_saving_the_same_steps_again_replaces(tmp_path):
    networks = [mlp(0), mlp(1), mlp(2)]
    with make_checkpoint_fn(tmp_path) as checkpoint_fn:
        for network in networks[:2]:
            checkpoint_fn(state_of(network), 5)
    load_checkpoint(tmp_path / "step_0000000005", networks[2], state_of(networks[2]).optimizer)
    assert_same_bits(nnx.state(networks[1], nnx.Param), nnx.state(networks[2], nnx.Param))
    assert [p.name for p in tmp_path.iterdir()] == ["step_0000000005"]


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, [0, 5, 10, 15, 20, 25]),
        ({"keep_last": 1}, [25]),
        ({"keep_last": 3}, [15, 20, 25]),
        ({"keep_last": 99}, [0, 5, 10, 15, 20, 25]),
        ({"keep_best": 1}, [10, 25]),
        ({"keep_best": 2}, [10, 20, 25]),
        ({"keep_every": 10}, [0, 10, 20, 25]),
        ({"keep_every": 12}, [0, 15, 25]),
        ({"keep_last": 2, "keep_best": 1, "keep_every": 20}, [0, 10, 20, 25]),
    ],
)
def test_retention(fields, kept):
    scores = {0: 1.0, 5: None, 10: 7.0, 15: float("nan"), 20: 1.0, 25: 0.5}
    assert sorted(set(scores) - set(Retention(**fields).to_remove(scores))) == kept
    # Pruning after each save ends where pruning once does, except for what only a later save made superfluous.
    alive: dict[int, float | None] = {}
    for step, score in scores.items():
        alive[step] = score
        for old in Retention(**fields).to_remove(alive):
            del alive[old]
    assert sorted(alive) == kept


@pytest.mark.parametrize("name", ["keep_last", "keep_best", "keep_every"])
def test_a_retention_below_1_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1, got 0"):
        make_checkpoint_fn(tmp_path, **{name: 0})


def test_the_best_are_those_that_the_log_says(tmp_path):
    state = state_of(mlp())
    rewards = {10: 3.0, 20: 9.0, 30: float("nan"), 40: 1.0}
    (tmp_path / "step_0000000007").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    with make_checkpoint_fn(tmp_path, keep_last=1, keep_best=1) as checkpoint_fn:
        for steps, reward in rewards.items():
            checkpoint_fn.log({"losses/total": 1.0}, steps - 5)
            checkpoint_fn.log({"eval/episode_reward/mean": reward}, steps)
            checkpoint_fn(state, steps)
        checkpoint_fn(state, 45)  # not at an evaluation
    kept = ["step_0000000007", "step_0000000020", "step_0000000045"]  # the first is no checkpoint, and not ours
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == kept
    with make_checkpoint_fn(tmp_path, keep_last=1, keep_best=1) as checkpoint_fn:  # another process knows it still
        checkpoint_fn(state, 50)
    assert [p.name for p in complete_checkpoints(tmp_path)] == ["step_0000000050", "step_0000000020"]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_the_log_is_cut_back_to_the_checkpoint(tmp_path):
    path, network = tmp_path / "metrics.jsonl", mlp()
    with JsonLinesLogger(path) as logger, make_checkpoint_fn(tmp_path, CONFIG, logger=log_to(logger)) as checkpoint_fn:
        train_ppo(ENV, network, CONFIG, checkpoint_fn=checkpoint_fn, log_fn=logger)
    whole = path.read_bytes()
    loaded = load_checkpoint(tmp_path / "step_0000000040", network, state_of(network).optimizer)
    position = loaded["log"]["jsonl_bytes"]
    assert [row["steps"] for row in read_metrics(path)] == [20, 40, 60]
    with path.open("ab") as file:
        file.write(b'{"steps": 80, "torn')
    with JsonLinesLogger(path, keep_bytes=position) as logger:
        assert [row["steps"] for row in read_metrics(path)] == [20, 40]
        train_ppo(ENV, network, CONFIG, initial_state=loaded["training_state"], log_fn=logger)
    assert path.read_bytes() == whole


def test_a_schedule_has_to_be_given_again(tmp_path):
    rate = optax.linear_schedule(1e-2, 0.0, 12)
    config = TrainConfig(ppo=dataclasses.replace(PPO, learning_rate=rate))
    network = mlp()
    state = new_training_state(ENV, network, 4, 0, rate)
    with make_checkpoint_fn(tmp_path, config) as checkpoint_fn:
        checkpoint_fn(state, 1)
    loaded = load_checkpoint(tmp_path / "step_0000000001", network, state.optimizer)["config"]
    assert loaded.ppo.n_envs == 4
    with pytest.raises(ValueError, match=r"the learning rate was a schedule \(.*\), which no file can hold"):
        loaded.ppo.learning_rate(0)


@pytest.mark.parametrize("config", [None, {"mine": [1, 2.5, None]}, CONFIG])
def test_the_configuration_comes_back(tmp_path, config):
    network = mlp()
    state = state_of(network)
    with make_checkpoint_fn(tmp_path, config) as checkpoint_fn:
        checkpoint_fn(state, 1)
    assert load_checkpoint(tmp_path / "step_0000000001", network, state.optimizer)["config"] == config


def test_a_configuration_without_json_form_is_refused_at_once(tmp_path):
    with pytest.raises(TypeError, match="config must be a TrainConfig or what JSON can hold, got"):
        make_checkpoint_fn(tmp_path, {"f": object()})


SPOIL = {
    "removed": lambda path: path.unlink(),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "changed": lambda path: path.write_bytes(path.read_bytes()[:-2] + b"\x01\x02"),
}


@pytest.mark.parametrize("how", SPOIL)
def test_each_spoilt_file_is_found_and_the_older_checkpoint_serves(trained, tmp_path, how):
    names = [p.relative_to(trained[0]) for p in (trained[0] / "step_0000000060").rglob("*") if p.is_file()]
    assert len(names) > 3
    network = lstm()
    optimizer = state_of(network).optimizer
    before = bits(nnx.state(network))
    for i, name in enumerate(names):
        folder = tmp_path / str(i)
        shutil.copytree(trained[0], folder)
        if how == "changed" and (folder / name).stat().st_size < 2:
            continue
        SPOIL[how](folder / name)
        with pytest.raises(DamagedCheckpointError, match="step_0000000060"):
            load_checkpoint(folder / "step_0000000060", network, optimizer)
        assert_same_bits(before, nnx.state(network))
        latest = latest_checkpoint(folder)
        assert latest is not None
        if how != "changed" or name.name == "checkpoint.json":
            assert latest.name == "step_0000000040"
    load_checkpoint(folder / "step_0000000040", network, optimizer)


def test_what_is_no_checkpoint_is_passed_over(folder):
    (folder / "step_0000000099").write_text("a file")
    (folder / "step_0000000098").mkdir()
    (folder / "step_0000000097").mkdir()
    (folder / "step_0000000097" / "checkpoint.json").write_text("[1]")
    (folder / "step_abc").mkdir()
    (folder / ".step_0000000096.partial").mkdir()
    assert latest_checkpoint(folder) == folder / "step_0000000060"
    assert latest_checkpoint(folder / "nowhere") is None
    with pytest.raises(DamagedCheckpointError, match=r"holds no readable checkpoint\.json"):
        load_checkpoint(folder / "step_0000000098", lstm(), state_of(lstm()).optimizer)


def test_a_checkpoint_that_is_not_there_names_those_that_are(folder):
    network = lstm()
    with pytest.raises(CheckpointError, match=r"there is no checkpoint .*There are step_0000000060, step_0000000040"):
        load_checkpoint(folder / "step_0000000050", network, state_of(network).optimizer)


def rewrite(path, change):
    about = json.loads((path / "checkpoint.json").read_text())
    about.pop("crc32")
    change(about)
    crc = checkpoint_files._crc_of_json(about)
    (path / "checkpoint.json").write_text(json.dumps({"crc32": crc, **about}))


def test_a_newer_format_is_refused(folder):
    path, network = folder / "step_0000000060", lstm()
    rewrite(path, lambda about: about.update(format=2))
    with pytest.raises(CheckpointError, match="has format 2, this nnx-ppo reads up to 1: update nnx-ppo"):
        load_checkpoint(path, network, state_of(network).optimizer)


def test_fields_of_later_versions_do_no_harm(folder):
    path, network = folder / "step_0000000060", lstm()

    def change(about):
        about["later"] = 1
        about["config"]["TrainConfig"]["ppo"]["later"] = 1

    rewrite(path, change)
    assert load_checkpoint(path, network, state_of(network).optimizer)["config"] == CONFIG


def test_other_settings_of_jax_are_pointed_out(folder):
    path, network = folder / "step_0000000060", lstm()
    rewrite(path, lambda about: about["settings"].update(jax_default_prng_impl="rbg"))
    with pytest.warns(UserWarning, match=r"jax_default_prng_impl was rbg, is threefry2x32.*not go on to the bit"):
        load_checkpoint(path, network, state_of(network).optimizer)


def test_another_network_or_optimizer_is_refused_and_left_alone(trained):
    path = trained[0] / "step_0000000060"
    network, other = lstm(), mlp()
    optimizer = state_of(other).optimizer
    before = bits(nnx.state(other))
    with pytest.raises(CheckpointError, match=r"the networks in .* do not fit.*0/M2: saved nothing, here float32\[3\]"):
        load_checkpoint(path, other, optimizer)
    assert_same_bits(before, nnx.state(other))
    scheduled = new_training_state(ENV, network, 4, 0, optax.linear_schedule(1.0, 0.0, 3)).optimizer
    before = bits(nnx.state(network))
    with pytest.raises(CheckpointError, match=r"the optimizer in .* do not fit.*count: saved nothing, here int32\[\]"):
        load_checkpoint(path, network, scheduled)
    assert_same_bits(before, nnx.state(network))
