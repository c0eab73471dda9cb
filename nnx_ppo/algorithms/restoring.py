"""Taking over a saved network: as a whole for inference, under other names, or only a part of it."""

import dataclasses
import fnmatch
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flax import nnx

from nnx_ppo.algorithms.checkpoint_files import CheckpointError, Stored
from nnx_ppo.algorithms.checkpoint_loading import read_networks, require_same
from nnx_ppo.algorithms.leaves import LeafSpec, module_leaves, set_module_leaves, spec_of
from nnx_ppo.algorithms.snapshots import NETWORKS
from nnx_ppo.networks.naming import near_names


@dataclasses.dataclass(frozen=True)
class RestoreReport:
    """What :func:`restore_networks` did.

    Attributes:
        taken: path in the network to the path in the checkpoint that it was set from.
        missing: paths of the network that were not set.
        left: paths of the checkpoint that were not used.
    """

    taken: dict[str, str]
    missing: tuple[str, ...]
    left: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"taken    {new}" + (f"  from {old}" if old != new else "") for new, old in self.taken.items()]
        lines += [f"missing  {path}" for path in self.missing] + [f"left     {path}" for path in self.left]
        return "\n".join(lines)


def restore_networks(
    path: str | os.PathLike[str],
    networks: nnx.Module,
    *,
    rename: Mapping[str, str] | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    partial: bool = False,
) -> RestoreReport:
    """Set variables of ``networks`` from a checkpoint whose network is called or built otherwise.

    Nothing is changed where anything does not fit. The optimizer and the rest of the training state are not loaded.

    Args:
        path: one checkpoint, ``.../step_0000500000``.
        networks: the network to set, in place.
        rename: saved path to new path, of variables or of whole layers, for example
            ``{"0": "normalizer"}``; the longest that matches counts.
        include: glob patterns on the new paths of what to take, for example ``"memory/*"``; all by default.
        exclude: the same for what not to take.
        partial: leave variables of ``networks`` as they are that the checkpoint lacks. By default every variable that
            ``include`` and ``exclude`` let through has to be there.

    Returns:
        What was taken, what is missing, and what was left over.

    Raises:
        CheckpointError: there is no checkpoint; a shape or dtype differs, or a variable is missing, naming both paths,
            both shapes and the nearest candidates; a name in ``rename`` or a pattern matches nothing.
        DamagedCheckpointError: its files are not as they were written.
    """
    path = pathlib.Path(path)
    stored, load = read_networks(path)
    here = {name: spec_of(leaf) for name, leaf in module_leaves(networks).items()}
    sources = _renamed(path, stored, rename or {})
    wanted = _chosen(path, here, include, exclude)
    taken = {new: sources[new] for new in wanted if new in sources}
    problems = [
        f"{old} is {stored[old].spec} in the checkpoint, {new} is {here[new]} here"
        + _candidates(old, stored[old].spec, {n: s for n, s in here.items() if n != new}, "that fit it here")
        for new, old in taken.items()
        if stored[old].spec.identity != here[new].identity
    ]
    if not partial:
        saved = {name: entry.spec for name, entry in stored.items()}
        problems += [
            f"{new}, {here[new]}, is not in the checkpoint" + _candidates(new, here[new], saved, "there")
            for new in wanted
            if new not in sources
        ]
    if problems:
        raise CheckpointError(
            f"the network in {path} does not fit: {'; '.join(problems[:4])}"
            + (f"; and {len(problems) - 4} more" if len(problems) > 4 else "")
            + ". Use rename={saved path: new path}, exclude=[pattern], or partial=True."
        )
    values = load(list(taken.values()))
    set_module_leaves(networks, {new: values[old] for new, old in taken.items()})
    used = set(taken.values())
    return RestoreReport(
        taken,
        missing=tuple(name for name in here if name not in taken),
        left=tuple(name for name in stored if name not in used),
    )


def load_networks(path: str | os.PathLike[str], networks: nnx.Module) -> None:
    """Set all variables of ``networks`` from a checkpoint; nothing else of it is loaded.

    Args:
        path: one checkpoint, ``.../step_0000500000``.
        networks: of the same structure as the saved one; nothing is changed where anything differs.

    Raises:
        CheckpointError: there is no checkpoint, or another network was saved; names paths and shapes that differ.
        DamagedCheckpointError: its files are not as they were written.
    """
    path = pathlib.Path(path)
    stored, load = read_networks(path)
    require_same(path, NETWORKS, stored, networks)
    set_module_leaves(networks, load(list(stored)))


def _renamed(path: pathlib.Path, stored: Mapping[str, Stored], rename: Mapping[str, str]) -> dict[str, str]:
    """New path to saved path."""
    sources: dict[str, str] = {}
    used = set()
    for name in stored:
        matching = [old for old in rename if name == old or name.startswith(old + "/")]
        old = max(matching, key=len, default=None)
        new = name if old is None else rename[old] + name[len(old) :]
        used.update(matching)
        if new in sources:
            raise CheckpointError(f"rename gives both {sources[new]} and {name} the name {new}: give them two.")
        sources[new] = name
    if unused := [old for old in rename if old not in used]:
        near = near_names(unused[0], _prefixes(stored))
        raise CheckpointError(
            f"rename names {unused}, which {path} does not hold" + (f"; near: {', '.join(near)}." if near else ".")
        )
    return sources


def _prefixes(names: Mapping[str, Any]) -> list[str]:
    parts = [name.split("/") for name in names]
    return sorted({"/".join(part[:i]) for part in parts for i in range(1, len(part) + 1)})


def _chosen(
    path: pathlib.Path, here: Mapping[str, LeafSpec], include: Sequence[str], exclude: Sequence[str]
) -> list[str]:
    for pattern in (*include, *exclude):
        if not fnmatch.filter(here, pattern):
            near = near_names(pattern, here)
            raise CheckpointError(
                f"the pattern {pattern!r} matches no variable of the network; "
                + (f"near: {', '.join(near)}." if near else f"it has {', '.join(list(here)[:8])}, ...")
            )
    chosen = _matches(include) if include else lambda name: True
    refused = _matches(exclude)
    return [name for name in here if chosen(name) and not refused(name)]


def _matches(patterns: Sequence[str]) -> Callable[[str], bool]:
    return lambda name: any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _candidates(name: str, spec: LeafSpec, others: Mapping[str, LeafSpec], where: str) -> str:
    """Nearest names, those of the same shape and dtype first."""
    fitting = near_names(name, [n for n, s in others.items() if s.identity == spec.identity])
    near = list(dict.fromkeys([*fitting, *near_names(name, others)]))[:3]
    return f" (nearest {where}: {', '.join(f'{n} {others[n]}' for n in near)})" if near else ""
