"""Hold a run root from the first save of this process to its end, whatever writer objects come and go.

Whoever uses ``torch.distributed.checkpoint`` makes a writer for each save. A claim for each would let two trainers take
turns; so the coordinator's process claims once, and keeps the claim until `give_up` or its end.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

from milepost.clock import SystemClock
from milepost.engine import misuse
from milepost.engine.asked import asked, instead_of_latest
from milepost.engine.background import Background
from milepost.engine.opening import hold, open_session
from milepost.engine.redact import redact_the_log
from milepost.engine.relief import hold_ballast, with_ballast
from milepost.engine.session import Session
from milepost.engine.writer import discard, publish_stored, retire_dropped
from milepost.errors import CorruptError, MilepostError, UsageError
from milepost.lifecycle.recover import choose
from milepost.lifecycle.retain import Keep
from milepost.publish import layout
from milepost.publish.generation import Chain, build_on, check_still_ours
from milepost.publish.manifest import load_record
from milepost.publish.pointer import note_progress
from milepost.publish.signed import open_root
from milepost.publish.view import View
from milepost.pytorch.dcp.errands import Errand
from milepost.pytorch.dcp.fullness import Full, make_room
from milepost.records import Manifest
from milepost.store.base import Store
from milepost.store.resolve import Where


@dataclass(frozen=True, slots=True)
class Load:
    """Say which generation this process's state goes back to; number 0: to none, it starts anew."""

    run_id: str
    number: int


_turn = threading.RLock()
_held: dict[str, Holding] = {}
_loads: dict[str, Load] = {}
_half: set[str] = set()


class Holding:
    """Be this process's claim of one root, and the save under way in it."""

    def __init__(self, session: Session, held: ExitStack) -> None:
        self.session = session
        self.held = held
        self.pid = os.getpid()
        self.phase: Literal["none", "planning", "writing", "written"] = "none"
        """How far the save under way has come, as far as this rank knows: that another failed nobody tells it."""
        self._there: dict[str, int] = {}
        """The blobs there were when it began, with their sizes."""
        self.step = 0
        self.serial = 0
        self.committed: Manifest | None = None
        """What this claim has published last."""
        self._deleting = Background("thread")
        self._finalizer = weakref.finalize(self, _release, held, self.pid)

    def begin(self, step: int) -> int:
        """Begin a save, and return its serial. Raises `ConflictError` if another process has claimed the root meanwhile.

        A save of which no more was heard, since another rank failed, is over; what was written for it is deleted.
        """
        session = self.session
        with _turn:
            if self.phase == "writing":
                raise _in_flight(session.store.url, self.step)
            self.settle()
            check_still_ours(session.store, session.chain)
            self._take_up_load()
            self._there = _without_leftovers(session)
            self.phase, self.step, self.serial = "planning", step, self.serial + 1
            return self.serial

    def errand(self, serial: int, ranks: int, told: Collection[object] = ()) -> Errand:
        """Note durably that the save is about to write, and return what the ranks need for it.

        ``told`` is what ranks have said with their plans: that they met a full disk in the save before.
        """
        self.check(serial)
        if any(one == Full(self.session.run_id, self.session.chain.term, serial - 1) for one in told):
            self._make_room()
        session, chain = self.session, self.session.chain
        if ranks > 1 and session.store.capabilities.guard == "process":
            raise UsageError(
                "this run root is in the memory of one process, and there are several ranks",
                kind="not-shared",
                hint="use a directory that all of them see",
                root=session.store.url,
                ranks=ranks,
            )
        attempt = session.provenance.attempt
        with_ballast(session.store, lambda: note_progress(session.store, chain, session.clock, attempt=attempt, step=self.step))
        self.phase = "writing"
        return Errand(chain.run_id, chain.term, chain.claim_id, chain.next, serial, ranks, self._base())

    def _make_room(self) -> None:
        session, before = self.session, self.committed
        if before is not None and make_room(session, before.new_bytes):
            # What was published last is the same content once more: with what it stands on, tensors may be shared.
            self.committed = session.base

    def _base(self) -> int:
        """Return the generation that unchanged tensors may be shared with: the head, if this claim has published it from the
        state that is saved now, and nothing of it is gone. 0: all is written.
        """
        session, chain, base = self.session, self.session.chain, self.committed
        if base is None or chain.head is None or not chain.head.number == base.number == chain.base:
            return 0
        gone = sorted(blob.name for blob in base.blobs if self._there.get(blob.name) != blob.size_bytes)
        if gone:
            session.events.write("blobs-gone", generation=base.number, blobs=gone)
            return 0
        wants_copy = session.keep.wants_copy(chain.live, chain.line, {blob.name for blob in base.blobs})
        return 0 if wants_copy else base.number

    def check(self, serial: int) -> None:
        """Raise `UsageError` (kind ``superseded``) if a later save was begun."""
        if serial != self.serial:
            raise UsageError(
                "a later save was begun before this one had ended; it is not published",
                kind="superseded",
                hint="wait for the result of an async_save before the next one",
                root=self.session.store.url,
            )

    def publish(self, draft: Manifest) -> Manifest:
        """Publish what all ranks have written. What it drops is deleted beside training: a gigabyte takes a tenth of a second."""
        session = self.session
        manifest = with_ballast(session.store, lambda: publish_stored(session, draft, session.kept))
        self.phase, self.committed, session.base = "none", manifest, manifest
        hold_ballast(session)
        if session.chain.dropped or session.chain.condemned:
            self._deleting.start(lambda: retire_dropped(session))
        return manifest

    def settle(self) -> None:
        """Wait until what the last save has dropped is deleted: until then the session is that thread's."""
        self._deleting.settle()
        failure = self._deleting.collect()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Let go of the root, and have nothing deleted in it any more."""
        self._deleting.settle()
        self._deleting.close()
        _release(self.held, self.pid)

    def _take_up_load(self) -> None:
        load, session = take_load(self.session.store.url), self.session
        if load is not None and not load.number:
            session.build_on(None)
            return
        if load is not None and load.run_id == session.run_id and load.number in session.chain.live:
            session.build_on(load_record(session.store, layout.manifest(load.number), Manifest), share=False)


def hold_root(store: Store, keep: Keep, lease_wait: float, take_over: bool) -> Holding:
    """Return this process's claim of the root, made now if there is none. Raises `ConflictError` as `Store.guard` does."""
    with _turn:
        holding = _held.get(store.url)
        if holding is None:
            holding = _held[store.url] = _claimed(store, keep, lease_wait, take_over)
        if holding.pid != os.getpid():
            raise misuse.forked(store.url, holding.pid)
        holding.session.keep = keep
        return holding


def _claimed(store: Store, keep: Keep, lease_wait: float, take_over: bool) -> Holding:
    redact_the_log()
    held, clock, told = ExitStack(), SystemClock(), asked()
    guard = store.guard(wait_s=lease_wait, take_over=take_over)
    try:
        hold(guard, held, store.url)
        opened = open_session(store, clock, keep, {}, incarnation=clock.nonce(), guard=guard, compress="off", wanted=told)
        view = opened.claimed.view
        instead_of_latest(store.url, view.run_id, view.head, told)  # what this process saves is newer than what is asked for
        _go_on(opened.session.chain, store, view)
    except BaseException:
        held.close()
        raise
    return Holding(opened.session, held)


def _go_on(chain: Chain, store: Store, view: View) -> None:
    """Go on from the newest generation, as `milepost.save` does. Whoever has loaded another says so before the first save."""
    try:
        newest = choose(store, view, full=False).manifest
    except CorruptError:
        newest = None
    build_on(chain, newest.number if newest else 0)


def is_held(root: Where, key_file: str | os.PathLike[str] | None = None) -> bool:
    """Return whether this process has claimed ``root`` by a save."""
    with _turn:
        holding = _held.get(open_root(root, SystemClock(), key_file).url)
        return holding is not None and holding.pid == os.getpid()


def give_up(root: Where) -> None:
    """Give up the claim that saves have made of ``root``, so that another process, or an engine of this one, may write to it.

    A process that ends gives up all of them. Nothing is held: nothing is done. Raises `UsageError` (kind ``save-in-flight``)
    while a save is being written.
    """
    url = open_root(root, SystemClock()).url
    with _turn:
        holding = _held.get(url)
        if holding is not None and holding.pid == os.getpid() and holding.phase == "writing":
            raise _in_flight(url, holding.step)
        _held.pop(url, None)
    if holding is not None and holding.pid == os.getpid():
        holding.close()


def _release(held: ExitStack, pid: int) -> None:
    if pid == os.getpid():
        held.close()


def note_load(url: str, load: Load) -> None:
    """Note that this process's state is that of a generation now: what is saved next goes back to it."""
    with _turn:
        _loads[url] = load
        _half.discard(url)


def note_half(url: str) -> None:
    """Note that the state of this process is being overwritten: until a load has succeeded it is half old and half new."""
    with _turn:
        _half.add(url)


def check_whole(url: str) -> None:
    """Raise `UsageError` (kind ``half-loaded``) if a load from this root has failed with the state half overwritten."""
    if url in _half:
        raise UsageError(
            "a load from this run root has failed half-way: the state is half old and half new, and is not saved",
            kind="half-loaded",
            hint="load a generation that is sound (milepost.pytorch.dcp.load falls back by itself), or start the process anew",
            root=url,
        )


def take_load(url: str) -> Load | None:
    """Return what was loaded since the last save, for the one that takes note of it."""
    with _turn:
        return _loads.pop(url, None)


def _without_leftovers(session: Session) -> dict[str, int]:
    """Delete what saves of this claim have written that no manifest names: a rank failed, and none was published.

    Return the other blobs with their sizes.
    """
    chain = session.chain
    named = {blob.name for summary in (*chain.live.values(), *chain.dropped.values()) for blob in summary.blobs}
    named |= chain.attempted | chain.condemned
    there = {entry.name: entry.size_bytes for entry in session.store.list(layout.BLOBS)}
    left = [name for name in there if name not in named and layout.blob_term(name) == chain.term]
    # An unreadable manifest may name what is no newer than itself (PROTOCOL 3a).
    gone = [name for name in left if (layout.blob_number(name) or 0) > chain.barrier]
    if gone:
        session.events.write("leftovers", blobs=gone)
        discard(session, gone)
    return there


def failed(holding: Holding, serial: int, error: MilepostError | None) -> None:
    """Note that this rank's part of a save has failed."""
    if holding.serial == serial and holding.phase != "none":
        holding.phase = "none"
        reason = error.message if error else "interrupted"
        holding.session.events.write(
            "save-failed", step=holding.step, reason="dcp", kind=error.kind if error else "", error=reason
        )


def _in_flight(root: str, step: int) -> UsageError:
    return UsageError(
        "a save into this run root is still being written",
        kind="save-in-flight",
        hint="wait for the result of an async_save before the next one",
        root=root,
        step=step,
    )
