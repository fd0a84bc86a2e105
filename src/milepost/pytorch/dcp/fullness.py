"""Make room for a save after one that found no room on some rank.

The coordinator does not hear why a save has failed on another rank: DCP tells all that it has, and calls no more. So a rank
that met a full disk says so with its plan for the next save; and before that writes, generations are retired, as an engine
does it: first a manifest is published that keeps fewer, then they are deleted.
"""

from __future__ import annotations

from dataclasses import dataclass

from milepost.engine.placing import FULL
from milepost.engine.relief import hold_ballast, trim
from milepost.engine.room import free_bytes, freed_by, may_go
from milepost.engine.session import Session
from milepost.errors import StoreError


@dataclass(frozen=True, slots=True)
class Full:
    """Say that a rank met a full disk in this save."""

    run_id: str
    term: int
    serial: int


_met: dict[str, Full] = {}
"""By the root's url, where this rank met it last."""


def note_failure(url: str, error: BaseException, run_id: str, term: int, serial: int) -> None:
    """Note why a part of a save has failed, if it was for want of room."""
    if isinstance(error, StoreError) and error.kind in FULL:
        _met[url] = Full(run_id, term, serial)


def met_here(url: str) -> Full | None:
    """Return what this rank says with its plan: where it met a full disk, once."""
    return _met.pop(url, None)


def make_room(session: Session, needed_bytes: int) -> tuple[int, ...]:
    """Retire the oldest generations that may go, at least one, until the save should fit; return which.

    None, if all that may go would not be enough, or if the newest is not what the state goes back to.
    """
    retired: list[int] = []
    hopeless = _lacking(session, needed_bytes) > freed_by(session, may_go(session))
    while not hopeless and (not retired or _lacking(session, needed_bytes) > 0):
        going = may_go(session)
        if not going:
            break
        trim(session, going[:1])
        hold_ballast(session)
        retired.append(going[0])
    return tuple(retired)


def _lacking(session: Session, needed_bytes: int) -> int:
    free = free_bytes(session)
    return 0 if free is None else needed_bytes - free
