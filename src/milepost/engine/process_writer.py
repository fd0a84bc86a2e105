"""Have saves written by a process beside training, which outlives a trainer that is killed: the trainer's side."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TypeVar

from milepost.engine import forks, messages
from milepost.engine.capture import Staged
from milepost.engine.channel import Channel, ChannelError
from milepost.engine.messages import Done, Hello, Letter, Note, Over, PlacedComponent, PlacedLeaf, Posted, Trying
from milepost.engine.session import Order, Session
from milepost.engine.shared_arena import MemoryFile, SharedArena
from milepost.engine.writer import discard
from milepost.errors import StoreError, UsageError
from milepost.publish import layout
from milepost.publish.generation import check_still_ours, settle_attempt
from milepost.publish.pointer import point_at
from milepost.publish.signed import unwrapped
from milepost.records import Manifest
from milepost.store.base import Guard, Store
from milepost.store.local import LocalStore
from milepost.store.lock import FileGuard
from milepost.store.process import Writer, process_start_time

T = TypeVar("T")

log = logging.getLogger("milepost")

RESTARTS = 3
"""How often one save is posted again after its writer died."""
START = "import sys; sys.path += sys.argv[2:]; from milepost.engine.writer_process import main; main(int(sys.argv[1]))"
"""What the process runs. Its arguments are the socket and where the trainer has found milepost and what that stands on."""
_NEEDED = ("milepost", "msgspec", "numpy", "xxhash")
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""It computes nothing: a pool of threads would only take memory."""
_IDLE_S = 60.0
"""How long a writer with nothing to write may take to end before it is killed."""


def check_process_writer(store: Store) -> None:
    """Raise `UsageError` (kind ``no-process-writer``) where a process of its own could not write to ``store``."""
    why = ""
    if not (hasattr(os, "memfd_create") and hasattr(os, "pidfd_open")):
        why = "it needs memory files and process descriptors (Linux 5.3 or newer)"
    elif not isinstance(unwrapped(store)[0], LocalStore):
        why = "it writes to directories only"
    if why:
        raise UsageError(
            f'writer="process" cannot be used here: {why}',
            kind="no-process-writer",
            hint='use writer="thread"; a save that is staged then ends with the trainer',
            root=store.url,
        )


@dataclass(frozen=True, slots=True)
class _Job:
    staged: Staged
    order: Order


class ProcessWriter:
    """Start a writer, post saves to it, and see to it that it ends.

    One save at a time: `post` is called by the thread that trains, `finish` and `clear_up` by the one beside it.
    """

    def __init__(self, session: Session, arena: SharedArena, guard: Guard, deadline_s: float) -> None:
        self._session = session
        self._arena = arena
        self._guard = guard
        self._deadline_ms = round(deadline_s * 1e3)
        self._letters = MemoryFile("milepost-letters")
        self._complaints = MemoryFile("milepost-complaints")
        """What the writer says on its standard error: nobody's terminal or pipe is kept open by it."""
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._job: _Job | None = None
        """What was posted last, until all that follows from it is known."""
        self._announced: list[str] = []
        self._base: messages.BaseKey | None = None
        """The base that the writer knows."""
        self._refused: StoreError | None = None
        """Why there is no writer for what was posted."""

    def start(self) -> None:
        """Start the process. It needs a tenth of a second until it listens; what is posted meanwhile waits for it."""
        try:
            self._launch()
            self._greet()
        except OSError as error:
            self._abandon()
            raise _not_started(self._session, error) from error
        except BaseException:  # a Ctrl-C: one that was not greeted could not make sense of anything
            self._abandon()
            raise

    def _launch(self) -> None:
        self._complaints.put(b"")
        self._base = None
        with forks.no_fork():
            ours, theirs = socket.socketpair()
            self._channel = Channel(ours)
            with theirs:
                forks.withhold(ours.fileno())
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    [sys.executable, "-I", "-S", "-X", "faulthandler", "-c", START, str(theirs.fileno()), *_places()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._complaints.descriptor,
                    pass_fds=(theirs.fileno(),),
                    cwd="/",
                    env={**os.environ, **_ONE_THREAD},
                    start_new_session=True,  # a Ctrl-C, or a signal to the trainer's group, is not for it
                )
        forks.tell(self._forget)

    def _abandon(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._end()
        elif self._channel is not None:
            self._channel.close()
            self._channel = None

    def _greet(self) -> None:
        """Name the writer in the lock file, and only then hand it the lock: whoever finds that held must know by whom."""
        store, key = unwrapped(self._session.store)
        assert isinstance(store, LocalStore)
        assert self._channel is not None
        assert self._process is not None
        guard = self._guard if isinstance(self._guard, FileGuard) else None
        lock = guard.descriptor if guard else None
        started = process_start_time(self._process.pid)
        if guard is not None and started is not None:
            guard.name_writer(Writer(self._process.pid, started, self._deadline_ms))
        chain, attempt = self._session.chain, self._session.provenance.attempt
        hello = Hello(
            store.root, key, chain.run_id, chain.term, attempt, self._deadline_ms, guard.holder if guard and lock else None
        )
        trainer = os.pidfd_open(os.getpid())
        try:
            shared = [self._arena.descriptor, self._letters.descriptor, trainer, *([lock] if lock is not None else [])]
            with suppress(ChannelError):  # it is dead already: `finish` finds that, and why
                self._channel.send(messages.encode(hello), shared)
        finally:
            os.close(trainer)

    def post(self, staged: Staged, order: Order) -> None:
        """Say that a save is staged. When this returns, it no longer needs the trainer. What goes wrong is for `finish` to tell."""
        if self._job is not None:
            self._settle()
        self._announced, self._refused = [], None
        self._job = _Job(staged, order)
        try:
            if self._channel is None:
                self.start()
            if not self._send(self._job):
                self._tell(self._end())
                self.start()
                self._send(self._job)
        except StoreError as error:
            self._refused = error

    def _send(self, job: _Job) -> bool:
        """Write the letter and send word of it; return whether there was anybody to send it to."""
        letter = messages.encode(self._letter(job))
        self._letters.put(letter)
        assert self._channel is not None
        try:
            self._channel.send(messages.encode(Posted(len(letter), self._arena.size_bytes)))
        except ChannelError:
            return False
        return True

    def _letter(self, job: _Job) -> Letter:
        session = self._session
        return Letter(
            [
                PlacedComponent(
                    each.name,
                    each.tree,
                    [PlacedLeaf(leaf.path, leaf.spec, *self._arena.place_of(leaf.data)) for leaf in each.leaves],
                )
                for each in job.staged.components
            ],
            job.order,
            messages.state_of(session, self._base),
            session.keep,
            session.provenance,
            session.fingerprint,
            session.blob_bytes,
        )

    def finish(self) -> Manifest:
        """Wait until the save is published, and return its manifest, or raise what it died of, as `write_with_relief` does.

        Where the writer dies, what it has published by then is found, and it is started and told once more.
        """
        assert self._job is not None
        if self._refused is not None:
            self._job = None
            raise self._refused
        for left in reversed(range(RESTARTS + 1)):
            done = self._hear(Done)
            if done is not None:
                return self._take(done)
            ended = self._end()
            try:
                published = self._catch_up()
            except BaseException:
                self._job = None
                raise
            if published is None and not left:
                self._job = None
                raise _gone(self._session, ended)
            self._tell(ended)
            if published is not None:
                return published
            self.start()
            self._send(self._job)
        raise AssertionError

    def _take(self, done: Done) -> Manifest:
        messages.take_in(self._session, done.state)
        self._base = done.state.base
        if done.failure is not None:
            self._job = None
            raise messages.error_of(done.failure)
        assert self._session.base is not None
        return self._session.base

    def clear_up(self) -> None:
        """Wait until what followed the save is done, too. Where the writer died over it, the next save makes up for it."""
        if self._channel is not None:
            over = self._hear(Over)
            if over is not None:
                messages.take_in(self._session, over.state)
            else:
                self._tell(self._end())
        self._job = None

    def _hear(self, kind: type[T], within_s: float | None = None) -> T | None:
        """Wait for a message of this kind, and attend to those before it; None if the writer has ended."""
        assert self._channel is not None
        while True:
            received = self._channel.receive(within_s)
            if received is None:
                return None
            message = messages.from_writer(received)
            if isinstance(message, Trying):
                self._announced.append(message.write_id)
            elif isinstance(message, Note):
                log.log(message.level, "%s", message.text)
            if isinstance(message, kind):
                return message

    def _catch_up(self) -> Manifest | None:
        """Learn what a writer that died has published, and return it if the save is among it (rule 12).

        It may have died just after its manifest was there, and before it could say so. To write the state once more would be
        no harm, but the number is taken: found without this, it would look like another writer's.
        """
        session, chain = self._session, self._session.chain
        check_still_ours(session.store, chain)
        published = None
        while self._announced:
            chain.tried.update(self._announced)
            chain.attempts.update(self._announced)
            landed = settle_attempt(session.store, chain)
            if landed is None:
                break
            session.base = landed
            if landed.trim_of is None:
                published = landed
            elif session.resumed_from == landed.trim_of:
                session.resumed_from = landed.number
        if published is not None:
            with suppress(StoreError):  # a hint
                point_at(session.store, chain, published, session.store.read(layout.manifest(published.number)))
        self._clear_litter()
        return published

    def _clear_litter(self) -> None:
        """Delete what a writer that died has written and no manifest names: nobody else would before the next claim.

        Unless it has tried a manifest of which nobody knows whether it will appear yet: then they go with its number.
        """
        store, chain = self._session.store, self._session.chain
        named = {blob.name for each in (*chain.live.values(), *chain.dropped.values()) for blob in each.blobs}
        named |= chain.condemned | chain.attempted
        ours = [each.name for each in store.list(layout.BLOBS) if layout.blob_term(each.name) == chain.term]
        litter = [name for name in ours if name not in named and not name.endswith(".tmp")]
        if chain.tried:
            chain.attempted.update(name for name in litter if not name.endswith(".part"))
        discard(self._session, litter)

    def _tell(self, ended: str) -> None:
        order = self._job.order if self._job else None
        self._session.events.write("writer-restarted", step=order.step if order else None, ended=ended)
        log.warning("the writer process %s; it is started anew, and what was staged is posted again", ended)

    def _end(self) -> str:
        """Wait for the end of the process, and say what it died of."""
        process, channel = self._process, self._channel
        assert process is not None
        assert channel is not None
        channel.close()
        status = process.wait()
        forks.untell(self._forget)
        self._process = self._channel = None
        complaint = self._complaints.end().decode(errors="replace")
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return f"{how}: {complaint.strip()}" if complaint.strip() else how

    def _settle(self) -> None:
        """Find out what became of a save that was posted and whose end nobody waited for: a Ctrl-C came in between."""
        self._drain(None)
        self._end()
        self._catch_up()
        self._job = None

    def _drain(self, within_s: float | None) -> None:
        """Tell the writer that there will be no more, and hear what it still has to say until it ends."""
        assert self._channel is not None
        self._channel.end()
        while (message := self._hear(object, within_s)) is not None:
            if isinstance(message, Done | Over):
                messages.take_in(self._session, message.state)

    def close(self) -> None:
        """Have the writer end, once it has written what was posted. May be called again."""
        if self._channel is not None and self._process is not None:
            try:
                # One that has nothing to write may be stopped, or hang in deleting: it is waited for, but not for ever.
                self._drain(None if self._job is not None else _IDLE_S)
            except TimeoutError:
                self._process.kill()
            self._end()
        self._job = None
        self._arena.give_back()
        self._letters.close()
        self._complaints.close()

    def _forget(self) -> None:
        """Own nothing in a forked child: the process is not its child."""
        if self._process is not None:
            self._process.returncode = 0


def _not_started(session: Session, error: OSError) -> StoreError:
    return StoreError(
        "the writer process could not be started",
        kind="no-writer",
        retryable=True,
        hint='look at the limits of processes and memory, or use writer="thread"',
        root=session.store.url,
        cause=str(error),
    )


def _gone(session: Session, ended: str) -> StoreError:
    return StoreError(
        f"the writer process died {RESTARTS + 1} times over this save; training can go on, this save is lost",
        kind="writer-gone",
        retryable=True,
        hint='look for what kills it (dmesg, if it was the OOM killer), or use writer="thread"',
        root=session.store.url,
        ended=ended,
    )


def _places() -> list[str]:
    """Return where the trainer has found what the writer needs: it is to look nowhere else, in the working directory say."""
    found: dict[str, None] = {}
    for name in _NEEDED:
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            found[os.path.dirname(os.path.abspath(spec.submodule_search_locations[0]))] = None
    return list(found)
