"""Where films go: ``video_fn`` callbacks that write files or log to W&B."""

import os
import pathlib
import subprocess
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from nnx_ppo.algorithms.config import VideoData
from nnx_ppo.algorithms.loggers import COUNTS_BY_ITSELF, import_wandb


def video_file_fn(folder: str | os.PathLike[str], fps: int = 30, format: str = "mp4") -> Callable[[VideoData], None]:
    """A ``video_fn`` that writes ``folder/step_0000200000.mp4``.

    Args:
        folder: made where there is none.
        fps: frames per second.
        format: ``"mp4"`` (H.264) or ``"gif"``.

    Raises:
        ValueError: another format, or ``fps`` below 1.
        ImportError: ``imageio`` is missing.
    """
    if format not in ("mp4", "gif"):
        raise ValueError(f"format must be 'mp4' or 'gif', got {format!r}.")
    _require_fps(fps)
    _imageio()

    def write(data: VideoData) -> None:
        path = pathlib.Path(folder) / f"step_{data.step:010d}.{format}"
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_video(path, data.frames, fps)

    return write


def wandb_video_fn(key: str = "eval_video", fps: int = 30) -> Callable[[VideoData], None]:
    """A ``video_fn`` that logs each video to the current W&B run.

    Args:
        key: name of the video there.
        fps: frames per second.

    Raises:
        ValueError: ``fps`` below 1.
        ImportError: ``wandb`` or ``imageio`` is missing.
    """
    _require_fps(fps)
    wandb = import_wandb()
    _imageio()

    def log(data: VideoData) -> None:
        if wandb.run is None:
            raise ValueError("wandb_video_fn needs a W&B run: call wandb.init(...) or make a WandbLogger first.")
        # W&B copies the file while it logs.
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "video.mp4"
            _write_video(path, data.frames, fps)
            video = {key: wandb.Video(str(path), format="mp4")}
            if wandb.run.id in COUNTS_BY_ITSELF:
                wandb.log({**video, "steps": data.step})
            else:
                wandb.log(video, step=data.step)

    return log


def _write_video(path: pathlib.Path, frames: np.ndarray, fps: int) -> None:
    imageio, ffmpeg = _imageio()
    if path.suffix == ".gif":
        imageio.imwrite(path, frames, duration=1000 / fps, loop=0)
        return
    # H.264 halves the colour planes, and so needs even sizes.
    even = np.pad(frames, ((0, 0), (0, frames.shape[1] % 2), (0, frames.shape[2] % 2), (0, 0)), mode="edge")
    size = f"{even.shape[2]}x{even.shape[1]}"
    # By hand, since imageio forks the process for it, which JAX's threads may not survive.
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", str(fps), "-i", "-"]
    command = [ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y", *source, "-c:v", "libx264", "-pix_fmt", "yuv420p"]
    done = subprocess.run([*command, str(path)], input=even.tobytes(), capture_output=True)
    if done.returncode:
        raise OSError(f"ffmpeg could not write {path}: {done.stderr.decode(errors='replace').strip()}")


def _require_fps(fps: int) -> None:
    if not fps >= 1:
        raise ValueError(f"fps must be at least 1 frame per second, got {fps!r}.")


def _imageio() -> tuple[Any, Any]:
    try:
        import imageio.v3
        import imageio_ffmpeg
    except ImportError as error:
        raise ImportError("videos need imageio with ffmpeg: pip install 'nnx-ppo[video]'") from error
    return imageio.v3, imageio_ffmpeg
