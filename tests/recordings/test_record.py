"""What a recording holds: the values of the rollout in memory and of a loop by hand, in chunks of any size."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray
import zarr
from flax import nnx

from nnx_ppo.algorithms.rollout import record_activations_rollout
from nnx_ppo.envs import EnvState
from nnx_ppo.envs.probes import CountingEnv, TreeEnv
from nnx_ppo.networks import Dense, NormalTanhSampler, Parallel, PPOAdapter, Sequential
from nnx_ppo.networks.naming import flatten_activations
from nnx_ppo.networks.utils import Flattener
from nnx_ppo.recordings import open_recording, record
from tests.helpers import RandomEnds, bits, lstm, mlp
from tests.helpers_compile import compilations

ENV = RandomEnds(p_end=0.2)
N, T = 3, 20


def arrays(recording):
    return {path: recording.array(path) for path in recording.array_paths()}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The same recording in chunks of 1, of 7 and of all steps, by kind of reset."""
    folder = tmp_path_factory.mktemp("recordings")

    def of(reset, chunk_steps):
        path = folder / f"{reset}-{chunk_steps}.zarr"
        if path.exists():
            return open_recording(path)
        return record(ENV, lstm(), path, n_envs=N, n_steps=T, key=0, reset=reset, chunk_steps=chunk_steps)

    return of


@pytest.mark.parametrize("reset", ["auto", "never"])
def test_values_do_not_depend_on_the_size_of_the_chunks(recorded, reset):
    whole = arrays(recorded(reset, T))
    for chunk_steps in (1, 7):
        parts = arrays(recorded(reset, chunk_steps))
        assert list(parts) == list(whole)
        for path, x in whole.items():
            np.testing.assert_array_equal(parts[path], x, err_msg=path, strict=True)


def test_values_are_those_of_the_rollout_in_memory(recorded):
    recording = recorded("never", 7)
    activations, dones = record_activations_rollout(ENV, lstm(), N, T, jax.random.key(0))
    flat = flatten_activations(activations)
    assert set(recording.layers) == set(flat)
    for path, x in flat.items():
        np.testing.assert_array_equal(recording.layer(path), x, err_msg=path, strict=True)
    np.testing.assert_array_equal(~recording.valid(), np.asarray(dones).astype(bool))


def test_episodes_follow_one_another_and_the_memory_starts_anew(recorded):
    """Every episode is replayed by hand: the network, from a fresh carry, over the observations that were stored."""
    recording = recorded("auto", 7)
    episode, step, done = (recording.array(name) for name in ("episode", "step", "done"))
    assert recording.valid().all()
    np.testing.assert_array_equal(episode[1:] - episode[:-1], done[:-1])
    np.testing.assert_array_equal(step[1:], np.where(done[:-1], 0, step[:-1] + 1))
    assert (done & recording.array("truncated")).any()
    assert (done & ~recording.array("truncated")).any()
    network = lstm()
    network.eval()
    obs = jnp.asarray(recording.array("observation"))
    starts = jnp.asarray(np.roll(done, 1, axis=0)).at[0].set(False)
    carry, values = network.initialize_state(N), []
    for t in range(T):
        fresh = network.reset_state(carry)
        carry = jax.tree.map(
            lambda new, old, t=t: (
                jnp.where(starts[t].reshape(-1, *[1] * (new.ndim - 1)), new, old)
                if not jnp.issubdtype(new.dtype, jax.dtypes.prng_key)
                else old
            ),
            fresh,
            carry,
        )
        out = network(carry, obs[t])
        carry = out.next_state
        values.append(out.output.value_estimates)
    np.testing.assert_allclose(recording.array("value"), jnp.stack(values), rtol=1e-5, atol=1e-6)


def test_every_start_is_another_one(recorded):
    recording = recorded("auto", 7)
    starts = recording.array("observation")[recording.array("step") == 0]
    assert len(starts) > 2 * N
    assert len(np.unique(starts, axis=0)) == len(starts)


def test_an_environment_has_the_same_name_in_every_recording(tmp_path):
    class Mine(type(ENV)):
        __repr__ = object.__repr__

    recordings = [record(Mine(), lstm(), tmp_path / name, n_envs=1, n_steps=1, key=0) for name in ("a", "b")]
    names = [recording.attributes["env"] for recording in recordings]
    assert names[0] == names[1]
    assert "Mine" in names[0]
    assert "0x" not in names[0]


def test_the_policy_does_not_explore_and_the_reward_belongs_to_the_action(recorded):
    recording = recorded("auto", 7)
    mu = recording.layer("heads/action/1")[..., :2]
    np.testing.assert_allclose(recording.array("action"), np.tanh(mu), rtol=1e-5, atol=1e-6)


def test_xarray_opens_the_store_as_it_is(recorded):
    recording = recorded("auto", 7)
    tree = xarray.open_datatree(recording.path)
    memory = tree["layers/memory/activation"]
    assert memory.dims == ("time", "env", "unit")
    np.testing.assert_array_equal(memory, recording.layer("memory"))
    assert tree["observation"].dims == ("time", "env", "observation_unit")
    assert set(tree.coords) == {"episode", "step", "valid"}
    assert tree["reward"].where(tree["episode"] == 0).count() == (recording.array("episode") == 0).sum()
    assert tree.attrs["layers"][:2] == ["normalizer", "memory"]
    assert tree.attrs["complete_steps"] == T
    assert tree.attrs["finished"]
    assert tree.attrs["key"] == {"implementation": "threefry2x32", "data": [0, 0]}
    assert "heads/action/0" in tree.attrs["network"]
    assert tree.attrs["versions"]["jax"] == jax.__version__


def test_chunks_lie_along_time_compressed_and_with_checksum(recorded):
    array = zarr.open_group(recorded("auto", 7).path)["layers/memory/activation"]
    assert (array.chunks, array.shape) == ((7, N, 8), (T, N, 8))
    assert [type(codec).__name__ for codec in array.compressors] == ["BloscCodec", "Crc32cCodec"]
    assert array.metadata.zarr_format == 3


def test_a_quota_of_episodes_is_one_for_each_environment(tmp_path):
    recording = record(ENV, mlp(), tmp_path / "r", n_envs=N, n_episodes=3, key=1, chunk_steps=8)
    valid, done, episode = recording.valid(), recording.array("done"), recording.array("episode")
    np.testing.assert_array_equal((valid & done).sum(0), [3] * N)
    np.testing.assert_array_equal(valid, episode < 3)
    assert valid[-1].any()  # not a step more than needed
    assert (~valid).any()
    longer = record(ENV, mlp(), tmp_path / "longer", n_envs=N, n_steps=recording.n_steps, key=1, chunk_steps=8)
    for path, x in arrays(recording).items():
        if path != "valid":
            np.testing.assert_array_equal(longer.array(path), x)
    cut = record(ENV, mlp(), tmp_path / "cut", n_envs=N, n_episodes=3, n_steps=5, key=1, chunk_steps=8)
    assert cut.n_steps == 5


def test_one_episode_without_restart_ends_with_the_last_environment(tmp_path):
    recording = record(ENV, mlp(), tmp_path / "r", n_envs=N, n_episodes=1, reset="never", key=1, chunk_steps=8)
    assert recording.valid()[-1].any()
    assert (recording.array("done") & recording.valid()).sum(0).tolist() == [1] * N


def test_a_quota_that_fills_its_last_chunk_ends_there(tmp_path):
    recording = record(
        CountingEnv(length=4), counting_network(), tmp_path / "r", n_envs=2, n_episodes=2, key=0, chunk_steps=4
    )
    assert recording.n_steps == 8
    np.testing.assert_array_equal(recording.array("step")[:, 0], [0, 1, 2, 3] * 2)
    np.testing.assert_array_equal(recording.array("observation")[:, 1, 0], [0, 1, 2, 3] * 2)
    np.testing.assert_array_equal(recording.array("reward"), np.ones((8, 2)))


def counting_network():
    rngs = nnx.Rngs(0)
    action = Sequential([Dense(1, 2, rngs), NormalTanhSampler(rngs, entropy_weight=0.0)])
    return PPOAdapter(action=action, value=Dense(1, 1, rngs))


def test_a_second_recording_compiles_nothing_and_the_network_stays_as_it_is(tmp_path):
    network = lstm()
    network.train()
    before = bits(nnx.state(network))
    record(ENV, network, tmp_path / "a", n_envs=N, n_steps=9, key=0, chunk_steps=7)
    with compilations() as compiled:
        record(ENV, lstm(seed=1), tmp_path / "b", n_envs=N, n_steps=16, key=3, chunk_steps=7)
    assert compiled == []
    for x, y in zip(before, bits(nnx.state(network)), strict=True):
        np.testing.assert_array_equal(x, y)
    assert not network["heads"]["action"][2].deterministic
    a, b = (open_recording(tmp_path / name).layer("memory") for name in "ab")
    assert not np.array_equal(a[:9], b[:9])


def test_extras_are_aligned_with_what_they_belong_to(tmp_path):
    extras = {"metrics/one": None, "data": None, "double": lambda state: {"x": state.obs * 2.0}}
    recording = record(CountingEnv(), counting_network(), tmp_path / "r", n_envs=2, n_steps=6, key=0, extras=extras)
    np.testing.assert_array_equal(recording.array("extras/metrics/one/values"), np.ones((6, 2)))
    np.testing.assert_array_equal(recording.array("extras/data/step/values"), recording.array("step"))
    np.testing.assert_array_equal(recording.array("extras/double/x/values"), recording.array("observation") * 2)
    assert recording.to_tree()["extras/double/x/values"].dims == ("time", "env", "unit")


@pytest.mark.parametrize(
    ("extras", "match"),
    [
        (("data/spet",), r"no 'data/spet'; instead of 'spet' there is \['step'\]"),
        (("date",), r"instead of 'date' there is \['obs', 'reward', 'done', 'info', 'metrics', 'data'\]"),
        ("data", "extras must be a sequence of names or a dict, got the string 'data'"),
        ({"a": lambda s: s.done, "a/b": lambda s: s.done}, "'a' is an array with nothing below it"),
    ],
)
def test_extras_that_cannot_be_are_errors_before_anything_is_written(tmp_path, extras, match):
    with pytest.raises(ValueError, match=match):
        record(CountingEnv(), counting_network(), tmp_path / "r", n_envs=2, n_steps=6, key=0, extras=extras)
    assert not (tmp_path / "r").exists()


def test_trees_are_groups_and_layers_may_have_any_name_and_shape(tmp_path):
    rngs = nnx.Rngs(0)

    def head(size):
        return Sequential([Dense(5, 2 * size, rngs), NormalTanhSampler(rngs, entropy_weight=0.0)])

    heads = PPOAdapter(
        action=Parallel(move=head(2), look=head(1)), value=Parallel(move=Dense(5, 1, rngs), look=Dense(5, 1, rngs))
    )
    odd = Dense(5, 5, rngs)
    network = Sequential(
        [("flat", Flattener()), ("..", odd), ("a/b%", Dense(5, 5, rngs)), ("__x", Dense(5, 5, rngs)), ("heads", heads)]
    )
    recording = record(TreeEnv(), network, tmp_path / "r", n_envs=2, n_steps=6, key=0)
    activations, _ = record_activations_rollout(TreeEnv(), network, 2, 6, jax.random.key(0))
    flat = flatten_activations(activations)
    assert set(recording.layers) == set(flat)
    first = slice(0, 4)  # an episode of this environment has four steps
    for path, x in flat.items():
        np.testing.assert_array_equal(recording.layer(path, first), x[first], err_msg=path, strict=True)
    tree = recording.to_tree()
    np.testing.assert_array_equal(tree["reward/look/reward"], recording.array("reward/look/reward"))
    assert tree["observation/body/speed/observation"].shape == (6, 2, 2)
    assert tree["action/move/action"].dims == ("time", "env", "unit")
    assert [tree["layers/%2E./activation"].attrs["path"], tree["layers/%5F_x/activation"].attrs["path"]] == [
        "..",
        "__x",
    ]


class Picture(CountingEnv):
    """Observes a picture."""

    observation_size = (2, 3)

    def _state(self, step, obs, reward, **data) -> EnvState:
        return super()._state(step, jnp.zeros((2, 3)), reward, **data)


def test_pictures_have_more_dimensions_and_rounding_states_its_error(tmp_path):
    rngs = nnx.Rngs(0)
    action = Sequential([Dense(6, 2, rngs), NormalTanhSampler(rngs, entropy_weight=0.0)])
    network = Sequential([Recorded(), Flattener(), PPOAdapter(action=action, value=Dense(6, 1, rngs))])
    options = {"n_envs": 2, "n_steps": 3, "key": 0}
    exact = record(Picture(), network, tmp_path / "exact", **options)
    assert exact.to_tree()["observation"].dims == ("time", "env", "observation_unit", "observation_unit_1")
    assert exact.to_tree()["layers/0/activation"].dims == ("time", "env", "unit", "unit_1")
    for dtype, relative, on_disk in (("float16", 2**-11, np.float16), ("bfloat16", 2**-8, np.float32)):
        rounded = record(Picture(), network, tmp_path / dtype, **options, dtype=dtype)
        x, y = exact.layer("0"), rounded.layer("0")
        assert y.dtype == on_disk
        error = np.abs(x - y.astype(np.float32)).max()
        assert rounded.attributes["rounding_error"]["0"] == pytest.approx(error, rel=1e-6)
        assert 0 < error <= relative * np.abs(x).max()
        np.testing.assert_array_equal(exact.array("action"), rounded.array("action"))


class Recorded(Flattener):
    """Adds a ramp that no short float can hold."""

    def __call__(self, state, x, rollout_extras=None):
        out = super().__call__(state, x, rollout_extras)
        ramp = jnp.arange(1, 7, dtype=x.dtype) / 7
        return out.replace(output=(out.output + ramp[None]).reshape(x.shape))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "say how long to record"),
        ({"n_steps": 0}, "n_steps must be at least 1, got 0"),
        ({"n_steps": 1, "chunk_steps": 0}, "chunk_steps must be at least 1"),
        ({"n_episodes": 2, "reset": "never"}, "records one episode of each environment, got n_episodes=2"),
        ({"n_steps": 1, "dtype": "int8"}, "dtype must be None or one of float16, bfloat16, float32, got 'int8'"),
        ({"n_steps": 1, "include": "nothing"}, "matches no layer"),
    ],
)
def test_options_that_cannot_be_are_errors_before_anything_is_written(tmp_path, options, match):
    with pytest.raises(ValueError, match=match):
        record(ENV, lstm(), tmp_path / "r", n_envs=N, key=0, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(ImportError, match=r"this needs zarr: pip install 'nnx-ppo\[analysis\]'"):
        record(ENV, lstm(), tmp_path / "r", n_envs=N, n_steps=T, key=0)
    with pytest.raises(ImportError, match="this needs zarr"):
        open_recording(tmp_path / "r")


def test_unknown_layers_and_arrays_name_near_ones(recorded):
    with pytest.raises(KeyError, match=r"no layer 'memoy'; near names: \['memory'\]"):
        recorded("auto", 7).layer("memoy")
    with pytest.raises(KeyError, match=r"no array 'rewad'; near names: \['reward', "):
        recorded("auto", 7).array("rewad")


def test_steps_and_environments_beyond_the_end_are_errors_and_not_empty(recorded):
    recording = recorded("auto", 7)
    assert recording.layer("memory", slice(T - 1, T + 100)).shape[0] == 1
    np.testing.assert_array_equal(recording.layer("memory", slice(-2, None)), recording.layer("memory")[-2:])
    np.testing.assert_array_equal(recording.array("reward", envs=-1), recording.array("reward")[:, -1])
    with pytest.raises(IndexError, match="has 20 steps, numbered from 0; asked was for those from 20 on"):
        recording.layer("memory", slice(T, T + 100))
    for envs in (slice(N, None), N, -N - 1):
        with pytest.raises(IndexError, match="has 3 environments, numbered from 0; asked was for those from"):
            recording.array("reward", envs=envs)
