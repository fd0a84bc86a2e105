"""Make a call until it is answered: through restarts of the service, for as long as the caller waits."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from milepost.clock import Clock, draw
from milepost.errors import ConflictError, CorruptError, MilepostError, NotFoundError, ServiceError, StoreError, UsageError
from milepost.service.client.line import Broken, Line, is_transient
from milepost.service.client.until import Until
from milepost.service.core.events import Caller
from milepost.service.core.records import Commit, Role
from milepost.service.proto import service_pb2 as pb
from milepost.service.wire import PROTOCOL, pack_caller, unpack_commit

log = logging.getLogger("milepost")

TRY_S = 30.0
"""How long one try may take beyond what it is to wait for."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class Identity:
    """Say who this client is."""

    caller: Caller
    role: Role
    epoch: int
    step: int | None
    run_id: str
    host: str
    machine: str
    pid: int


@dataclass(frozen=True, slots=True)
class Joined:
    """Say what the service has answered to hello."""

    run_id: str
    term: int
    heartbeat_s: float
    live: Commit | None
    durable: Commit | None


class Calls:
    """Be the calls of one client, from any thread."""

    def __init__(self, line: Line, identity: Identity, clock: Clock) -> None:
        self.line = line
        self.identity = identity
        self.clock = clock
        self.closing = threading.Event()
        self.joined: Joined | None = None
        self._joining = threading.Lock()
        self._superseded: ConflictError | None = None

    @property
    def caller(self) -> pb.Caller:
        """Return who calls, for a message."""
        return pack_caller(self.identity.caller)

    def ask(
        self, method: str, request: Any, until: Until, *, wait_s: float = 0.0, certain: Callable[[], str] = lambda: ""
    ) -> Any:
        """Return the answer. ``wait_s``: how long the service may take for it; ``certain``: what is sure if it never comes.

        Raises the error that the service refuses it with; `ServiceError` (kind ``unreachable``) once ``until`` is over, and
        `ConflictError` (kind ``superseded``) for good once another process has taken this one's place.
        """
        return self.keep_trying(lambda: self.once(method, request, until, wait_s), until, certain)

    def once(self, method: str, request: Any, until: Until, wait_s: float = 0.0) -> Any:
        """Try once, and say hello before where the service does not know this client. Raises `Broken`, or the refusal."""
        self.check()
        timeout_s = min(wait_s + TRY_S, max(until.left_s, 0.001) + wait_s)
        try:
            try:
                return self.line.call(method, request, timeout_s)
            except ServiceError as error:
                if error.kind != "not-joined":
                    raise
                self.join(until, self.joined)
                return self.line.call(method, request, timeout_s)
        except ConflictError as error:
            if error.kind == "superseded":
                self._superseded = error
            raise

    def keep_trying(self, attempt: Callable[[], Any], until: Until, certain: Callable[[], str] = lambda: "") -> Any:
        """Return what ``attempt`` returns, once it is not `Broken` any more."""
        pause_s, told = _FIRST_PAUSE_S, False
        while True:
            try:
                return attempt()
            except Broken as error:
                why: Exception = error
            except MilepostError as error:
                if error.kind == "bad-token" and self.joined is not None and self._renew():
                    continue  # the service has another one since it was started anew
                if not is_transient(error) and not _is_not_there_yet(error, self.joined):
                    raise
                why = error
            if until.is_over:
                raise self._unreachable(until, certain(), why) from why
            if not told and until.passed_s > 1.0:
                log.warning("the checkpoint service does not answer, trying again: address=%s cause=%s", self.line.address, why)
                told = True
            self._pause(min(pause_s * (0.5 + draw(self.clock)), until.left_s))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            self._renew()

    def join(self, until: Until, known: Joined | None = None) -> Joined:
        """Say hello, unless another thread has done so since ``known``."""
        with self._joining:
            if self.joined is not None and self.joined is not known:
                return self.joined
            me = self.identity
            request = pb.HelloRequest(
                caller=self.caller,
                role=me.role,
                epoch=me.epoch,
                step=me.step,
                run_id=me.run_id,
                pid=me.pid,
                host=me.host,
                machine=me.machine,
                versions=[PROTOCOL],
            )
            welcome = self.line.call("Hello", request, min(TRY_S, max(until.left_s, 0.001)))
            self.joined = Joined(
                run_id=welcome.run_id,
                term=welcome.term,
                heartbeat_s=max(0.05, welcome.heartbeat_ms / 1000) if welcome.heartbeat_ms else 5.0,
                live=unpack_commit(welcome.live) if welcome.HasField("live") else None,
                durable=unpack_commit(welcome.durable) if welcome.HasField("durable") else None,
            )
            return self.joined

    def supersede(self, error: ConflictError) -> None:
        """Remember that another process has taken this one's place."""
        self._superseded = error

    def check(self) -> None:
        """Raise for a client that is closed, whose place another has taken, or that is another process's."""
        if os.getpid() != self.identity.pid:
            raise UsageError(
                "this client belongs to the process that this one was forked from",
                kind="forked",
                hint="connect in each process, under a name of its own",
                component=self.identity.caller.component,
                pid=self.identity.pid,
            )
        if self.closing.is_set():
            raise ServiceError("this client is closed", kind="closed", hint="connect again")
        if self._superseded is not None:
            before = self._superseded
            raise ConflictError(before.message, kind=before.kind, hint=before.hint, **before.facts)

    def _pause(self, seconds: float) -> None:
        self.closing.wait(seconds)
        self.check()

    def _renew(self) -> bool:
        try:
            return self.line.renew()
        except (NotFoundError, StoreError, CorruptError):
            return False  # it is said by the next try, if it stays so

    def _unreachable(self, until: Until, certain: str, why: Exception) -> MilepostError:
        if isinstance(why, NotFoundError):
            return why  # nobody has said where the service is: that is clearer
        return ServiceError(
            "the checkpoint service cannot be reached",
            kind="unreachable",
            hint="is it up? milepost status asks it, milepost serve starts it",
            address=self.line.address,
            for_s=round(until.passed_s, 1),
            certain=certain or None,
            cause=why,
        )


def _is_not_there_yet(error: MilepostError, joined: Joined | None) -> bool:
    """Say whether a service may have been started that has not said yet where it listens."""
    return error.kind == "no-service" and isinstance(error, NotFoundError) and joined is None
