"""Carry out what the core decides, and tell it what came of that. All of it in one event loop: the core is asked nowhere else."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from milepost.clock import Clock
from milepost.errors import ConflictError, InternalError, MilepostError
from milepost.service.core.events import (
    Accept,
    Action,
    Answer,
    Begin,
    Caller,
    Cancel,
    Discard,
    Erase,
    Erased,
    Event,
    Goodbye,
    Record,
    Recorded,
    Refused,
    Reply,
    Request,
    Settle,
    Spill,
    Spilled,
    Tick,
)
from milepost.service.core.records import Commit, Committed, Entry, Tier
from milepost.service.core.service import Service
from milepost.service.deltas.offering import Offers
from milepost.service.index import Index, place_of_weights
from milepost.service.server.happening import Attendance, Failed, Happening, Left, Mended
from milepost.service.server.places import Incoming, Places
from milepost.service.server.refusing import Refusal
from milepost.service.server.shelf import Shelf
from milepost.service.server.storage import Storage
from milepost.service.server.watching import Watchers
from milepost.service.snapshots import Snapshot

T = TypeVar("T")
WORKERS = 8
IN_DOUBT = Refused("in-doubt", "the service ends, and cannot say what was done", "ask the next one: make the call again")
"""What whoever waits is told where the journal has failed for good, or is another's; not as a refusal: that would be certain."""
ENDING = Refused("ending", "the service is ending", "connect again: whoever starts it next has all that was acknowledged")


class Shell:
    """Be what is around the core: who waits for an answer, what is being done, and the threads that do it.

    ``fatal`` is called, once, with what makes it impossible to go on; ``heard`` with each entry that was written down, and
    with what else happens.
    """

    def __init__(
        self,
        core: Service,
        storage: Storage,
        places: Places,
        offers: Offers,
        clock: Clock,
        fatal: Callable[[BaseException], None],
        heard: Callable[[Happening], None] = lambda _: None,
    ) -> None:
        self.core = core
        self.storage = storage
        self.places = places
        self.shelf = Shelf(storage, places)
        self.offers = offers
        self.watchers = Watchers()
        self.counts: Counter[str] = Counter()
        self.failures: dict[str, str] = {}
        """What the disk said last, by what it was to do; gone once that is done."""
        self.clock = clock
        self._fatal = fatal
        self._heard = heard
        self._attendance = Attendance()
        self._numbers = itertools.count(1)
        self._open: dict[Request, tuple[asyncio.Future[Answer], Event]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._erasures: dict[str, asyncio.Task[None]] = {}
        self._beside: dict[str, asyncio.Task[None]] = {}
        self._retries: list[Erase] = []
        self._strays: set[str] = set()
        self._journal = ThreadPoolExecutor(1, thread_name_prefix="milepost-journal")
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="milepost-service")
        self._is_ending = False
        self._is_silent = False

    @property
    def waiting(self) -> int:
        """Return how many calls wait for an answer of the core."""
        return len(self._open)

    @property
    def _last_word(self) -> Refused:
        return IN_DOUBT if self._is_silent else ENDING

    @contextmanager
    def counted(self, what: str) -> Iterator[None]:
        """Count that something is being done, inside."""
        self.counts[what] += 1
        try:
            yield
        finally:
            self.counts[what] -= 1

    # What the core is told.

    def tell(self, event: Event) -> None:
        """Let the core know of something, and do what it wants done."""
        leaving = event.caller if isinstance(event, Goodbye) and self._is_here(event.caller) else None
        try:
            for action in self.core.handle(event, self.clock.monotonic_ns()):
                self._do(action)
        except BaseException as error:  # what it has decided halfway nobody knows, whoever the call is that meets it
            self._fail(error)
            raise
        if leaving is not None:
            self._heard(Left(leaving.component))

    def _is_here(self, caller: Caller) -> bool:
        return self.core.refusal(caller) is None and self.core.heard_ns(caller) is not None

    async def ask(self, make: Callable[[Request], Event], *, wait_s: float = 0) -> Answer:
        """Return what the core answers. Raises `Refusal`. Who is cancelled has asked nothing.

        ``wait_s``: how long the answer may take; the core is told that time has passed when it has.
        """
        if self._is_ending:
            raise Refusal(self._last_word)
        request = str(next(self._numbers))
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        event = make(request)
        self._open[request] = future, event
        timer = loop.call_later(wait_s, self.tick) if wait_s > 0 else None
        try:
            self.tell(event)
            answer = await future
        except asyncio.CancelledError:
            self.tell(Cancel(request))
            raise
        finally:
            del self._open[request]
            if timer is not None:
                timer.cancel()
        if isinstance(answer, Refused):
            raise Refusal(answer)
        return answer

    def tick(self) -> None:
        """Let the core know that time has passed, and try again what could not be erased."""
        self.tell(Tick())
        retries, self._retries = self._retries, []
        for action in retries:
            self._start(self._erase(action))

    def look_around(self, lease_ns: int) -> None:
        """Say who has fallen silent, who is there again, and that time has passed."""
        for each in self._attendance.look(self.core, self.clock.monotonic_ns(), lease_ns):
            self._heard(each)
        self._heard(Tick())

    # What it wants done.

    def _do(self, action: Action) -> None:
        match action:
            case Reply(request, answer):
                self._reply(request, answer)
            case Record():
                self._start(self._record(action))
            case Accept(caller, key, tier):
                self._accept(caller.component, key, tier)
            case Discard(caller, key):
                incoming = self.places.discard(caller, key)
                if incoming is not None:
                    self._start_erasing(incoming.place, self._discard(incoming))
            case Settle(caller, key, at):
                incoming = self.places.discard(caller, key)
                assert incoming is not None
                self.places.keep(self.core.catalogue.weights[at], incoming.chunks)
            case Spill(at) if not self._is_ending:
                self._start(self._spill(at))
            case Erase() if not self._is_ending:
                self._start(self._erase(action))

    def _reply(self, request: Request, answer: Answer) -> None:
        waiting = self._open.get(request)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_result(answer)

    def _accept(self, component: str, key: str, tier: Tier) -> None:
        begin = next(
            event
            for _, event in reversed(self._open.values())
            if isinstance(event, Begin) and (event.caller.component, event.key) == (component, key)
        )
        self.places.accept(Incoming(begin.caller, key, begin.step, tier, dict(begin.sizes)))

    async def _record(self, record: Record) -> None:
        indexes = [self._index_of(entry) for entry in record.entries if isinstance(entry, Committed)]
        failure = await self._try("journal", lambda: self._write_down(indexes, record.entries), self._journal)
        if self._is_silent:
            return  # nothing may be said of it: it may be written down, or another service may take it
        self.tell(Recorded(record.ticket, failure))
        if not failure:
            self.counts.update(f"entries.{type(entry).__name__}" for entry in record.entries)
            self.watchers.tell(record.entries)
            for entry in record.entries:
                self._heard(entry)

    def _index_of(self, entry: Committed) -> tuple[Tier, Index]:
        weights = entry.weights
        incoming = self.places.incoming(weights.producer, weights.key, weights.version.step)
        assert incoming is not None
        return incoming.tier, incoming.index

    def _write_down(self, indexes: list[tuple[Tier, Index]], entries: tuple[Entry, ...]) -> None:
        # The index first: of a version that was written down, and has none, a service that begins anew would find no bytes.
        for tier, index in indexes:
            self.storage.tier(tier).write_index(index)
        self.storage.journal.append(entries)

    async def _spill(self, at: Commit) -> None:
        index = self._index(at)
        self.tell(Spilled(at, await self._try("spill", lambda: self.storage.spill(index))))

    def _index(self, at: Commit) -> Index:
        weights = self.core.catalogue.weights[at]
        return Index(weights.producer, weights.key, weights.version.step, dict(self.places.chunks(weights)))

    async def _erase(self, action: Erase) -> None:
        weights = self.core.catalogue.weights[action.at]
        place = place_of_weights(weights)

        def erase() -> None:
            if action.tier == "memory":
                self.offers.forget(place)  # what tells it lies beside it
            self.storage.tier(action.tier).erase(place)

        failure = await self._try("erase", erase)
        if failure:
            self._retries.append(action)
            return
        self.tell(Erased(action.at, action.tier))
        if not self.core.tiers(action.at):
            self.places.forget(weights)

    async def _discard(self, incoming: Incoming) -> None:
        def erase() -> None:
            incoming.end()
            self.storage.tier(incoming.tier).erase(incoming.place)

        await self._try("erase", erase)

    async def cleared(self, place: str) -> None:
        """Wait until nothing of an earlier commit is being erased any more where the bytes of a new one are to come."""
        while place in self._erasures:
            await asyncio.wait([self._erasures[place]])

    async def sweep(self) -> None:
        """Erase what lies in memory and is nobody's: what a process has brought there whose commit was given up meanwhile.

        Only what was nobody's the last time, too: the place of a commit that begins may be made before it is known here.
        """
        there: list[str] = []
        await self._try("sweep", lambda: there.extend(self.storage.memory.places()))
        strays = {*there} - self.places.known() - self._erasures.keys()
        for place in strays & self._strays:
            self._start_erasing(place, self._erase_stray(place))
        self._strays = strays

    async def _erase_stray(self, place: str) -> None:
        await self._try("erase", lambda: self.storage.memory.erase(place))

    async def check_fence(self) -> None:
        """End if another service has taken this root: nobody is to hear of the pointers as they were before."""
        await self._try("fence", self.storage.journal.check_fence, self._journal)

    async def snapshot(self) -> None:
        """Keep a copy of the journal in the root."""
        taken: list[Snapshot] = []
        await self._try("snapshot", lambda: taken.append(Snapshot.of(self.storage.journal)), self._journal)
        for snapshot in taken:
            await self._try("snapshot", lambda: snapshot.keep(self.storage.store))  # noqa: B023 - awaited within the turn

    def begin(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let something be done beside all else, unless it still is from the last time."""
        last = self._beside.get(name)
        if last is None or last.done():
            self._beside[name] = self._start(work())

    # How it is done.

    async def work(self, work: Callable[[], T]) -> T:
        """Return what some work comes to, done in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, work)

    async def _try(self, what: str, work: Callable[[], object], pool: ThreadPoolExecutor | None = None) -> str:
        """Do some work in a thread; return why it failed, or nothing."""
        try:
            await asyncio.get_running_loop().run_in_executor(pool or self._workers, work)
        except MilepostError as error:
            if what not in self.failures:
                self._heard(Failed(what, error))
            self.failures[what] = f"{what}: {_why(error)}"
            self.counts[f"failed.{what}"] += 1
            if pool is self._journal and (isinstance(error, ConflictError) or self.storage.journal.is_in_doubt):
                self._is_silent = True
                self._fatal(error)
            return f"{error.message} ({error.kind})"
        if self.failures.pop(what, None) is not None:
            self._heard(Mended(what))
        return ""

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _start_erasing(self, place: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._erasures[place] = self._start(work)
        task.add_done_callback(lambda _: self._erasures.pop(place) if self._erasures.get(place) is task else None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._fatal(error if isinstance(error, MilepostError) else _internal(error))

    # The end.

    def refuse_all(self) -> None:
        """Refuse what is asked from now on, and whoever waits for what others may do. What is being written down goes on."""
        self._is_ending = True
        self.watchers.close()

    async def settle(self) -> None:
        """Wait until all that is being done has come to its end, and been answered; answer the rest."""
        while self._tasks:
            await asyncio.wait([*self._tasks])
        for future, _ in self._open.values():
            if not future.done():
                future.set_result(self._last_word)

    def close(self) -> None:
        """Give the threads up. What they still do is waited for."""
        self._journal.shutdown()
        self._workers.shutdown()


def _why(error: MilepostError) -> str:
    """Return what went wrong, and with what, in a line. The hints of a store are for who saves generations there."""
    path = error.facts.get("path") or error.facts.get("name")
    return f"{error.message} ({error.kind})" + (f": {path}" if path else "")


def _internal(error: BaseException) -> InternalError:
    failure = InternalError("the service failed", kind="service-failed", hint="report this with its traceback", cause=error)
    failure.__cause__ = error
    return failure
