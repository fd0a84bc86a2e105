"""Start a writer process, talk to it, and wait for its end: one `WriterChild` for each process."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from types import UnionType
from typing import Any

from milepost.engine import forks, messages
from milepost.engine.channel import Channel, ChannelError
from milepost.engine.messages import Brought, Done, Hello, Note, Over, Posted, State, Trying
from milepost.engine.session import Session
from milepost.engine.shared_arena import MemoryFile
from milepost.errors import StoreError
from milepost.publish.signed import unwrapped
from milepost.store.base import Guard
from milepost.store.local import LocalStore
from milepost.store.lock import FileGuard
from milepost.store.process import Writer, process_start_time
from milepost.text import name_of_signal

log = logging.getLogger("milepost")

START = "import sys; sys.path += sys.argv[2:]; from milepost.engine.writer_process import main; main(int(sys.argv[1]))"
"""What the process runs. Its arguments are the socket, and where the trainer has found milepost and what that stands on."""
_NEEDED = ("milepost", "msgspec", "numpy", "xxhash", "zstandard")
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""It computes nothing: a pool of threads would only take memory."""


class WriterChild:
    """Be one writer process, from its start to its end."""

    def __init__(self, session: Session, arena: int, letters: int, guard: Guard, deadline_ms: int) -> None:
        """Start it. It listens after a tenth of a second; what is sent meanwhile waits for it. Raises `StoreError`."""
        self.announced: list[str] = []
        """The write ids of the manifests that it was about to create."""
        self._complaints = MemoryFile("milepost-complaints")
        """What it says on its standard error. Nobody's terminal or pipe is kept open by it."""
        self._process: subprocess.Popen[bytes] | None = None
        self._ends: tuple[socket.socket, ...] = ()
        try:
            self._start(session, (arena, letters), guard, deadline_ms)
        except OSError as error:
            self.kill()
            raise _not_started(session, error) from error
        except BaseException:  # a Ctrl-C: one that was not greeted could make sense of nothing
            self.kill()
            raise

    def _start(self, session: Session, shared: tuple[int, int], guard: Guard, deadline_ms: int) -> None:
        with forks.no_fork():
            self._ends = ours, theirs = socket.socketpair()
            forks.withhold(ours.fileno())
            self._channel = Channel(ours)
            self._process = self._started(theirs.fileno())
            # Ours alone holds it open from here on, and sees it end with the process.
            theirs.close()
        forks.tell(self._forget)
        self._greet(self._process.pid, session, shared, guard, deadline_ms)

    def _started(self, descriptor: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-I", "-S", "-X", "faulthandler", "-c", START, str(descriptor), *_places()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._complaints.descriptor,
            pass_fds=(descriptor,),
            cwd="/",
            env={**os.environ, **_ONE_THREAD},
            start_new_session=True,  # a Ctrl-C, or a signal to the trainer's group, is not for it
        )

    def _greet(self, pid: int, session: Session, shared: tuple[int, int], guard: Guard, deadline_ms: int) -> None:
        """Name it in the lock file, and only then hand it the lock: whoever finds that held must know by whom."""
        store, key = unwrapped(session.store)
        assert isinstance(store, LocalStore)
        holder, lock = (guard.holder, guard.descriptor) if isinstance(guard, FileGuard) else (None, None)
        started = process_start_time(pid)
        if isinstance(guard, FileGuard) and started is not None:
            guard.name_writer(Writer(pid, started, deadline_ms))
        chain, attempt = session.chain, session.provenance.attempt
        hello = Hello(store.root, key, chain.run_id, chain.term, attempt, deadline_ms, holder if lock is not None else None)
        trainer = os.pidfd_open(os.getpid())
        try:
            with suppress(ChannelError):  # it is dead already: whoever waits for it finds that, and why
                descriptors = [*shared, trainer, *([lock] if lock is not None else [])]
                self._channel.send(messages.encode(hello), descriptors)
        finally:
            os.close(trainer)

    def send(self, message: Posted | Brought) -> bool:
        """Tell it of a save, or of a part of it; return whether there was anybody to tell."""
        try:
            self._channel.send(messages.encode(message))
        except ChannelError:
            return False
        return True

    def hear(self, kind: type | UnionType, within_s: float | None = None) -> Any:
        """Wait for a message of this kind, and attend to those before it; None if the process has ended."""
        while (received := self._channel.receive(within_s)) is not None:
            message = messages.from_writer(received)
            if isinstance(message, Trying):
                self.announced.append(message.write_id)
            elif isinstance(message, Note):
                log.log(message.level, "%s", message.text)
            if isinstance(message, kind):
                return message
        return None

    def finish(self, take: Callable[[State], object], within_s: float | None) -> None:
        """Say that there will be no more, and hear what it still has to say until it ends. Raises `TimeoutError`."""
        self._channel.end()
        while (message := self.hear(object, within_s)) is not None:
            if isinstance(message, Done | Over):
                take(message.state)

    def kill(self) -> None:
        """End it at once, if it has begun, and wait for that."""
        if self._process is not None:
            self._process.kill()
            self.end()
        self._close()

    def _close(self) -> None:
        for end in self._ends:
            forks.release(end.fileno())
            end.close()
        self._complaints.close()

    def end(self) -> str:
        """Wait for the end of the process, and say what it died of. It has closed its side, or is about to."""
        assert self._process is not None
        status = self._process.wait()
        forks.untell(self._forget)
        complaint = self._complaints.end().decode(errors="replace").strip()
        self._close()
        how = f"was killed by {name_of_signal(-status)}" if status < 0 else f"ended with status {status}"
        return f"{how}: {complaint}" if complaint else how

    def _forget(self) -> None:
        """Own nothing in a forked child: the process is not its child."""
        if self._process is not None:
            self._process.returncode = 0


def _places() -> list[str]:
    """Return where the trainer has found what the writer needs: it is to look nowhere else, in the working directory say."""
    found: dict[str, None] = {}
    for name in _NEEDED:
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            found[os.path.dirname(os.path.abspath(spec.submodule_search_locations[0]))] = None
    return list(found)


def _not_started(session: Session, error: OSError) -> StoreError:
    return StoreError(
        "the writer process could not be started",
        kind="no-writer",
        retryable=True,
        hint='look at the limits of processes and memory, or use writer="thread"',
        root=session.store.url,
        cause=str(error),
    )
