"""Be the process that writes for a trainer, and outlives it for as long as a staged save needs: `main`.

It reads a letter and the shared arena, runs the very `write_with_relief` that a thread would, and says what became of it. It
knows nothing from one save to the next but the manifest that it published last, which the trainer need not send again.
"""

from __future__ import annotations

import logging
import mmap
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, cast

from milepost.clock import SystemClock
from milepost.encode.compress import Decisions
from milepost.engine import messages
from milepost.engine.capture import Log, Staged
from milepost.engine.channel import Channel, ChannelError
from milepost.engine.events import Events
from milepost.engine.messages import Bring, Brought, Done, Failure, FromWriter, Hello, Letter, Note, Over, Posted, Trying
from milepost.engine.relief import clear_up, write_with_relief
from milepost.engine.session import Session
from milepost.errors import StoreError
from milepost.publish.signed import SignedStore
from milepost.records import Manifest
from milepost.state.log import LogMark
from milepost.store.local import LocalStore
from milepost.store.lock import rewrite, sealed
from milepost.store.posix import Posix
from milepost.store.process import TITLE, Writer, has_ended, process_start_time


def main(descriptor: int) -> None:
    """Serve the trainer at the other end of this socket until it has ended."""
    _be_deaf()
    channel = Channel(socket.socket(fileno=descriptor))
    first, descriptors = channel.receive_with_descriptors()
    if first is None:
        return  # the trainer has ended before it could say anything
    hello = messages.from_trainer(first)
    assert isinstance(hello, Hello)
    WriterProcess(channel, hello, descriptors).serve()


def _be_deaf() -> None:
    """Be called by a name of its own, and end by nothing but the end of the trainer, of the deadline, or SIGKILL.

    Whoever stops a job sends its signal to every process of it. The trainer is to stop; what it has staged is to be published.
    """
    with suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write(TITLE)
    polite = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
    for each in (*polite, signal.SIGPIPE):
        signal.signal(each, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})


class WriterProcess:
    """Write one save at a time, in the main thread; a second thread waits for the end of the trainer."""

    def __init__(self, channel: Channel, hello: Hello, descriptors: list[int]) -> None:
        self._channel = channel
        self._hello = hello
        self._arena, self._letters, self._trainer = descriptors[:3]
        self._lock = descriptors[3] if len(descriptors) > 3 else None
        self._clock = SystemClock()
        local = LocalStore(hello.root, self._clock)
        self._store = local if hello.key is None else SignedStore(local, hello.key)
        self._events = Events(self._store, self._clock, run_id=hello.run_id, term=hello.term, attempt=hello.attempt)
        self._decisions = Decisions()
        self._view = memoryview(b"")
        self._base: Manifest | None = None
        self._step: int | None = None
        """What is being written."""
        self._orphaned = False
        self._untold = [True]
        """Empty once it was told that the trainer is gone. Whoever takes it out tells it: either thread may be first."""
        channel.watch(self._trainer)
        logging.getLogger("milepost").addHandler(_ToTheTrainer(self))

    def serve(self) -> None:
        """Write what is posted, until the trainer says that there will be no more, or has ended."""
        threading.Thread(target=self._outlive, name="milepost-orphan", daemon=True).start()
        while True:
            received = self._channel.receive()
            if received is None:
                return
            posted = messages.from_trainer(received)
            assert isinstance(posted, Posted)
            self._write(posted)

    def _write(self, posted: Posted) -> None:
        letter = messages.decode_letter(os.pread(self._letters, posted.letter_bytes, 0))
        self._step = letter.order.step
        self._tell_that_the_trainer_is_gone()
        session, staged = self._session(letter), self._staged(letter, posted.arena_bytes)
        failure = None
        try:
            write_with_relief(session, staged, letter.order)
        except Exception as error:  # noqa: BLE001 - it is the trainer's to raise
            failure = messages.failure_of(error)
        self._base = session.base
        self._step = None
        self.say(Done(messages.state_of(session, letter.state.base), failure))
        if failure is None and not self._orphaned:  # the next claimer sweeps, and waits for us
            clear_up(session)
            self.say(Over(messages.state_of(session, messages.key_of(session.base))))

    def _session(self, letter: Letter) -> Session:
        state = letter.state
        base = state.manifest if state.manifest is not None else self._base if state.base is not None else None
        assert messages.key_of(base) == state.base
        state.chain.tried = _Announced(self, state.chain.tried)
        return Session(
            self._store,
            self._clock,
            self._hello.run_id,
            state.chain,
            self._events,
            letter.keep,
            letter.provenance,
            letter.fingerprint,
            base=base,
            resumed_from=state.resumed_from,
            blob_bytes=letter.blob_bytes,
            manifest_bytes=state.manifest_bytes,
            distrusted=state.distrusted,
            apart=state.apart,
            decisions=self._decisions if letter.compress else None,
            cramped=state.cramped,
        )

    def _staged(self, letter: Letter, arena_bytes: int) -> Staged:
        if arena_bytes > len(self._view):
            # For reading only: a fault of ours is not to change what the trainer might have to post once more.
            self._view = memoryview(mmap.mmap(self._arena, arena_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ))
        return RemoteStaged(letter, self._view, self._ask)

    def _ask(self, wave: int) -> Failure | None:
        """Have the trainer bring a wave; return why it did not. One that is gone has not staged the whole: it is discarded."""
        self.say(Bring(wave))
        received = self._channel.receive()
        if received is None:
            return messages.failure_of(_discarded())
        brought = messages.from_trainer(received)
        assert isinstance(brought, Brought)
        return brought.failure

    def say(self, message: FromWriter) -> None:
        """Tell the trainer, if there still is one."""
        with suppress(ChannelError):
            self._channel.send(messages.encode(message))

    def _outlive(self) -> None:
        """Wait for the end of the trainer; from then on what is being written has so long, and is the last."""
        while not has_ended(self._trainer, 1e6):
            pass
        # By the kernel, and its default: whatever the other thread is in, it ends this process, however many calls it holds.
        signal.setitimer(signal.ITIMER_REAL, self._hello.deadline_ms / 1e3)
        self._orphaned = True
        self._tell_that_the_trainer_is_gone()

    def _tell_that_the_trainer_is_gone(self) -> None:
        """Say so, once, and what is still being written: perhaps a save that was posted and not taken up when it died."""
        step = self._step
        if step is None or not self._orphaned:
            return
        try:
            self._untold.pop()
        except IndexError:
            return
        if self._lock is not None and self._hello.holder is not None:
            me = Writer(os.getpid(), process_start_time(os.getpid()) or 0, self._hello.deadline_ms)
            # Whoever starts next reads for what it waits. A name that cannot be written keeps nobody from anything.
            with suppress(OSError):
                rewrite(self._lock, sealed(self._hello.holder, replace(me, step=step)), Posix())
        self._events.write("trainer-gone", step=step, deadline_s=f"{self._hello.deadline_ms / 1e3:.3f}", writer=os.getpid())


class RemoteStaged(Staged):
    """Be what a trainer has staged, in the writer's process."""

    def __init__(self, letter: Letter, memory: memoryview, ask: Callable[[int], Failure | None]) -> None:
        logs = [Log(each.component, cast(LogMark, _Elsewhere(each.doubt)), each.rows_added) for each in letter.logs]
        super().__init__(
            letter.components, memory, waves=letter.waves, wave_bytes=letter.wave_bytes, bring=self._bring, logs=logs
        )
        self.can_bring = lambda: not self._whole
        self._ask = ask
        self._at = letter.wave
        self._whole = False
        """The trainer has brought the last wave, or given up: it goes on, and what was there before cannot be brought again."""

    def _bring(self, wave: int) -> None:
        failure = self._ask(wave)
        self._whole = failure is not None or wave == self.wave_count - 1
        if failure is not None:
            raise messages.error_of(failure)


class _Elsewhere(NamedTuple):
    """Stand for a log that is in the trainer."""

    doubt: str

    def settle(self, *_: object) -> None:
        """Do nothing: the trainer tells its logs what was saved of them."""


def _discarded() -> StoreError:
    return StoreError(
        "the trainer is gone, and had not staged all of its state", kind="staging-over", retryable=False, hint="start it again"
    )


class _Announced(set[str]):
    """Tell the trainer of each manifest before it is tried: if this process dies, it knows which one may be its own."""

    def __init__(self, process: WriterProcess, ids: set[str]) -> None:
        super().__init__(ids)
        self._process = process

    def add(self, write_id: str) -> None:
        super().add(write_id)
        self._process.say(Trying(write_id))


class _ToTheTrainer(logging.Handler):
    """Have what is logged here said in the trainer's log; once the trainer is gone, nobody reads it."""

    def __init__(self, process: WriterProcess) -> None:
        super().__init__()
        self._process = process

    def emit(self, record: logging.LogRecord) -> None:
        self._process.say(Note(record.levelno, record.getMessage()))
