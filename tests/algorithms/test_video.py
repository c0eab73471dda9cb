"""A film is one episode, initial state first; frames of any usual kind come out alike; files hold what was filmed."""

import dataclasses
import re
import subprocess
from typing import Any

import imageio.v3 as iio
import imageio_ffmpeg
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.algorithms.callbacks import video_file_fn
from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig, VideoConfig, VideoData
from nnx_ppo.algorithms.ppo import train_ppo
from nnx_ppo.algorithms.rollout import eval_rollout
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.algorithms.video import as_frames, film_episode
from nnx_ppo.envs import make_env
from nnx_ppo.envs.types import EnvState
from nnx_ppo.networks.types import PPONetworkOutput, StatefulModule, StatefulModuleOutput
from tests.helpers import RandomEnds, assert_same_bits, bits, lstm, mlp
from tests.helpers_compile import compilations


@dataclasses.dataclass(frozen=True)
class Counting:
    """Ends after ``length`` steps; pays 1 per step; remembers the last action, and a large array that no one draws."""

    length: int
    observation_size: int = 1
    action_size: int = 1

    def reset(self, key: jax.Array) -> EnvState:
        return self._state(jnp.zeros(()), jnp.zeros(()))

    def step(self, state: EnvState, action: jax.Array) -> EnvState:
        return self._state(state.data["t"] + 1.0, action[0])

    def _state(self, t: jax.Array, action: jax.Array) -> EnvState:
        data = {"t": t, "action": action, "large": jnp.zeros(1000)}
        return EnvState(t[None], jnp.ones(()), t >= self.length, {}, {}, data)


@dataclasses.dataclass(frozen=True)
class Slim(Counting):
    def render_state(self, state: EnvState) -> dict[str, jax.Array]:
        return {"t": state.data["t"], "action": state.data["action"]}


class StepCounter(StatefulModule):
    """Its action is the number of calls since the last reset."""

    def initialize_state(self, batch_size: int) -> Any:
        return jnp.zeros(batch_size)

    def reset_state(self, state: Any) -> Any:
        return jnp.zeros_like(state)

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        state = state + 1.0
        output = PPONetworkOutput(state[:, None], jnp.zeros_like(state), jnp.zeros_like(state))
        return StatefulModuleOutput(state, output, jnp.zeros_like(state), {})


@pytest.mark.parametrize("length", [1, 3, 20])
def test_a_film_is_one_episode_from_its_first_state_to_its_last(length):
    film = film_episode(Counting(length), StepCounter(), 10, jax.random.key(0))
    steps = min(length, 10)
    assert (film.length, film.reward, len(film.trajectory)) == (steps, float(steps), steps + 1)
    assert [float(state.data["t"]) for state in film.trajectory] == list(range(steps + 1))
    assert [float(state.data["action"]) for state in film.trajectory] == list(range(steps + 1))
    assert [bool(state.done) for state in film.trajectory[:-1]] == [False] * steps
    assert bool(film.trajectory[-1].done) is (length <= 10)


def test_only_what_is_drawn_is_kept_where_the_environment_says_so():
    film = film_episode(Slim(3), StepCounter(), 10, jax.random.key(0))
    assert [set(state) for state in film.trajectory] == [{"t", "action"}] * 4
    assert [float(state["action"]) for state in film.trajectory] == [0.0, 1.0, 2.0, 3.0]


def test_a_film_is_what_an_evaluation_sees_and_leaves_the_network_alone():
    network, env = lstm(), RandomEnds(p_end=0.2)
    network.train()
    before = bits(nnx.state(network))
    film = film_episode(env, network, 12, jax.random.key(3))
    evaluation = eval_rollout(env, network, 1, 12, jax.random.key(3))
    assert film.reward == pytest.approx(evaluation["eval/episode_reward/mean"], rel=1e-6)
    assert film.length == evaluation["eval/lifespan/mean"]
    for x, y in zip(before, bits(nnx.state(network)), strict=True):
        np.testing.assert_array_equal(x, y)


def test_many_films_compile_once_and_leave_nothing_on_the_device():
    env, network = Counting(3), StepCounter()
    film_episode(env, network, 10, jax.random.key(0))
    before = len(jax.live_arrays())
    with compilations() as compiled:
        for i in range(50):
            film_episode(env, network, 10, jax.random.key(i))
    assert compiled == []
    assert len(jax.live_arrays()) == before


@dataclasses.dataclass(frozen=True)
class Drawn(RandomEnds):
    """Draws the first entry of the observation as brightness, in the size asked for."""

    def render(self, trajectory: list[Any], height: int, width: int) -> list[np.ndarray]:
        return [np.full((height, width), 1 / (1 + np.exp(-float(state.obs[0])))) for state in trajectory]


PPO = PPOConfig(n_envs=4, rollout_length=5, total_steps=60, n_epochs=2, n_minibatches=2, learning_rate=1e-2)
VIDEO = VideoConfig(enabled=True, every_steps=40, episode_length=6, render_kwargs={"height": 4, "width": 7})


def test_training_films_on_schedule_and_at_the_end_and_learns_the_same():
    videos: list[VideoData] = []
    rows: list[Any] = []
    filmed, reference = mlp(), mlp()
    ppo = dataclasses.replace(PPO, logging_level=LoggingLevel.LOSSES | LoggingLevel.THROUGHPUT)
    config = TrainConfig(ppo=ppo, eval=EvalConfig(enabled=False), video=VIDEO)
    env = Drawn(p_end=0.2)
    train_ppo(env, filmed, config, video_fn=videos.append, log_fn=lambda m, s: rows.append(m))
    train_ppo(env, reference, dataclasses.replace(config, video=VideoConfig()), video_fn=videos.append)
    assert_same_bits(nnx.state(reference), nnx.state(filmed))
    assert [video.step for video in videos] == [40, 60]
    for video in videos:
        assert video.frames.shape == (video.episode_length + 1, 4, 7, 3)
        assert video.frames.dtype == np.uint8
        assert 1 <= video.episode_length <= 6
        assert type(video.episode_reward) is float
    np.testing.assert_array_equal(videos[0].frames[0], videos[1].frames[0])  # the same start each time
    assert [row.get("throughput/video_sps", 0.0) > 0.0 for row in rows] == [False, True, True]


def test_an_environment_that_cannot_draw_is_refused_before_anything_compiles():
    config = TrainConfig(ppo=PPO, eval=EvalConfig(enabled=False), video=VIDEO)
    with compilations() as compiled, pytest.raises(ValueError, match="videos need an environment with render"):
        train_ppo(RandomEnds(), mlp(), config, video_fn=lambda data: None)
    assert not [line for line in compiled if "jit(step)" in line]


RAMP = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4) * 10


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        (RAMP, RAMP[..., None].repeat(3, axis=-1)),
        (RAMP[..., None], RAMP[..., None].repeat(3, axis=-1)),
        ([*RAMP[..., None].repeat(3, axis=-1)], RAMP[..., None].repeat(3, axis=-1)),
        (np.stack([RAMP, RAMP + 1, RAMP + 2, RAMP + 3], axis=-1), np.stack([RAMP, RAMP + 1, RAMP + 2], axis=-1)),
        (RAMP.astype(np.int64), RAMP[..., None].repeat(3, axis=-1)),
        (np.array([[[0.0, 0.5, 1.0]]], np.float32), np.array([[[[0] * 3, [128] * 3, [255] * 3]]])),
        (jnp.array([[[0.0, 0.25]]]), np.array([[[[0] * 3, [64] * 3]]])),
        (np.array([[[True, False]]]), np.array([[[[255] * 3, [0] * 3]]])),
    ],
    ids=["grey", "grey with axis", "list of rgb", "rgba", "int64", "float", "jax", "bool"],
)
def test_frames_of_any_kind_come_out_as_rgb(frames, expected):
    got = as_frames(frames)
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (np.zeros((3, 4), np.uint8), r"at least one image .* got an array of shape \[3, 4\]"),
        (np.zeros((2, 3, 4, 2), np.uint8), r"got an array of shape \[2, 3, 4, 2\]"),
        (np.zeros((0, 3, 4, 3), np.uint8), r"at least one image .* got an array of shape \[0, 3, 4, 3\]"),
        ([], r"at least one image .* got an array of shape \[0\]"),
        ([np.zeros((2, 3)), np.zeros((3, 3))], "frames of one film must have one size"),
        (np.full((1, 2, 2), 200.0), "floats from 0 to 1; got float64 from 200.0 to 200.0"),
        (np.full((1, 2, 2), -1), "integers from 0 to 255 or floats from 0 to 1; got int64 from -1 to -1"),
        (np.full((1, 2, 2), np.nan), "got float64 from nan to nan"),
    ],
)
def test_what_are_no_frames_is_refused(frames, message):
    with pytest.raises(ValueError, match=message):
        as_frames(frames)


def video(height: int = 33, width: int = 48, n: int = 12) -> VideoData:
    """A bright bar moves to the right."""
    frames = np.zeros((n, height, width, 3), np.uint8)
    for t in range(n):
        frames[t, :, 4 * t : 4 * t + 4] = 255
    return VideoData(frames, step=2**31 + 1, episode_reward=1.0, episode_length=n - 1)


@pytest.mark.parametrize(("height", "width"), [(32, 48), (33, 49)])
def test_an_mp4_has_the_frames_the_size_and_the_speed_of_the_film(height, width, tmp_path):
    data = video(height, width)
    video_file_fn(tmp_path / "videos", fps=25)(data)
    path = tmp_path / "videos" / "step_2147483649.mp4"
    even = (height + height % 2, width + width % 2)
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    probe = subprocess.run(command, capture_output=True, check=True)
    said = probe.stderr.decode()
    assert re.search(r"Video: h264.* 25 fps", said)
    assert f" {even[1]}x{even[0]}," in said
    assert len(probe.stdout) == 12 * even[0] * even[1] * 3
    seen = np.frombuffer(probe.stdout, np.uint8).reshape(12, *even, 3)
    brightness = seen[:, 1:height, 1:width].astype(float).mean(axis=(1, 3))
    assert np.abs(brightness.argmax(axis=1) - (4 * np.arange(12) + 1)).max() <= 4


def test_a_gif_has_the_frames_and_the_size_of_the_film(tmp_path):
    video_file_fn(tmp_path, fps=20, format="gif")(video())
    seen = iio.imread(tmp_path / "step_2147483649.gif")
    np.testing.assert_array_equal(seen, video().frames)
    assert iio.immeta(tmp_path / "step_2147483649.gif")["duration"] == 50


def test_a_video_that_cannot_be_written_says_why(tmp_path):
    (tmp_path / "step_2147483649.mp4").mkdir()
    with pytest.raises(OSError, match=r"ffmpeg could not write .*step_2147483649\.mp4: .*[Ii]s a directory"):
        video_file_fn(tmp_path)(video())


def test_bad_arguments_of_a_video_file_are_refused(tmp_path):
    with pytest.raises(ValueError, match="format must be 'mp4' or 'gif', got 'avi'"):
        video_file_fn(tmp_path, format="avi")
    with pytest.raises(ValueError, match="fps must be at least 1 frame per second, got 0"):
        video_file_fn(tmp_path, fps=0)


def test_a_playground_film_keeps_what_places_the_bodies_and_nothing_else():
    env = make_env("playground:CartpoleSwingup")
    state = jax.eval_shape(env.reset, jax.random.key(0))
    pose = jax.eval_shape(lambda key: env.render_state(env.reset(key)), jax.random.key(0))
    assert (pose.data.qpos.shape, pose.data.qvel.shape) == ((2,), (2,))
    kept, whole = (sum(x.size for x in jax.tree.leaves(tree)) for tree in (pose, state))
    assert 10 * kept < whole
