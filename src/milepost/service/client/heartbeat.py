"""Say now and then that this component is there, and give back what it reads no more, in a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue

from milepost.errors import ConflictError, MilepostError, ServiceError
from milepost.service.client.calls import Calls
from milepost.service.client.line import Broken
from milepost.service.client.until import Until
from milepost.service.core.records import Commit
from milepost.service.proto import service_pb2 as pb
from milepost.service.wire import pack_commit
from milepost.threads import Member

log = logging.getLogger("milepost")

_BEAT_S = 5.0
"""How long one call of this thread may take: whoever closes a client waits for it."""
_LAST_WORDS_S = 2.0


class Heartbeat:
    """Be the thread. It knows the calls, and not the client: one that is dropped is freed, and ends it.

    ``goodbye``: whether the service is told of the end. ``last``: what is done then, when no call is under way here any more.
    """

    def __init__(self, calls: Calls, last: Callable[[], object], *, goodbye: bool = True) -> None:
        self._calls, self._last, self._goodbye = calls, last, goodbye
        # A queue and no event: the garbage collector may strike anywhere, and what it frees is given back by putting it here.
        self._inbox: SimpleQueue[Commit | None] = SimpleQueue()
        self._unsaid: dict[Commit, None] = {}
        self.reads: Callable[[], Iterable[Commit]] | None = None
        """What tells which versions this component reads; None where other processes are it, too."""
        self._has_ended = False
        self._thread = Member(self._run, "milepost-heartbeat")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def release(self, at: Commit) -> None:
        """Have the service know that a version is read no more. May be called from a destructor, in any thread."""
        self._inbox.put(at)

    def let_go(self) -> None:
        """Have it end by itself. Takes no lock, waits for nothing: the garbage collector says it, in any thread, also in this."""
        self._inbox.put(None)

    def stop(self) -> None:
        """End, whatever strikes meanwhile. The thread is gone when this returns."""
        self._calls.closing.set()
        self.let_go()
        try:
            self._thread.wait_out()
        finally:
            self._end()  # of one that was never begun, or has failed

    def _run(self) -> None:
        self._serve()
        self._end()

    def _end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self._calls.closing.set()
        if self._goodbye and self._calls.joined is not None:
            try:
                self._calls.line.call("Goodbye", pb.GoodbyeRequest(caller=self._calls.caller), _LAST_WORDS_S)
            except (Broken, MilepostError) as error:
                log.debug("could not say goodbye: cause=%s", error)  # it is found out by the silence
        self._calls.line.close()
        self._last()

    def _serve(self) -> None:
        """Beat until let go; once another process has taken the place of this one, only wait for that."""
        clock = self._calls.clock
        next_ns = clock.monotonic_ns()
        while True:
            joined = self._calls.joined
            every_ns = round((joined.heartbeat_s if joined is not None else 1.0) * 1e9)
            try:
                said = self._inbox.get(timeout=max(0.0, (next_ns - clock.monotonic_ns()) / 1e9))
                if said is None:
                    return
                self._unsaid[said] = None
            except Empty:
                if not self._beat():
                    while self._inbox.get() is not None:
                        pass
                    return
                next_ns = clock.monotonic_ns() + every_ns
            self._give_back()

    def _beat(self) -> bool:
        """Say that this component is there; return whether it still is the one."""
        calls = self._calls
        known = calls.joined
        try:
            reply = calls.line.call("Heartbeat", self._said(), _BEAT_S)
            if known is not None and reply.term != known.term:
                calls.join(Until(calls.clock, _BEAT_S), known)
        except Broken as error:
            log.debug("a heartbeat was not heard: cause=%s", error)
            self._look_again()
        except ConflictError as error:
            calls.supersede(error)
            log.warning("another process has taken the place of this one: %s", error.message)
            return False
        except ServiceError as error:
            if error.kind == "not-joined":
                return self._rejoin()
        except MilepostError as error:
            log.debug("a heartbeat was refused: cause=%s", error)
            self._look_again()
        return True

    def _said(self) -> pb.HeartbeatRequest:
        if self.reads is None:
            return pb.HeartbeatRequest(caller=self._calls.caller)
        reads = [pb.Commit(term=at.term, number=at.number) for at in self.reads()]
        return pb.HeartbeatRequest(caller=self._calls.caller, reads=reads, tells_reads=True)

    def _rejoin(self) -> bool:
        try:
            self._calls.join(Until(self._calls.clock, _BEAT_S), self._calls.joined)
        except ConflictError as error:
            self._calls.supersede(error)
            return False
        except (Broken, MilepostError) as error:
            log.debug("could not say hello again: cause=%s", error)
        return True

    def _look_again(self) -> None:
        try:
            self._calls.line.renew()
        except MilepostError as error:
            log.debug("the service is not found: cause=%s", error)

    def _give_back(self) -> None:
        for at in [*self._unsaid]:
            if self.reads is not None and at in self.reads():
                del self._unsaid[at]  # it was fetched again meanwhile
                continue
            try:
                request = pb.ReleaseRequest(caller=self._calls.caller, at=pack_commit(at))
                self._calls.line.call("Release", request, _BEAT_S)
            except Broken:
                return  # at the next beat
            except MilepostError as error:
                log.debug("nothing is to be given back: version=%s cause=%s", at, error)
            del self._unsaid[at]
