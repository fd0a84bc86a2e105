"""Fetch a version: ask which, get its bytes by the best way, and never hand out two mixed."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence

from milepost.errors import MilepostError, NotFoundError, ServiceError
from milepost.service.client.calls import Calls
from milepost.service.client.differing import Differences
from milepost.service.client.given import Want
from milepost.service.client.heartbeat import Heartbeat
from milepost.service.client.leases import Leases
from milepost.service.client.until import Until
from milepost.service.client.ways import Ways
from milepost.service.client.weights import Weights, part_of
from milepost.service.core.records import Commit
from milepost.service.index import blob_of
from milepost.service.proto import service_pb2 as pb
from milepost.service.transports.base import Blob, Source
from milepost.service.wire import Told, pack_commit, unpack_sources, unpack_weights

log = logging.getLogger("milepost")

_ASK_AGAIN = frozenset({"no-such-blob", "transport-failed", "unreachable"})
_WAIT_ON = frozenset({"not-yet", "held"})
_OUT_OF_TIME = frozenset({"unreachable", "fetch-timeout"})
_PAUSE_S, _LAST_S = 0.1, 1.0


class Fetching:
    """Be the reading side of one client, for several threads."""

    def __init__(
        self,
        calls: Calls,
        ways: Ways,
        differences: Differences,
        heartbeat: Heartbeat,
        timeout_s: float,
        limit_bytes: int | None,
    ) -> None:
        self._calls = calls
        self._ways = ways
        self._differences = differences
        self._leases = Leases(heartbeat.release)
        self._timeout_s = timeout_s
        self._limit_bytes = limit_bytes if limit_bytes is not None else _all_memory()
        self._changing = threading.Lock()
        self.has: Commit | None = None
        """What was fetched last: whether there is news is judged by it."""

    def running(self) -> list[Commit]:
        """Return which versions this process reads."""
        return self._leases.running()

    def fetch(self, wait_s: float, want: Want, at: Commit | None, parts: Sequence[str], has: Commit | None) -> Weights | None:
        """Return a version other than ``has``; None if there is none, also after a wait for it.

        A version that is gone before its bytes are here is no error: it is asked again what there is.
        """
        # The wait is the caller's; the time that the service is away comes on top of it.
        news, patience = Until(self._calls.clock, wait_s), Until(self._calls.clock, wait_s + self._timeout_s)
        why: MilepostError | None = None
        while True:
            is_last = patience.left_s < _LAST_S
            try:
                take = self._ask(news, patience, want, at, has)
                if take is not None:
                    return self._take(*take, parts, patience)
                if news.is_over:
                    return None
            except (NotFoundError, ServiceError) as error:
                # The service lets nobody wait for longer than it is set to.
                if error.kind in _WAIT_ON and not news.is_over:
                    continue
                if why is not None and is_last and error.kind in _OUT_OF_TIME:
                    raise why from error  # that there was no time left for one more try is not what is wrong
                if error.kind not in _ASK_AGAIN or patience.is_over:
                    raise
                why = error
                log.info("a version is asked for again: cause=%s", error.message)
                self._calls.closing.wait(min(_PAUSE_S, patience.left_s))

    def _ask(
        self, news: Until, patience: Until, want: Want, at: Commit | None, has: Commit | None
    ) -> tuple[Told, tuple[Source, ...]] | None:
        def once() -> pb.FetchReply:
            request = pb.FetchRequest(
                caller=self._calls.caller,
                has=pack_commit(has),
                want=want,
                at=pack_commit(at),
                wait_ms=news.left_ms,
            )
            reply: pb.FetchReply = self._calls.once("Fetch", request, patience, news.left_s)
            return reply

        reply = self._calls.keep_trying(once, patience, lambda: "nothing was changed")
        if reply.WhichOneof("answer") != "take":
            return None
        return unpack_weights(reply.take.weights), unpack_sources(reply.take.sources)

    def _take(self, told: Told, sources: Sequence[Source], parts: Sequence[str], patience: Until) -> Weights:
        # From here on it is kept for this process, until nobody refers to the lease.
        lease = self._leases.begin(told.weights.at)
        blobs = {}
        for slot in _slots(told, parts):
            if slot not in told.chunks:
                raise ServiceError(
                    "the service does not say what a part consists of",
                    kind="bad-message",
                    hint="milepost --version on both sides: they may be too far apart",
                    part=slot,
                )
            blobs[slot] = Blob(told.place, blob_of(slot))
        views = self._differences.fetch(told, sources, blobs, limit_bytes=self._limit_bytes, until=patience)
        whole = {blob: told.chunks[slot] for slot, blob in blobs.items() if blob not in views}
        if whole:
            views |= self._ways.fetch(sources, whole, limit_bytes=self._limit_bytes, timeout_s=patience.left_s)
        parts_here = {slot: views[blob] for slot, blob in blobs.items()}
        self._differences.has_read(told, sources, parts_here)
        weights = Weights(told.weights, parts_here, lease)
        with self._changing:
            self.has = told.weights.at
        return weights


def _slots(told: Told, parts: Sequence[str]) -> list[str]:
    """Return the slots of the parts that are wanted. Raises `NotFoundError` (kind ``no-such-part``) for one that is not there."""
    there = [shard.slot for shard in told.weights.shards]
    missing = [part for part in parts if part not in there and part not in map(part_of, there)]
    if missing:
        raise NotFoundError(
            "this version has no such part",
            kind="no-such-part",
            hint="fetch those it has, or commit it with parts={...}",
            part=missing[0],
            version=str(told.weights.at),
            has=", ".join(there),
        )
    return [slot for slot in there if slot in parts or part_of(slot) in parts]


def _all_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
