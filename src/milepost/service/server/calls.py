"""Turn each call of a client into what the core hears, and the core's answer into what the client is told."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import wraps
from typing import Any, TypeVar, get_args

import grpc
import grpc.aio

from milepost.errors import MilepostError, StoreError
from milepost.service import wire
from milepost.service.core.events import (
    Abort,
    Accepted,
    Answer,
    Arrived,
    Begin,
    Bring,
    Done,
    Fetch,
    Finish,
    Goodbye,
    Heartbeat,
    Hello,
    Hold,
    Link,
    Refused,
    Release,
    Request,
    Resume,
    RollBack,
    Take,
    Welcome,
)
from milepost.service.core.records import Commit, Role
from milepost.service.index import is_slot, place_of
from milepost.service.proto import service_pb2 as pb
from milepost.service.proto.service_pb2_grpc import CheckpointsServicer
from milepost.service.server.bringing import arrive, base_of
from milepost.service.server.offering import offer
from milepost.service.server.pieces import receive, send
from milepost.service.server.refusing import Refusal, refuse
from milepost.service.server.reporting import Report, news
from milepost.service.server.shell import IN_DOUBT, Shell
from milepost.service.server.ways import Ways
from milepost.service.settings import ServiceSettings

A = TypeVar("A")
Context = grpc.aio.ServicerContext[Any, Any]
MAX_UNDER_WAY = 1024
MAX_KEYS = 1024
MAX_WAIT_S = 3600.0
_SHORT = ("Heartbeat", "Goodbye", "Abort", "Release", "Status")
"""Calls that are answered at once, however many others wait: without them a reader would be taken for dead in a flood."""


def call(method: Callable[..., Awaitable[A]]) -> Callable[..., Awaitable[A]]:
    """End a call as it ought to be ended when it is refused, or says what cannot be."""

    @wraps(method)
    async def answered(self: Calls, request: Any, context: Context) -> A:
        async with self.admitted(context, is_short=method.__name__ in _SHORT):
            return await method(self, request, context)
        raise AssertionError("a call that was ended went on")

    return answered


class Calls(CheckpointsServicer):
    """Be the service as a connection sees it."""

    def __init__(self, shell: Shell, ways: Ways, settings: ServiceSettings, run_id: str, report: Report) -> None:
        self._shell = shell
        self._ways = ways
        self._settings = settings
        self._run_id = run_id
        self._report = report
        self._open = 0
        self._rolled_back: OrderedDict[tuple[str, str, str], None] = OrderedDict()

    @asynccontextmanager
    async def admitted(self, context: Context, *, is_short: bool = False) -> AsyncIterator[None]:
        """Answer a call inside, unless too many are open; refuse it as what is raised inside says."""
        if self._open >= self._settings.max_calls and not is_short:
            self._shell.counts["refused.too-many"] += 1
            # Without a refusal behind it: nothing is known about what was asked, and it is to be asked again, a little later.
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls are open: come again")
        self._open += not is_short
        try:
            yield
            return
        except Refusal as refusal:
            refused = refusal.refused
        except MilepostError as error:
            refused = wire.refused_of(error)
        finally:
            self._open -= not is_short
        self.count(refused)
        if refused is IN_DOUBT:
            await context.abort(grpc.StatusCode.UNAVAILABLE, IN_DOUBT.message)
        await refuse(context, refused)

    def count(self, refused: Refused) -> None:
        """Count a refusal."""
        self._shell.counts[f"refused.{refused.kind}"] += 1

    async def _ask(self, kind: type[A], make: Callable[[Request], Any], *, wait_s: float = 0) -> A:
        return _expect(kind, await self._shell.ask(make, wait_s=wait_s))

    def _until_ns(self, wait_s: float) -> int:
        return self._shell.clock.monotonic_ns() + round(wait_s * 1e9)

    # Who is there.

    @call
    async def Hello(self, request: pb.HelloRequest, context: Context) -> pb.Welcome:
        caller, role = wire.unpack_caller(request.caller), _role(request.role)
        if request.versions and wire.PROTOCOL not in request.versions:
            facts = {"server": wire.PROTOCOL, "client": ", ".join(request.versions[:8])}
            hint = "install the same milepost on both sides"
            raise Refusal(Refused("no-protocol", "server and client have no version of the protocol in common", hint, facts))
        if request.run_id not in ("", self._run_id):
            facts = {"run_id": self._run_id, "asked_for": request.run_id}
            hint = "connect to the root of that run; its service/endpoint.json says where its service listens"
            raise Refusal(Refused("other-run", "this is the service of another run", hint, facts))
        wire.bounded(request.epoch, "epoch")
        step = request.step if request.HasField("step") else None
        welcome = await self._ask(Welcome, lambda name: Hello(name, caller, role, request.epoch, step))
        self._report.joins(caller, request.host[: wire.MAX_NAME], request.machine[: wire.MAX_NAME], request.pid)
        return pb.Welcome(
            live=wire.pack_commit(welcome.live),
            durable=wire.pack_commit(welcome.durable),
            run_id=self._run_id,
            term=self._shell.core.catalogue.term,
            heartbeat_ms=round(self._settings.heartbeat_s * 1e3),
            server_host=self._ways.host,
        )

    @call
    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatReply:
        caller, catalogue = wire.unpack_caller(request.caller), self._shell.core.catalogue
        refused = self._shell.core.refusal(caller)
        if refused is not None:
            raise Refusal(refused)
        said = [wire.unpack_commit(at) for at in request.reads[: wire.MAX_SLOTS]]
        reads = frozenset(at for at in said if at is not None) if request.tells_reads else None
        self._shell.tell(Heartbeat(caller, reads))
        return pb.HeartbeatReply(
            live=wire.pack_commit(catalogue.live),
            durable=wire.pack_commit(catalogue.durable),
            term=catalogue.term,
            is_held=bool(catalogue.held),
        )

    @call
    async def Goodbye(self, request: pb.GoodbyeRequest, context: Context) -> pb.Accepted:
        self._shell.tell(Goodbye(wire.unpack_caller(request.caller)))
        return pb.Accepted()

    # A commit.

    @call
    async def Begin(self, request: pb.BeginRequest, context: Context) -> pb.Bring:
        caller, key = wire.unpack_caller(request.caller), wire.check_name(request.key, "key")
        sizes = tuple((_slot(each.slot), wire.bounded(each.size_bytes, "size")) for each in _slots(request))
        wire.bounded(request.step, "step")
        wire.bounded(request.commit_timestamp, "commit_timestamp")
        under_way = len(self._shell.core.under_way())
        if under_way >= MAX_UNDER_WAY and self._shell.places.of_key(caller, key) is None:
            hint = "finish or abort those that are under way"
            raise Refusal(Refused("too-many", "too many commits are under way", hint, {"under_way": under_way}))
        parent = wire.unpack_commit(request.parent)
        free = self._free_bytes()
        bring = await self._ask(
            Bring, lambda name: Begin(name, caller, key, request.step, request.commit_timestamp, sizes, parent, free)
        )
        place = place_of(caller.component, key, request.step)
        await self._shell.cleared(place)
        base = base_of(self._shell, caller, key)
        return pb.Bring(
            slots=bring.slots,
            tier=bring.tier,
            place=place,
            sinks=map(wire.pack_source, self._ways.sinks(bring.tier)),
            service_keeps_base=0 if base is None else base.number,
        )

    def _free_bytes(self) -> int | None:
        with suppress(StoreError):  # its directory was taken away: that is told elsewhere
            return self._shell.storage.memory.free_bytes()
        return None

    @call
    async def Upload(self, pieces: AsyncIterator[pb.Piece], context: Context) -> pb.Accepted:
        await receive(self._shell, pieces)
        return pb.Accepted()

    @call
    async def Arrived(self, request: pb.ArrivedRequest, context: Context) -> pb.Accepted:
        caller, key = wire.unpack_caller(request.caller), wire.check_name(request.key, "key")
        shard, chunks = wire.unpack_shard(request.shard)
        base = wire.unpack_commit(request.base)
        told = None if base is None else (base, wire.bounded(request.told.size_bytes, "size"))
        await arrive(self._shell, caller, key, shard, chunks, told)
        await self._ask(Accepted, lambda name: Arrived(name, caller, key, shard))
        return pb.Accepted()

    @call
    async def Finish(self, request: pb.FinishRequest, context: Context) -> pb.Done:
        caller, key = wire.unpack_caller(request.caller), wire.check_name(request.key, "key")
        wait_s = min(max(request.wait_ms, 0) / 1e3, MAX_WAIT_S)
        until_ns = self._until_ns(wait_s)
        done = await self._ask(Done, lambda name: Finish(name, caller, key, request.durable, until_ns), wait_s=wait_s)
        return pb.Done(weights=wire.pack_weights(done.weights, self._shell.places.chunks(done.weights)), durable=done.durable)

    @call
    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.Accepted:
        key = wire.check_name(request.key, "key")
        self._shell.tell(Abort(wire.unpack_caller(request.caller), key, request.reason[:1024]))
        return pb.Accepted()

    @call
    async def Link(self, request: pb.LinkRequest, context: Context) -> pb.Accepted:
        caller, at = wire.unpack_caller(request.caller), _at(request.at)
        wire.bounded(request.generation, "generation")
        await self._ask(Accepted, lambda name: Link(name, caller, at, request.generation))
        return pb.Accepted()

    # A reader.

    @call
    async def Fetch(self, request: pb.FetchRequest, context: Context) -> pb.FetchReply:
        caller, want = wire.unpack_caller(request.caller), request.want or "newest"
        if want not in ("newest", "exact", "at least"):
            raise wire.bad_message("a fetch wants `newest`, `exact` or `at least`", want=want[: wire.MAX_NAME])
        has, at = wire.unpack_commit(request.has), wire.unpack_commit(request.at)
        wait_s = min(max(request.wait_ms, 0) / 1e3, self._settings.fetch_timeout_s)
        until_ns = self._until_ns(wait_s)
        answer = await self._shell.ask(
            lambda name: Fetch(name, caller, has, until_ns, want, at),  # type: ignore[arg-type]  # it was looked at
            wait_s=wait_s,
        )
        if not isinstance(answer, Take):
            return pb.FetchReply(not_modified=pb.NotModified(at=wire.pack_commit(getattr(answer, "at", None))))
        self._shell.counts["fetches"] += 1
        weights = wire.pack_weights(answer.weights, self._shell.places.chunks(answer.weights))
        return pb.FetchReply(take=pb.Take(weights=weights, sources=map(wire.pack_source, self._ways.sources(answer.tiers))))

    @call
    async def Offer(self, request: pb.OfferRequest, context: Context) -> pb.OfferReply:
        wire.unpack_caller(request.caller)
        return await offer(self._shell.offers, self._shell.core.catalogue, self._shell.places, request)

    async def Download(self, request: pb.DownloadRequest, context: Context) -> AsyncIterator[pb.Piece]:
        async with self.admitted(context):
            wire.unpack_caller(request.caller)
            async for piece in send(self._shell, request):
                yield piece

    @call
    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.Accepted:
        self._shell.tell(Release(wire.unpack_caller(request.caller), _at(request.at)))
        return pb.Accepted()

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.News]:
        async with self.admitted(context):
            refused = self._shell.watchers.full()
            if refused is not None:
                raise Refusal(refused)
            async for reason in self._shell.watchers.watch():
                yield news(self._shell, reason)

    # Everybody.

    @call
    async def RollBack(self, request: pb.RollBackRequest, context: Context) -> pb.Accepted:
        said = (request.caller.component, request.caller.incarnation, request.key)
        if request.key and said in self._rolled_back:
            return pb.Accepted()
        catalogue = self._shell.core.catalogue
        to = next((at for at in catalogue.weights if at.number == request.number), Commit(0, request.number))
        await self._ask(Accepted, lambda name: RollBack(name, to, request.reason[:1024]))
        if request.key:
            self._rolled_back[said] = None
            while len(self._rolled_back) > MAX_KEYS:
                self._rolled_back.popitem(last=False)
        return pb.Accepted()

    @call
    async def Hold(self, request: pb.HoldRequest, context: Context) -> pb.Accepted:
        caller = wire.unpack_caller(request.caller)
        await self._ask(Accepted, lambda name: Hold(name, caller))
        return pb.Accepted()

    @call
    async def Resume(self, request: pb.ResumeRequest, context: Context) -> pb.Accepted:
        caller = wire.unpack_caller(request.caller)
        await self._ask(Accepted, lambda name: Resume(name, caller))
        return pb.Accepted()

    @call
    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.StatusReply:
        return await self._report.status()


def _expect(kind: type[A], answer: Answer) -> A:
    assert isinstance(answer, kind), answer
    return answer


def _role(role: str) -> Role:
    for known in get_args(Role):
        if role == known:
            return known  # type: ignore[no-any-return]  # it is one of them
    raise wire.bad_message(f"a role is one of {', '.join(get_args(Role))}", role=role[: wire.MAX_NAME])


def _slots(request: pb.BeginRequest) -> Any:
    if len(request.slots) > wire.MAX_SLOTS:
        raise wire.bad_message(f"a version has at most {wire.MAX_SLOTS} parts", parts=len(request.slots))
    return request.slots


def _slot(slot: str) -> str:
    if not is_slot(slot):
        raise wire.bad_message("a part may not have this name", slot=slot[: wire.MAX_NAME])
    return slot


def _at(message: pb.Commit) -> Commit:
    at = wire.unpack_commit(message)
    if at is None:
        raise wire.bad_message("which version is meant was not said")
    return at
