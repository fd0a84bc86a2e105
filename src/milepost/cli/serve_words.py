"""Tell what happens in a service: all of it to who keeps it, and to people what matters, with commits summed up now and then."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from milepost.cli.text import counted, duration, size
from milepost.clock import Clock
from milepost.service.core.events import Tick
from milepost.service.core.records import (
    Committed,
    Dropped,
    Held,
    Joined,
    Resumed,
    RolledBack,
    Saved,
    Stored,
    Weights,
)
from milepost.service.server.happening import Failed, Happening, InTouch, Left, Mended, Silent
from milepost.supervise.journal import Journal
from milepost.text import name_of

if TYPE_CHECKING:
    from milepost.service.server.serving import Server

SUMMARY_NS = 30 * 10**9
"""A trainer may commit many times a second, for days: what people read says so at most this often."""
_WORK = {
    "journal": "nothing can be written down",
    "spill": "a version cannot be brought to disk",
    "erase": "a version that nobody needs cannot be removed",
    "sweep": "memory cannot be looked through",
    "snapshot": "no copy of the journal can be made",
}
_DONE = {
    "journal": "it is written down again",
    "spill": "versions are brought to disk again",
    "erase": "versions that nobody needs are removed again",
    "sweep": "memory is looked through again",
    "snapshot": "copies of the journal are made again",
}


class Telling:
    """Be called with what happens, by a thread of the service; `begun` and `ended` by another."""

    def __init__(self, journal: Journal, clock: Clock, root: str) -> None:
        self._journal, self._clock, self._root = journal, clock, root
        self._live: str | None = None
        self._durable: str | None = None
        self._commits = self._stored = 0
        self._told_ns: int | None = None
        self._here: set[str] = set()
        self._lock = Lock()
        self._early: list[Happening] | None = []
        """What has happened before it was said that the service is there; None: that was said."""

    def begun(self, server: Server) -> None:
        """Say where it can be reached, and with what it begins."""
        with self._lock:
            self._begin(server)
            early, self._early = self._early, None
            for what in early or ():
                self._tell(what)

    def ended(self) -> None:
        """Say that it has ended in good order."""
        with self._lock:
            self._sum_up()
            stay = f"versions in memory stay there for the next start; milepost unload {self._root} gives that memory back"
            self._journal("over", f"ended in good order; {stay}")

    def __call__(self, what: Happening) -> None:
        """Tell it, in words of somebody who was not there."""
        with self._lock:
            if self._early is None:
                self._tell(what)
            else:
                self._early.append(what)

    def _begin(self, server: Server) -> None:
        at, live, durable = server.endpoint, server.live, server.durable
        self._live, self._durable = _said(live), None if durable is None else str(durable.at)
        text = f"run {at.run_id} serves at {at.address} (pid {at.pid}, term {at.term}): {_pointers(live, durable)}"
        facts = {"live": live and str(live.at), "durable": self._durable}
        self._journal("ready", text, run_id=at.run_id, address=at.address, pid=at.pid, term=at.term, **facts)
        for event, line in _beginning(server):
            self._journal(event, line)

    def _tell(self, what: Happening) -> None:
        match what:
            case Tick():
                if self._told_ns is None or self._clock.monotonic_ns() - self._told_ns >= SUMMARY_NS:
                    self._sum_up()
            case Committed(weights):
                self._committed(weights)
            case Stored(at):
                self._durable, self._stored = str(at), self._stored + 1
                self._journal.note("durable", f"{at} is on disk", version=str(at))
            case Dropped(at):
                self._journal.note("dropped", f"{at} has left the disk", version=str(at))
            case Saved(at, generation):
                text = f"{at} is in generation {name_of(generation)}"
                self._journal.note("linked", text, version=str(at), generation=generation)
            case RolledBack(to, reason):
                self._live = str(to)
                text = f"back to {to}: {reason or 'no reason was given'}; what came after it is a lost branch"
                self._journal("rolled back", text, version=str(to), reason=reason)
            case Held(component):
                text = f"{component} holds: nobody is given weights until it resumes"
                self._journal("held", text, component=component)
            case Resumed(component):
                self._journal("resumed", f"{component} holds no more", component=component)
            case Failed(work, error):
                text = f"{_WORK.get(work, work)}: {error.message} ({error.kind}); it is tried again, and status says more"
                self._journal("failed", text, what=work, kind=error.kind, error=str(error))
            case Mended(work):
                self._journal("mended", _DONE.get(work, work), what=work)
            case Joined() | Left() | Silent() | InTouch():
                self._came_or_went(what)

    def _committed(self, weights: Weights) -> None:
        parent = None if weights.parent is None else str(weights.parent)
        is_branch = self._live is not None and parent != self._live.partition(" ")[0]
        self._commits, self._live = self._commits + 1, _said(weights)
        text = f"{weights.at} is live: step {weights.version.step:,}, {size(weights.size_bytes)}, from {weights.producer}"
        step, facts = weights.version.step, {"version": str(weights.at), "size_bytes": weights.size_bytes}
        if not is_branch:
            self._journal.note("committed", text, step=step, **facts)
            return
        lost = f"what came after {parent}" if parent else "all before it"
        self._journal("committed", f"{text}; {lost} is a lost branch", step=step, parent=parent, **facts)

    def _came_or_went(self, what: Joined | Left | Silent | InTouch) -> None:
        name, was_here = what.component, what.component in self._here
        if isinstance(what, Joined | InTouch):
            self._here.add(name)
        else:
            self._here.discard(name)
        match what:
            case Joined(_, role, incarnation, epoch):
                how = f"was replaced: another process is this {role} now" if was_here else f"has joined as a {role}"
                facts = {"role": role, "incarnation": incarnation, "epoch": epoch}
                self._journal("joined", f"{name} {how}", component=name, replaced=was_here, **facts)
            case InTouch() if not was_here:
                self._journal("in touch", f"{name} is in touch again", component=name)
            case Left():
                self._journal("left", f"{name} has left", component=name)
            case Silent(_, lease_s):
                text = f"{name} was not heard of for {duration(lease_s)}: what it reads is kept for it no more"
                self._journal("silent", text, component=name)

    def _sum_up(self) -> None:
        """Say for people how far it has come, if anything came since they were told."""
        if not self._commits and not self._stored:
            return
        since = f"; {counted(self._commits, 'commit')} since the last of these lines" if self._told_ns is not None else ""
        self._journal.remark(f"live {self._live or 'none'}, durable {self._durable or 'none'}{since}")
        self._commits = self._stored = 0
        self._told_ns = self._clock.monotonic_ns()


def _beginning(server: Server) -> list[tuple[str, str]]:
    """Return what else there is to say of the start of a service that is not the first."""
    found, lines = server.found, []
    if server.restored_from:
        lines.append(("restored", f"the journal was restored from {server.restored_from}: what came after it is lost"))
    if found.memory or found.disk:
        lines.append(("found", f"found {counted(len(found.memory), 'version')} in memory, {len(found.disk)} on disk"))
    if server.was_live is not None and (server.live is None or server.live.at != server.was_live):
        to = f"to {server.live.at}" if server.live else "behind the first version"
        lines.append(("went back", f"live went back from {server.was_live} {to}: the bytes of what came after are gone"))
    if server.reaped:
        lines.append(("reaped", f"gave back memory of {counted(len(server.reaped), 'service')} that will not come back"))
    return lines


def _said(weights: Weights | None) -> str | None:
    return None if weights is None else f"{weights.at} step {weights.version.step:,}"


def _pointers(live: Weights | None, durable: Weights | None) -> str:
    if live is None:
        return "no version yet"
    return f"live {_said(live)}, durable {durable.at if durable else 'none'}"
