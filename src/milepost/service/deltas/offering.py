"""Tell versions against those that readers have, when somebody asks for it: each once for all who ask, in a thread apart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import SimpleQueue

from milepost.encode.digest import Buffer
from milepost.errors import MilepostError, NotFoundError
from milepost.service.delta.settings import How
from milepost.service.deltas.telling import most_bytes, tell
from milepost.service.index import DELTA, Chunks, blob_of, delta_of
from milepost.service.tiers.memory import MemoryTier
from milepost.service.transports.base import Blob
from milepost.threads import Member

MOST_WAITING = 256
"""How many deltas may be asked for and not made yet: who comes next has the part whole."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Want one part of a version told against the same part of another."""

    base_place: str
    base_number: int
    place: str
    slot: str

    @property
    def blob(self) -> Blob:
        """Return the blob that tells it."""
        return Blob(self.place, delta_of(self.slot, self.base_number))


@dataclass(slots=True, eq=False)
class _Work:
    wish: Wish
    how: How
    made: Future[Chunks | None] = field(default_factory=Future)
    part_bytes: int = 0
    size_bytes: int = 0

    def is_for(self, how: How) -> bool:
        """Return whether what came of it, or will, is an answer for a reader with such a link."""
        if not self.made.done():
            return True
        return self.made.result() is not None or how.link_bytes_s >= self.how.link_bytes_s


class Offers:
    """Make deltas in ``memory``, of ``most_bytes`` in all; ``part`` returns a part's bytes, or None, wherever they lie.

    Begins with `start`, ends with `close`. To be used from any thread; `ask` does not wait.
    """

    def __init__(self, memory: MemoryTier, part: Callable[[Blob], Buffer | None], *, how: How, most_bytes: int) -> None:
        self._memory, self._part, self._how, self._most_bytes = memory, part, how, most_bytes
        self._works: dict[Wish, _Work] = {}
        """What was asked for last comes last."""
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._changing = threading.Lock()
        """Never held while bytes move: an event loop waits for it."""
        self._writing = threading.Lock()
        self._thread: Member | None = None
        self.last_failure = ""

    def start(self) -> None:
        """Begin to work. What an earlier service has told is let go of: nobody counts it."""
        for place in self._memory.places():
            for name in self._memory.names(place):
                if DELTA in name:
                    self._memory.drop(Blob(place, name))
        self._thread = Member(self._run, "milepost-deltas")
        self._thread.start()

    def close(self) -> None:
        """Wait for what is being made, and make no more: who waits for others has the part whole. Not to be started again."""
        with self._changing:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.wait_out()

    def ask(self, wish: Wish, link_bytes_s: float = 0.0) -> Future[Chunks | None]:
        """Return what will be the blob that tells it; None if the part itself is less, or there sooner.

        ``link_bytes_s``: how fast the reader gets bytes; 0: as fast as is usual here.
        """
        how = replace(self._how, link_bytes_s=link_bytes_s) if 0 < link_bytes_s < float("inf") else self._how
        with self._changing:
            work = self._works.pop(wish, None)
            if work is None or not work.is_for(how):
                if self._thread is None or self._queue.qsize() >= MOST_WAITING:
                    return _answer(None)
                work = _Work(wish, how)
                work.made.set_running_or_notify_cancel()  # one who no longer waits takes it from nobody else
                self._queue.put(work)
            self._works[wish] = work
        if work.made.done() and work.size_bytes >= most_bytes(work.part_bytes, how):
            return _answer(None)
        return work.made

    def forget(self, place: str) -> None:
        """Make nothing more in a place. When it returns, the place may be erased: nothing comes there afterwards."""
        with self._changing:
            for wish in [wish for wish in self._works if wish.place == place]:
                del self._works[wish]
        with self._writing:
            pass

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            made = None
            try:
                made = self._made(work) if self._thread is not None else None
                self.last_failure = ""
            except NotFoundError:
                pass  # let go of meanwhile
            except Exception as error:  # noqa: BLE001 - no reader waits for ever, and each has another way
                self.last_failure = str(error) if isinstance(error, MilepostError) else repr(error)
            work.made.set_result(made)

    def _made(self, work: _Work) -> Chunks | None:
        wish = work.wish
        base = self._part(Blob(wish.base_place, blob_of(wish.slot)))
        new = self._part(Blob(wish.place, blob_of(wish.slot)))
        if base is None or new is None or not self._is_wanted(work):
            return None
        told = tell(base, new, work.how)
        if told is None:
            return None
        work.part_bytes, size_bytes = memoryview(new).nbytes, sum(map(len, told))
        with self._writing:
            if not self._is_wanted(work) or not self._has_room(work, size_bytes):
                return None
            self._write(wish.blob, told, size_bytes)
            work.size_bytes = size_bytes
            return Chunks.of(self._memory.map(wish.blob))

    def _is_wanted(self, work: _Work) -> bool:
        with self._changing:
            return self._works.get(work.wish) is work

    def _has_room(self, work: _Work, size_bytes: int) -> bool:
        """Make room by letting go of what was not asked for for longest; return whether there is enough."""
        with self._changing:
            held = [other for other in self._works.values() if other.size_bytes and other is not work]
            left_bytes = self._most_bytes - size_bytes - sum(other.size_bytes for other in held)
            gone = []
            while held and left_bytes < 0 <= self._most_bytes - size_bytes:
                gone.append(held.pop(0))
                left_bytes += gone[-1].size_bytes
                del self._works[gone[-1].wish]
        for other in gone:
            self._memory.drop(other.wish.blob)
        return left_bytes >= 0

    def _write(self, blob: Blob, told: Sequence[Buffer], size_bytes: int) -> None:
        self._memory.new_blob(blob, size_bytes)
        try:
            start = 0
            for piece in told:
                self._memory.write(blob, start, piece)
                start += len(piece)
        except BaseException:
            self._memory.drop(blob)
            raise


def _answer(chunks: Chunks | None) -> Future[Chunks | None]:
    answer: Future[Chunks | None] = Future()
    answer.set_result(chunks)
    return answer
