"""Tell what kind of fault a start comes after, from the traces it left, and what can be used again (B11).

=====  =========================================  ==========================  =====================================
kind   seen by                                    used again                  rebuilt
=====  =========================================  ==========================  =====================================
none   no earlier claim, or it was given up       everything                  nothing
soft   the guard was not given up, but is free,   the machine and its files   the process: live state, environments
       on this host since the same boot
hard   another host or another boot               nothing of that machine     environments, workers, the accelerator
data   digests or health refused a generation     what verifies               the damaged part
=====  =========================================  ==========================  =====================================

Nothing irrevocable follows from a kind: a generation counts by the rules of `milepost.publish` whatever killed its writer.
The plan says where the bytes come from, and tells an operator what happened and what to look at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from milepost.publish.term import Identity
from milepost.records import FaultKind, Fence

REUSED: dict[FaultKind, str] = {
    "none": "everything",
    "soft": "this machine and its files",
    "hard": "nothing of the machine it ran on",
    "data": "every byte that verifies",
}
REBUILT: dict[FaultKind, str] = {
    "none": "nothing",
    "soft": "the process: live objects and environments",
    "hard": "environments, workers, connections and the accelerator",
    "data": "the damaged part",
}


@dataclass(frozen=True, slots=True)
class Traces:
    """Hold what an earlier writer of a run root has left of itself."""

    previous: Fence | None
    """Its claim: the highest fence below our own that can be read."""
    here: Identity
    """This process and its machine."""
    abandoned: bool
    """It had not given its guard up: it was killed, or its machine was."""
    forced: bool = False
    """Its guard was not even free: it was taken over, and may still live."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Say what happened, and what recovery stands on."""

    kind: FaultKind
    seen_by: str
    source: str
    """Where the bytes come from."""

    @property
    def reused(self) -> str:
        """Return what of before is used again."""
        return REUSED[self.kind]

    @property
    def rebuilt(self) -> str:
        """Return what has to be made anew."""
        return REBUILT[self.kind]

    @property
    def facts(self) -> dict[str, str]:
        """Return all of it for the event log."""
        return {
            "kind": self.kind,
            "seen_by": self.seen_by,
            "source": self.source,
            "reused": self.reused,
            "rebuilt": self.rebuilt,
        }


def plan(traces: Traces, skipped: Sequence[str], generation: int) -> FaultPlan:
    """Recognise the fault before a resume of ``generation``; ``skipped`` says what was passed over on the way to it. Pure.

    Damage outranks the rest: whatever killed the writer, it is the data that decides what comes back.
    """
    source = f"generation {generation}" if generation else "a fresh start"
    if skipped:
        return FaultPlan("data", "; ".join(skipped), source)
    kind, seen_by = _ended(traces)
    return FaultPlan(kind, seen_by, source)


def _ended(traces: Traces) -> tuple[FaultKind, str]:
    before, here = traces.previous, traces.here
    if before is None:
        return "none", "there was no writer before"
    if before.host != here.host:
        return "hard", f"it ran on {before.host}, this is {here.host}"
    if before.boot_id != here.boot_id:
        return "hard", f"{before.host} was started anew since"
    if traces.forced:
        return "soft", f"pid {before.pid} still held the run, and was taken over"
    if traces.abandoned:
        return "soft", f"pid {before.pid} on this host is gone without closing"
    return "none", f"pid {before.pid} had closed the run"
