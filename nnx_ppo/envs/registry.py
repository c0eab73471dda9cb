"""Environments by name: ``family:name`` for the libraries known here, ``package.module:function`` for a user's own."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from nnx_ppo._signatures import require_call
from nnx_ppo.envs.brax import BraxEnv, brax_names
from nnx_ppo.envs.errors import MissingExtraError, UnknownEnvError, did_you_mean, near_names
from nnx_ppo.envs.gymnax import GymnaxEnv, gymnax_names
from nnx_ppo.envs.importing import UnknownFunctionError, import_function, is_module
from nnx_ppo.envs.playground import make_playground, playground_names
from nnx_ppo.envs.probes import PROBES


class _Family(NamedTuple):
    make: Callable[..., Any]
    names: Callable[[], list[str]]


def make_env(name: str, **overrides: Any) -> Any:
    """Make an environment from its name.

    Args:
        name: ``"gymnax:Pendulum-v1"``, ``"playground:CartpoleBalance"``, ``"brax:ant"``, ``"probe:memory_cue"``
            (:func:`list_envs` has them all), or ``"package.module:function"``, which imports and calls a factory.
        **overrides: options of the environment, see :class:`~nnx_ppo.envs.gymnax.GymnaxEnv`,
            :func:`~nnx_ppo.envs.playground.make_playground`, :class:`~nnx_ppo.envs.brax.BraxEnv` and
            :mod:`nnx_ppo.envs.probes`; the arguments of your own factory.

    Raises:
        UnknownEnvError: no such family, environment, module or function.
        MissingExtraError: the environment's library is not installed.
        ValueError: an option that the environment does not have.

    Example:
        >>> make_env("probe:counting", length=3)
        CountingEnv(length=3, ends='terminate')
    """
    family, colon, rest = name.partition(":")
    if not colon:
        raise UnknownEnvError(
            f"expected 'family:name' or 'package.module:function', got {name!r}. {_whole_names(name)}"
        )
    make = functools.partial(_FAMILIES[family].make, rest) if family in _FAMILIES else _factory(name)
    if family not in _FAMILIES:
        require_call(name, make, **overrides)
    try:
        return make(**overrides)
    except (TypeError, ValueError) as error:
        if overrides:
            error.add_note(f"{name} was to be made with {', '.join(f'{k}={v!r}' for k, v in overrides.items())}.")
        raise


def list_envs(family: str | None = None) -> list[str]:
    """Return the full names of all environments, or of one family; families that are not installed are left out.

    Raises:
        UnknownEnvError: no such family.
        MissingExtraError: the one family that was asked for is not installed.
    """
    if family is not None:
        if family not in _FAMILIES:
            raise UnknownEnvError(f"unknown family {family!r}. {did_you_mean(family, _FAMILIES)}")
        return [f"{family}:{name}" for name in _FAMILIES[family].names()]
    names = []
    for each in _FAMILIES:
        try:
            names += list_envs(each)
        except MissingExtraError:
            continue
    return names


def _make_probe(name: str, **overrides: Any) -> Any:
    if name not in PROBES:
        raise UnknownEnvError(f"there is no probe {name!r}. {did_you_mean(name, PROBES)}")
    known = [field.name for field in dataclasses.fields(PROBES[name])]
    for option in overrides:
        if option not in known:
            raise ValueError(f"probe:{name} has no option {option!r}. {did_you_mean(option, known)}")
    return PROBES[name](**overrides)


def _whole_names(name: str) -> str:
    by_short = {full.partition(":")[2]: full for full in list_envs()}
    near = near_names(name, by_short)
    if near:
        return f"Did you mean {' or '.join(by_short[short] for short in near)}?"
    return f"Families are: {', '.join(_FAMILIES)}."


def _factory(name: str) -> Callable[..., Any]:
    module_name = name.partition(":")[0]
    if not is_module(module_name):
        raise UnknownEnvError(
            f"{module_name!r} is neither a family ({', '.join(_FAMILIES)}) nor a module that can be imported from "
            f"here (a module of yours: run from its folder, or put that on PYTHONPATH). "
            f"{did_you_mean(module_name, _FAMILIES)}"
        )
    try:
        return import_function(name)
    except UnknownFunctionError as error:
        raise UnknownEnvError(str(error)) from None


_FAMILIES = {
    "gymnax": _Family(GymnaxEnv, gymnax_names),
    "playground": _Family(make_playground, playground_names),
    "brax": _Family(BraxEnv, brax_names),
    "probe": _Family(_make_probe, lambda: list(PROBES)),
}
