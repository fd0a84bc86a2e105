"""Have saves written by a process beside training, which outlives a trainer that is killed: the trainer's side."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from milepost.engine import messages
from milepost.engine.capture import Staged
from milepost.engine.catch_up import catch_up
from milepost.engine.messages import Bring, Brought, Done, Failure, Letter, Over, Posted, StagedLog, State
from milepost.engine.session import Order, Session
from milepost.engine.settings import WriterKind
from milepost.engine.shared_arena import MemoryFile, SharedArena
from milepost.engine.writer import settle_logs
from milepost.engine.writer_child import WriterChild
from milepost.errors import StoreError, UsageError
from milepost.lifecycle.amounts import seconds_of
from milepost.publish.signed import unwrapped
from milepost.records import Manifest
from milepost.store.base import Guard, Store
from milepost.store.local import LocalStore
from milepost.store.lock import LONGEST_DEADLINE_S

log = logging.getLogger("milepost")

RESTARTS = 3
"""How often one save is posted again after its writer died."""
_IDLE_S = 60.0
"""How long a writer with nothing to write may take to end before it is killed."""


def check_process_writer(writer: WriterKind, store: Store) -> None:
    """Raise `UsageError` (kind ``no-process-writer``) if a process is to write to ``store``, and cannot."""
    if writer != "process":
        return
    why = ""
    if not (hasattr(os, "memfd_create") and hasattr(os, "pidfd_open")):
        why = "it needs memory files and process descriptors (Linux 5.3 or newer)"
    elif type(unwrapped(store)[0]) is not LocalStore:
        # The process opens the directory itself: what a class of one's own does otherwise would be left out in silence.
        why = "it writes to directories only, and as LocalStore itself does"
    if why:
        raise UsageError(
            f'writer="process" cannot be used here: {why}',
            kind="no-process-writer",
            hint='use writer="thread"; a save that is staged then ends with the trainer',
            root=store.url,
        )


def deadline_of(setting: str | float) -> float:
    """Return how many seconds a writer may go on without its trainer; `UsageError` (kind ``bad-setting``) for what cannot be."""
    deadline_s = seconds_of(setting)
    if not 0 < deadline_s <= LONGEST_DEADLINE_S:
        raise UsageError(
            "a writer needs some time to finish without its trainer, and at most ten minutes, since the next start waits for it",
            kind="bad-setting",
            hint='writer_deadline="60s"',
            writer_deadline=setting,
        )
    return deadline_s


@dataclass(frozen=True, slots=True)
class _Job:
    staged: Staged
    order: Order


class ProcessWriter:
    """Post saves to a writer process, and see to it that there is one.

    One save at a time: `post` is called by the thread that trains, `finish` and `clear_up` by the one beside it.
    """

    def __init__(self, session: Session, arena: SharedArena, guard: Guard, deadline_s: float) -> None:
        self._session = session
        self._arena = arena
        self._guard = guard
        self._deadline_ms = round(deadline_s * 1e3)
        self._letters = MemoryFile("milepost-letters")
        self._child: WriterChild | None = None
        self._base: messages.BaseKey | None = None
        """The base that it knows."""
        self._job: _Job | None = None
        """What was posted last, until all that follows from it is known."""
        self._waited_for = False
        """Somebody waits, or has waited, for what becomes of it."""
        self._wave = 0
        """Which part of it is in the arena."""
        self._refused: Exception | None = None
        """Why it, or a part of it, could not be handed over."""

    def start(self) -> WriterChild:
        """Start a process, since there is none. Raises `StoreError`."""
        self._base = None
        self._child = WriterChild(self._session, self._arena.descriptor, self._letters.descriptor, self._guard, self._deadline_ms)
        return self._child

    def post(self, staged: Staged, order: Order) -> None:
        """Say that a save is staged: when this returns, it no longer needs the trainer. `finish` tells what goes wrong."""
        assert self._job is None
        self._refused, self._waited_for, self._wave = None, False, 0
        self._job = _Job(staged, order)
        try:
            # What a device still copies would be read by the other process before it is there.
            staged.arrived()
            if not self._send(self._child or self.start()):
                self._tell(self._ended(), "what is staged is posted to another")
                self._send(self.start())
        except Exception as error:  # noqa: BLE001 - `finish` raises it, as a thread's own would be
            self._refused = error

    def _send(self, child: WriterChild) -> bool:
        """Write the letter, and send word of it; return whether there was anybody to send it to."""
        assert self._job is not None
        letter = messages.encode(self._letter(self._job))
        self._letters.put(letter)
        child.announced.clear()
        return child.send(Posted(len(letter), self._arena.size_bytes))

    def _letter(self, job: _Job) -> Letter:
        session, staged = self._session, job.staged
        return Letter(
            staged.components,
            [StagedLog(each.component, each.mark.doubt, each.rows_added) for each in staged.logs],
            staged.wave_count,
            staged.wave_bytes,
            self._wave,
            job.order,
            messages.state_of(session, self._base),
            session.keep,
            session.provenance,
            session.fingerprint,
            session.blob_bytes,
            session.decisions is not None,
        )

    def finish(self) -> Manifest:
        """Wait until the save is published, and return its manifest, or raise what it died of, as `write_with_relief` does.

        Where the writer dies, what it has published by then is found, and else it is started anew and told once more.
        """
        self._waited_for = True
        try:
            return self._finish()
        except BaseException:
            self._job = None
            raise

    def _finish(self) -> Manifest:
        if self._refused is not None:
            raise self._refused
        left = RESTARTS
        while True:
            assert self._child is not None
            heard = self._child.hear(Done | Bring)
            if isinstance(heard, Bring):
                self._child.send(Brought(self._bring(heard.wave)))
                continue
            if heard is not None:
                return self._outcome(heard)
            announced = self._child.announced
            ended = self._ended()
            published = catch_up(self._session, announced)
            assert self._job is not None
            if published is None and (not left or not self._job.staged.repeatable):
                raise _gone(self._session, ended)
            if published is not None:
                self._tell(ended, "what it was to write is published; the next save starts another")
                settle_logs(self._job.staged, published)
                return published
            self._tell(ended, "what is staged is posted to another")
            left -= 1
            self._send(self.start())

    def _outcome(self, done: Done) -> Manifest:
        self._take_in(done.state)
        if done.failure is not None:
            raise self._refused or messages.error_of(done.failure)
        assert self._job is not None
        assert self._session.base is not None
        settle_logs(self._job.staged, self._session.base)
        return self._session.base

    def _bring(self, wave: int) -> Failure | None:
        """Have the thread that trains copy a wave into the arena; return why it did not."""
        assert self._job is not None
        self._wave = wave
        try:
            self._job.staged.bring(wave)
            self._job.staged.arrived()
        except Exception as error:  # noqa: BLE001 - the writer waits for an answer; once it has given up, `finish` raises it
            self._refused = error
            return messages.failure_of(error)
        return None

    def clear_up(self) -> None:
        """Wait until what followed the save is done, too. Where the writer died over it, the next save makes up for it."""
        if self._child is not None:
            over = self._child.hear(Over)
            if over is not None:
                self._take_in(over.state)
            else:
                self._tell(self._ended(), "the save counts, and the next one starts another")
        self._job = None

    def _take_in(self, state: State) -> None:
        messages.take_in(self._session, state)
        self._base = state.base

    def _ended(self) -> str:
        assert self._child is not None
        ended = self._child.end()
        self._child = None
        return ended

    def _tell(self, ended: str, then: str) -> None:
        step = self._job.order.step if self._job else None
        self._session.events.write("writer-restarted", step=step, ended=ended, then=then)
        log.warning("the writer process %s; %s", ended, then)

    def join(self) -> None:
        """Find out what became of a save that was posted and for which nobody waits, if there is one: a Ctrl-C came in between.

        The writer may be reading from the arena still, and the chain is to move before anybody builds on it.
        """
        if self._job is None or self._waited_for:
            return
        if self._child is not None:
            self._child.finish(self._take_in, None)
            announced = self._child.announced
            self._ended()
            catch_up(self._session, announced)
        self._job = None

    def close(self) -> None:
        """Have the writer end, once it has written what was posted. May be called again."""
        if self._child is not None:
            try:
                # One that has nothing to write may be stopped, or hang in deleting: it is waited for, but not for ever.
                self._child.finish(self._take_in, None if self._job is not None else _IDLE_S)
                self._ended()
            except TimeoutError:
                self._child.kill()
                self._child = None
        self._job = None
        self._letters.close()


def _gone(session: Session, ended: str) -> StoreError:
    return StoreError(
        "the writer process died over this save, which cannot be posted again; training can go on, this save is lost",
        kind="writer-gone",
        retryable=True,
        hint='look for what kills it (dmesg, if it was the OOM killer), or use writer="thread"',
        root=session.store.url,
        ended=ended,
    )
