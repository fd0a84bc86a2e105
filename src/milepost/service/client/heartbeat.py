"""Say now and then that this component is there, and give back what it reads no more, in a thread of its own."""

from __future__ import annotations

import logging
from queue import Empty, SimpleQueue

from milepost.errors import ConflictError, MilepostError, ServiceError
from milepost.service.client.calls import TRY_S, Calls
from milepost.service.client.line import Broken
from milepost.service.client.until import Until
from milepost.service.core.records import Commit
from milepost.service.proto import service_pb2 as pb
from milepost.service.wire import pack_commit
from milepost.threads import Member

log = logging.getLogger("milepost")

_LAST_WORDS_S = 2.0


class Heartbeat:
    """Be the thread. It knows the calls, and not the client: one that is dropped is freed, and ends it."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        # A queue and no event: the garbage collector may strike anywhere, and what it frees is given back by putting it here.
        self._inbox: SimpleQueue[Commit | None] = SimpleQueue()
        self._unsaid: dict[Commit, None] = {}
        self.is_held = False
        """Whether a trainer holds sampling, as it was said last."""
        self._thread = Member(self._serve, "milepost-heartbeat")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def release(self, at: Commit) -> None:
        """Have the service know that a version is read no more. May be called from a destructor, in any thread."""
        self._inbox.put(at)

    def stop(self, *, goodbye: bool) -> None:
        """End, and with ``goodbye`` let the service know. The thread is gone when this returns."""
        self._inbox.put(None)
        self._thread.wait_out()
        if goodbye:
            try:
                self._calls.line.call("Goodbye", pb.GoodbyeRequest(caller=self._calls.caller), _LAST_WORDS_S)
            except (Broken, MilepostError) as error:
                log.debug("could not say goodbye: cause=%s", error)  # it is found out by the silence

    def _serve(self) -> None:
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
                    return
                next_ns = clock.monotonic_ns() + every_ns
            self._give_back()

    def _beat(self) -> bool:
        """Say that this component is there; return whether it still is the one."""
        calls = self._calls
        known = calls.joined
        try:
            reply = calls.line.call("Heartbeat", pb.HeartbeatRequest(caller=calls.caller), TRY_S)
            self.is_held = reply.is_held
            if known is not None and reply.term != known.term:
                calls.join(Until(calls.clock, TRY_S), known)
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
        return True

    def _rejoin(self) -> bool:
        try:
            self._calls.join(Until(self._calls.clock, TRY_S), self._calls.joined)
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
            try:
                request = pb.ReleaseRequest(caller=self._calls.caller, at=pack_commit(at))
                self._calls.line.call("Release", request, TRY_S)
            except Broken:
                return  # at the next beat
            except MilepostError as error:
                log.debug("nothing is to be given back: version=%s cause=%s", at, error)
            del self._unsaid[at]
