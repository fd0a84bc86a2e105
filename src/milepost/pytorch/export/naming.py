"""Name the places of exports: where they lie, what a finished one is called, and what is under way or on its way out."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from milepost.errors import UsageError
from milepost.publish import layout
from milepost.pytorch.steps import StepInfo

_FINISHED = re.compile(r"epoch(\d+)epochstep(\d+)globalstep(\d+)\Z")
_UNFINISHED = re.compile(r"\.(epoch\d+epochstep\d+globalstep\d+)-[0-9a-f]{16}\.(new|old|gone)\Z")
_RESERVED = frozenset(
    {
        *(name.rstrip("/") for name in (*layout.DIRECTORIES, layout.ASIDE)),
        *(layout.RUN, layout.PROGRESS, layout.LATEST, layout.BALLAST, layout.LOCK, layout.LEASE, layout.SCRUB),
        "service",
        "checkpoint_generations",
        "recover_info",
    }
)
"""What lies in a run root beside the exports: milepost's own names, and those of AReaL's layouts."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """Be a directory that is no export: ``new`` is being written, ``old`` being replaced, ``gone`` being deleted."""

    name: str
    export: str
    """The name of the export that it would be, or was."""
    state: str


def trial_directory(fileroot: str | os.PathLike[str], user: str, experiment: str, trial: str) -> str:
    """Return where all exports of a trial lie. Makes nothing."""
    for what, part in (("user", user), ("experiment", experiment), ("trial", trial)):
        _check(what, part)
    return os.path.join(os.path.abspath(os.fspath(fileroot)), "checkpoints", user, experiment, trial)


def check_engine(engine: str) -> str:
    """Return an engine's name if it may be a directory beside milepost's own; raise `UsageError` (kind ``bad-name``) else."""
    _check("engine", engine)
    if engine in _RESERVED:
        raise UsageError(
            "this name is taken in a run root",
            kind="bad-name",
            hint="name the engine after what it trains: default, critic",
            engine=engine,
        )
    return engine


def name_of(step: StepInfo) -> str:
    """Return the directory's name of an export.

    >>> name_of(StepInfo(epoch=1, epoch_step=2, global_step=12, steps_per_epoch=10))
    'epoch1epochstep2globalstep12'
    """
    return f"epoch{step.epoch}epochstep{step.epoch_step}globalstep{step.global_step}"


def step_in(name: str) -> tuple[int, int, int] | None:
    """Return (global step, epoch, step in it) of an export's name, in the order of training; None if it is none.

    >>> step_in("epoch1epochstep2globalstep12")
    (12, 1, 2)
    >>> step_in("epoch1epochstep2globalstep12.tmp")
    """
    found = _FINISHED.match(name)
    return (int(found[3]), int(found[1]), int(found[2])) if found else None


def leftover_of(name: str) -> Leftover | None:
    """Return what kind of leftover a directory's name is; None if it is not one of ours."""
    found = _UNFINISHED.match(name)
    return Leftover(name, found[1], found[2]) if found else None


def leftover_name(export: str, nonce: str, state: str) -> str:
    """Return the hidden name beside an export under which it is written, replaced or deleted."""
    return f".{export}-{nonce}.{state}"


def _check(what: str, part: str) -> None:
    if not part or part in (".", "..") or part.startswith(".") or "/" in part or "\0" in part:
        raise UsageError(
            "not the name of one directory",
            kind="bad-name",
            hint="choose a name without / and without a dot in front",
            **{what: part},
        )
