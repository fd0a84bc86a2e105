"""Do what a supervisor asks of the next start: go on from a certain generation, pass one over that killed its loaders.

``MILEPOST_RESUME`` and ``MILEPOST_SKIP`` are ``RUN_ID:NUMBER`` with a comma between two of them.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from milepost.clock import utc_text
from milepost.engine.session import Session
from milepost.engine.supervised import RESUME, SKIP
from milepost.errors import StoreError, UsageError
from milepost.publish import quarantine
from milepost.publish.term import Claim
from milepost.publish.view import View
from milepost.records import QuarantineMark, Summary

log = logging.getLogger("milepost")

_PAIR = re.compile(r"(\w+):0*([1-9]\d{0,17})", re.ASCII)
_REASON = f"loading it killed the process: passed over by {SKIP}"

_heads: dict[tuple[str, str], int] = {}
"""The head of a run as this process first found it, by root and run."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Hold what the environment asks for, as numbers of generations by run."""

    resume: dict[str, tuple[int, ...]]
    skip: dict[str, tuple[int, ...]]


NOTHING = Asked({}, {})


def asked() -> Asked:
    """Read the environment. Raises `UsageError` (kind ``bad-environment``)."""
    return Asked(_read(RESUME, most=1), _read(SKIP))


def _read(variable: str, most: int | None = None) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    text = os.environ.get(variable, "")
    for part in text.split(",") if text else ():
        pair = _PAIR.fullmatch(part.strip())
        if pair is None or len(found.get(pair[1], ())) == most:
            raise UsageError(
                f"{variable} names generations as RUN_ID:NUMBER, with a comma between two",
                kind="bad-environment",
                hint="milepost show names the run; or unset it",
                value=text[:200],
            )
        found[pair[1]] = (*found.get(pair[1], ()), int(pair[2]))
    return found


def instead_of_latest(url: str, run_id: str, head: Summary | None, wanted: Asked) -> int | None:
    """Return the generation that stands for the latest of a run; None once this process has published one of its own.

    A script may open a run several times, one after the other: what is asked for holds until there is something newer.
    """
    if run_id not in wanted.resume:
        return None
    now = head.number if head else 0
    return wanted.resume[run_id][0] if _heads.setdefault((url, run_id), now) == now else None


def without_skipped(view: View, wanted: Asked) -> View:
    """Return what was read of a root with the marks that a claim would make, for who only reads: loading one kills it, too."""
    numbers = [number for number in wanted.skip.get(view.run_id, ()) if number in view.live]
    marks = {number: QuarantineMark(view.run_id, number, "kills-loader", _REASON, "", 0) for number in numbers}
    return dataclasses.replace(view, marks={**view.marks, **marks}) if marks else view


def mark_skipped(session: Session, claimed: Claim, numbers: Iterable[int]) -> Claim:
    """Mark generations as ``kills-loader``, and return the claim with these marks.

    Where the disk cannot take a mark the generation is passed over all the same, by this process.
    """
    view = claimed.view
    marks = dict(view.marks)
    for number in sorted(set(numbers)):
        if number not in view.live:
            log.warning("%s names generation %d, which is not there (any more)", SKIP, number)
        elif number not in marks or marks[number].kind != "kills-loader":
            marks[number] = _mark(session, number)
            log.warning("generation %d is passed over from now on: loading it has killed the process", number)
            session.events.write("marked", generation=number, kind="kills-loader", reason=_REASON)
    return dataclasses.replace(claimed, view=dataclasses.replace(view, marks=marks))


def _mark(session: Session, number: int) -> QuarantineMark:
    run_id, term, clock = session.run_id, session.chain.term, session.clock
    try:
        return quarantine.mark(session.store, clock, run_id=run_id, term=term, number=number, kind="kills-loader", reason=_REASON)
    except StoreError as error:
        session.events.write("mark-failed", error=error.message)
        return QuarantineMark(run_id, number, "kills-loader", _REASON, utc_text(clock.wall_ns()), term)
