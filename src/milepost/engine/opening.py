"""Open a run root for writing: claim it, sweep what a crash left, hold the ballast."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

from milepost.clock import Clock
from milepost.encode.compress import Decisions
from milepost.engine.asked import NOTHING, Asked, asked, mark_skipped
from milepost.engine.events import Events
from milepost.engine.provenance import fingerprint, identity, provenance
from milepost.engine.relief import hold_ballast, with_ballast
from milepost.engine.saving import Saving
from milepost.engine.session import BLOB_BYTES, Session
from milepost.errors import NotFoundError, StoreError
from milepost.lifecycle.faults import Traces
from milepost.lifecycle.retain import Keep
from milepost.publish import layout
from milepost.publish.generation import chain_of
from milepost.publish.pointer import point_at
from milepost.publish.reset import set_aside
from milepost.publish.retire import sweep
from milepost.publish.term import Claim, Identity, claim
from milepost.store.base import Guard, Store

log = logging.getLogger("milepost")


@dataclass(frozen=True, slots=True)
class Opened:
    """Hold a session and the claim that it started with."""

    session: Session
    claimed: Claim
    traces: Traces
    """What the writer before left of itself."""
    wanted: Asked = NOTHING
    """What a supervisor asks of this start."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Hold what an engine claims its root with."""

    store: Store
    clock: Clock
    keep: Keep
    fingerprint: dict[str, str]
    wait_s: float
    take_over: bool
    blob_bytes: int
    compress: Literal["auto", "off"]

    def open(self, held: ExitStack, saving: Saving) -> Opened:
        """Hold the root and claim it. Where this fails the caller closes ``held``. Raises `ConflictError` where it is taken."""
        wanted = asked()  # what is wrong with it is found before anything is touched
        guard = self.store.guard(wait_s=self.wait_s, take_over=self.take_over)
        hold(guard, held, self.store.url)
        opened = open_session(
            self.store,
            self.clock,
            self.keep,
            self.fingerprint,
            incarnation=self.clock.nonce(),
            guard=guard,
            blob_bytes=self.blob_bytes,
            compress=self.compress,
            wanted=wanted,
        )
        saving.claimed(opened.session, guard, held)
        return opened


def hold(guard: Guard, held: ExitStack, url: str) -> None:
    """Enter the guard of a root, which ``held`` then leaves. Where this fails the caller closes ``held``."""
    # Pushed before it is entered, and nothing by half: after a Ctrl-C anywhere in here the root is free again, and not
    # held by this process for as long as it lives.
    held.push(guard)
    held.push(guard)  # and twice: a Ctrl-C while the first is left loses that one
    guard.__enter__()
    if guard.forced:
        log.warning("claiming %s from a process that still holds it; that one can save no more", url)


def open_session(
    store: Store,
    clock: Clock,
    keep: Keep,
    extra_fingerprint: dict[str, str],
    *,
    incarnation: str,
    guard: Guard | None = None,
    blob_bytes: int = BLOB_BYTES,
    compress: Literal["auto", "off"] = "auto",
    wanted: Asked = NOTHING,
) -> Opened:
    """Claim the root and make it tidy. The caller holds the store's ``guard``. Raises `ConflictError` if it is fenced at once.

    Generations that ``wanted`` says to skip are marked: nobody loads them any more.
    """
    who = identity()
    # Whatever may be wrong with this process's surroundings is found before the root is touched.
    made_by, prints = provenance(who, incarnation), fingerprint(extra_fingerprint)
    # Where not even a fence fits, the ballast is for that, too: with a claim, older generations can be retired.
    claimed = with_ballast(store, lambda: claim(store, clock, who))
    events = Events(store, clock, run_id=claimed.run_id, term=claimed.term, attempt=made_by.attempt)
    session = Session(
        store,
        clock,
        claimed.run_id,
        chain_of(claimed),
        events,
        keep,
        made_by,
        prints,
        blob_bytes=blob_bytes,
        decisions=Decisions() if compress == "auto" else None,
    )
    survives = store.capabilities.survives
    events.write("claimed", pid=who.pid, host=who.host, settlement=claimed.settlement, survives=survives)
    if survives == "kill":
        log.warning("%s keeps what is saved until this machine stops, and no longer: milepost doctor fs says why", store.url)
    claimed = mark_skipped(session, claimed, wanted.skip.get(session.run_id, ()))
    _tidy(session, claimed)
    return Opened(session, claimed, _traces(claimed, who, guard), wanted)


def _traces(claimed: Claim, who: Identity, guard: Guard | None) -> Traces:
    fences = claimed.view.terms.fences
    before = next((fence for term in sorted(fences, reverse=True) if term < claimed.term and (fence := fences[term])), None)
    return Traces(before, who, guard is not None and guard.abandoned, guard is not None and guard.forced)


def _tidy(session: Session, claimed: Claim) -> None:
    """Finish an interrupted reset, delete leftovers and point at the head (rules 8, 26b).

    A disk that fails at this does not keep anyone from training.
    """
    try:
        if set_aside(session.store, claimed):
            session.events.write("set-aside", runs=[each.run_id for each in claimed.resets])
        swept = sweep(session.store, claimed)
        head = claimed.view.head
        if head is not None:
            data = session.store.read(layout.manifest(head.number))
            session.manifest_bytes = len(data)
            point_at(session.store, session.chain, head, data)
    except (StoreError, NotFoundError) as error:  # a head that is not there: a later claimer has retired it already
        session.events.write("sweep-failed", error=error.message)
    else:
        if swept.generations or swept.blobs:
            session.events.write("swept", generations=swept.generations, blobs=len(swept.blobs))
    hold_ballast(session)
