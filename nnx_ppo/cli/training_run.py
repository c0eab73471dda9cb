"""One training run in its folder, from the start or from its newest checkpoint, until it is done or interrupted."""

import dataclasses
import pathlib
import shlex
from collections.abc import Mapping
from typing import Any

from nnx_ppo.algorithms.callbacks import video_file_fn
from nnx_ppo.algorithms.checkpointing import latest_checkpoint, make_checkpoint_fn
from nnx_ppo.algorithms.config import TrainConfig, TrainResult
from nnx_ppo.algorithms.fit import check_fit
from nnx_ppo.algorithms.nonfinite import NonFiniteError
from nnx_ppo.algorithms.ppo import train_ppo
from nnx_ppo.algorithms.types import TrainingState
from nnx_ppo.algorithms.video import require_render
from nnx_ppo.cli.console import stderr
from nnx_ppo.cli.logs import open_loggers, require_packages
from nnx_ppo.cli.networks import build_network
from nnx_ppo.cli.plain_warnings import plain_warnings
from nnx_ppo.cli.progress import REWARD, TrainingProgress
from nnx_ppo.cli.resume import load_newest, rates_at, trained_with
from nnx_ppo.cli.run_config import RunConfig, with_total_steps
from nnx_ppo.cli.run_description import changed_fields, describe_run
from nnx_ppo.cli.run_folder import RunFolder, RunFolderError
from nnx_ppo.cli.signals import Interrupted, StopSignals
from nnx_ppo.envs import make_env
from nnx_ppo.networks.types import StatefulModule
from nnx_ppo.wrappers import EpisodeWrapper, RewardScalingWrapper


@plain_warnings()
def train_run(config: RunConfig, out: pathlib.Path) -> tuple[RunFolder, StatefulModule]:
    """Train what ``config`` describes, and write the run folder ``out``.

    Args:
        config: the run.
        out: folder to make.

    Returns:
        The run folder and the trained network.

    Raises:
        ValueError: the folder is in use, or environment, network and configuration do not fit.
        ImportError: the package of a destination of the log is missing.
        Interrupted: after SIGINT or SIGTERM, once the state is saved.
    """
    env, network = _make(config)
    folder = RunFolder.create(out, config)
    with folder.locked():
        _train(folder, config, env, network, None, {})
    return folder, network


@plain_warnings()
def resume_run(path: pathlib.Path, total_steps: int | None = None) -> tuple[RunFolder, StatefulModule]:
    """Go on with a run from its newest checkpoint as if it had never stopped; from the start where there is none.

    Args:
        path: run folder.
        total_steps: new total of environment steps; ``None`` for that of the run.

    Returns:
        The run folder and the trained network.

    Raises:
        RunFolderError: there is no run, another process is training in it, or it has more steps already.
        CheckpointError: its checkpoints cannot be read, or do not fit what ``config.json`` describes.
        Interrupted: after SIGINT or SIGTERM, once the state is saved.
    """
    folder = RunFolder.open(path)
    with folder.locked():
        before = folder.config()
        config = before if total_steps is None else with_total_steps(before, total_steps)
        env, network = _make(config)
        loaded = load_newest(folder.checkpoints, config, network)
        steps = 0 if loaded is None else loaded["step"]
        if _is_finished(folder, config, before, steps):
            return folder, network
        folder.write_config(config)
        if loaded is not None:
            _say_what_changed(loaded, before)
        _say_where(before, config, steps)
        if loaded is None:
            _train(folder, config, env, network, None, {})
        else:
            _train(folder, config, env, network, loaded["training_state"], loaded["log"])
    return folder, network


def training_env(env: Any, config: RunConfig) -> Any:
    """The environment as training sees it: rewards scaled, episodes cut where the run says so."""
    if config.train_episode_length is not None:
        env = EpisodeWrapper(env, config.train_episode_length)
    return RewardScalingWrapper(env, config.reward_scale)


def _make(config: RunConfig) -> tuple[Any, StatefulModule]:
    """Environment and network; everything that can be refused is refused before anything is written."""
    require_packages(config.log)
    env = make_env(config.env, **config.env_args)
    if config.train.video.enabled:
        video_file_fn(".", fps=_fps(env))
        require_render(env, config.train.video.render_kwargs)
    network = build_network(config.network, env, config.train.seed)
    check_fit(env, network, config.train.ppo)
    return env, network


def _is_finished(folder: RunFolder, config: RunConfig, before: RunConfig, steps: int) -> bool:
    total = config.train.ppo.total_steps
    if steps < total:
        return False
    if total < before.train.ppo.total_steps:
        raise RunFolderError(f"{folder.path} has {steps:,} steps already: --total-steps must be above, got {total:,}.")
    stderr.print(
        f"{folder.path} is finished, with {steps:,} of {total:,} steps: nothing to do. To train on, give a higher "
        "total with --total-steps.",
        soft_wrap=True,
    )
    return True


def _say_what_changed(loaded: Mapping[str, Any], config: RunConfig) -> None:
    """Name settings in ``config.json`` that are not those the checkpoint was trained with."""
    changed = changed_fields(loaded["description"], config)
    if isinstance(loaded["config"], TrainConfig):
        was, now = _flat(loaded["config"]), _flat(trained_with(config))
        # A schedule comes from other fields, and cannot be written.
        changed += [f"{n} was {was[n]!r}, is {x!r}" for n, x in now.items() if was[n] != x and not callable(x)]
    if changed:
        stderr.print(
            f"config.json is not what the checkpoint was trained with: {'; '.join(changed)}. The run goes on with it.",
            style="yellow",
            soft_wrap=True,
        )


def _flat(config: TrainConfig) -> dict[str, Any]:
    parts = {"ppo": config.ppo, "eval": config.eval, "video": config.video}
    named = [(part, value, field.name) for part, value in parts.items() for field in dataclasses.fields(value)]
    fields = {f"{part}.{name}": getattr(value, name) for part, value, name in named if name != "total_steps"}
    return {"seed": config.seed} | fields


def _say_where(before: RunConfig, config: RunConfig, steps: int) -> None:
    old, new = (c.train.ppo.total_steps for c in (before, config))
    where = f"from the checkpoint after {steps:,} steps" if steps else "from the start, as there is no checkpoint yet"
    stderr.print(f"Going on {where}, to {new:,} steps.")
    if old != new and config.anneal_learning_rate and steps:
        was, now = rates_at(steps, before, config)
        stderr.print(
            f"The learning rate now falls to 0 at {new:,} steps instead of {old:,}: it goes on at {now:.3g} instead of "
            f"{was:.3g}."
        )


def _train(
    folder: RunFolder,
    config: RunConfig,
    env: Any,
    network: StatefulModule,
    state: TrainingState | None,
    position: Mapping[str, Any],
) -> None:
    videos = video_file_fn(folder.path / "videos", fps=_fps(env)) if config.train.video.enabled else None
    train_config = trained_with(config)
    steps = 0 if state is None else state.steps_taken
    signals = StopSignals()
    try:
        with (
            open_loggers(folder, config, steps, position) as write,
            make_checkpoint_fn(
                folder.checkpoints,
                train_config,
                logger=write,
                description=describe_run(config),
                **dataclasses.asdict(config.checkpoints),
            ) as checkpoint_fn,
            TrainingProgress(config.train.ppo.total_steps) as progress,
            signals,
        ):

            def log(metrics: dict[str, Any], at: int) -> None:
                write(metrics, at)
                checkpoint_fn.log(metrics, at)
                progress.log(metrics, at)
                if at > steps:
                    signals.arm()

            result = train_ppo(
                training_env(env, config),
                network,
                train_config if state is None else _without_initial_evaluation(train_config),
                log_fn=log,
                video_fn=videos,
                checkpoint_fn=checkpoint_fn,
                on_phase=progress.on_phase,
                eval_env=env,
                initial_state=state,
                interrupt_fn=signals.requested,
            )
    except BaseException as error:
        if isinstance(error, NonFiniteError):
            error.add_note(
                "For a new run that is --ppo.on-nonfinite skip or ignore; for this one, train.ppo.on_nonfinite in its "
                "config.json."
            )
        _say_how_to_go_on(folder)
        raise
    _say_how_it_ended(folder, config, result, signals)


def _without_initial_evaluation(config: TrainConfig) -> TrainConfig:
    """For a run that goes on: the evaluation at the steps of its checkpoint, if one was due, is in its log."""
    return dataclasses.replace(config, eval=dataclasses.replace(config.eval, initial=False))


def _say_how_it_ended(folder: RunFolder, config: RunConfig, result: TrainResult, signals: StopSignals) -> None:
    if signals.signum is not None and result.total_steps < config.train.ppo.total_steps:
        _say_how_to_go_on(folder)
        raise Interrupted(signals.signum)
    reward = result.eval_history[-1][REWARD] if result.eval_history else None
    last = "" if reward is None else f", last evaluation reward {reward:,.2f}"
    stderr.print(f"Trained {result.total_steps:,} steps{last}.")


def _say_how_to_go_on(folder: RunFolder) -> None:
    newest = latest_checkpoint(folder.checkpoints)
    if newest is None:
        stderr.print(f"There is no checkpoint yet: {folder.path} can be deleted, or started again by --resume.")
    else:
        command = f"nnx-ppo train --resume {shlex.quote(str(folder.path))}"
        stderr.print(f"Saved up to {newest}. Go on with: {command}", soft_wrap=True)


def _fps(env: Any) -> int:
    """Speed at which a film shows real time, where the environment knows how long its steps are."""
    seconds = getattr(env, "dt", None)
    return max(1, round(1 / seconds)) if isinstance(seconds, float) and seconds > 0 else 30
