"""Commit a version: announce it, bring its parts, wait until it is visible; through restarts of the service, as one commit.

Each call may be said again. A part stays in memory until all is done, so that a service which has lost what was on its way
gets it once more, the same bytes, though training may have changed its tensors meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from milepost.errors import ConflictError, MilepostError, UsageError
from milepost.records import Version
from milepost.service.client.calls import Calls
from milepost.service.client.differing import Differences
from milepost.service.client.line import Broken
from milepost.service.client.until import Until
from milepost.service.client.ways import Ways
from milepost.service.core.records import Commit, Shard
from milepost.service.index import Chunks, blob_of, delta_of, is_slot
from milepost.service.packing import Parcel, fill
from milepost.service.proto import service_pb2 as pb
from milepost.service.transports.base import Blob
from milepost.service.wire import check_count, check_name, pack_commit, pack_shard, unpack_sources, unpack_weights

log = logging.getLogger("milepost")

_VERIFIED_BYTES_S = 50e6
"""How slowly a service may look at what has arrived, at worst: of a disk that many use."""
_BEGIN_AGAIN = frozenset(
    {"unknown-commit", "commit-timeout", "no-such-blob", "damaged-shard", "not-missing", "transport-failed", "unreachable"}
)
"""What a commit may hear whose service was started anew, or has swept what nobody brought in time."""
_BRING_WHOLE = frozenset({"wrong-base", "no-such-base", "damaged-delta", "no-such-blob", "not-announced"})
"""What a commit hears whose part could not be made of how it differs from the one before."""
_MOST_FAILURES = 8
_PAUSE_S = 0.05

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Done:
    """Say which version a commit has become."""

    at: Commit
    """Its place in the order of all; ``at.number`` is what people call it by."""
    version: Version
    durable: bool
    """Whether it, or one that it led to, survives the host."""
    key: str
    """What this commit is called: said again, it is the same one."""
    shards: tuple[Shard, ...]
    """Its parts, with their digests."""


@dataclass(slots=True)
class Underway:
    """Be a commit on its way. Made by ``begin``; of several processes each has its own."""

    key: str
    step: int
    commit_timestamp: int
    sizes: dict[str, int]
    parent: Commit | None
    until: Until
    brought: dict[str, tuple[memoryview, Chunks]] = field(default_factory=dict)
    """What this process has of it, packed, with its digests."""
    travelled: set[str] = field(default_factory=set)
    """The parts that went over a connection, and not into memory of this host."""
    whole: set[str] = field(default_factory=set)
    """The parts that the service could not make of how they differ."""
    bring: pb.Bring | None = None
    """What the service has answered last; None: it is to be asked, again."""
    is_alone: bool = False
    """Whether no other process brings parts of it."""
    there: set[str] = field(default_factory=set)
    """The parts of ``bring`` that are there by now. They may be those of a version already: nobody touches them any more."""
    announced: set[str] = field(default_factory=set)
    """The parts of which the service was told that they are there, whether it has heard of it or not."""

    @property
    def may_be_visible(self) -> bool:
        """Say whether all parts may be there: with the last one it becomes visible."""
        return self.announced >= self.sizes.keys() or (bool(self.announced) and not self.is_alone)

    @property
    def certain(self) -> str:
        """Return what is sure of it if the service is never heard of again."""
        if not self.may_be_visible:
            return "nothing was made visible"
        return f"it may have been made visible: commit again with key={self.key!r} finds out"


class Committing:
    """Be the writing side of one client, for several threads."""

    def __init__(self, calls: Calls, ways: Ways, differences: Differences, timeout_s: float) -> None:
        self._calls = calls
        self._ways = ways
        self._differences = differences
        self._timeout_s = timeout_s

    def underway(
        self, step: int, sizes: Mapping[str, int], key: str, parent: Commit | None, commit_timestamp: int | None
    ) -> Underway:
        """Return a commit that nobody has heard of yet."""
        check_name(key, "key")
        step = check_count(step, "step")
        for slot in sizes:
            if not is_slot(slot):
                hint = "letters, digits, `.`, `_` and `-`, beginning with a letter or digit; 128 at most"
                raise UsageError("a part may not have this name", kind="bad-part-name", hint=hint, part=slot)
        clock = self._calls.clock
        timestamp = clock.wall_ns() if commit_timestamp is None else check_count(commit_timestamp, "timestamp_ns")
        return Underway(key, step, timestamp, dict(sizes), parent, Until(clock, self._timeout_s))

    def commit(self, commit: Underway, parcels: Mapping[str, Parcel], *, durable: bool) -> Done:
        """Do all of it. Raises `ServiceError` (kind ``unreachable``) with what is certain of it; what it is refused with."""
        commit.is_alone = True
        return self._through(commit, parcels, lambda: self._end(commit, parcels, durable=durable))

    def begin(self, commit: Underway) -> None:
        """Announce a commit, and hear which of its parts are missing, and where they are to be brought."""
        request = pb.BeginRequest(
            caller=self._calls.caller,
            key=commit.key,
            step=commit.step,
            commit_timestamp=commit.commit_timestamp,
            slots=[pb.Slot(slot=slot, size_bytes=size) for slot, size in sorted(commit.sizes.items())],
            parent=pack_commit(commit.parent),
        )
        commit.bring = self._calls.ask("Begin", request, commit.until, certain=lambda: commit.certain)
        commit.there.clear()

    def bring(self, commit: Underway, slot: str, parcel: Parcel) -> None:
        """Bring one part of a commit of which others bring the rest."""
        self._through(commit, {slot: parcel}, lambda: None)

    def finish(self, commit: Underway, *, durable: bool) -> Done:
        """Wait until all parts of a commit are there, whoever brings them, and it is visible, or durable."""
        return self._through(commit, {}, lambda: self._end(commit, {}, durable=durable))

    def _through(self, commit: Underway, parcels: Mapping[str, Parcel], then: Callable[[], T]) -> T:
        """Begin, bring what is missing, of ``parcels`` or as it was brought before, and do ``then``; again where it was lost."""
        failures = 0
        while True:
            try:
                if commit.bring is None:
                    self.begin(commit)
                assert commit.bring is not None
                for slot in commit.bring.slots:
                    if slot not in commit.there and (slot in parcels or slot in commit.brought):
                        self._bring(commit, commit.bring, slot, parcels.get(slot))
                        commit.there.add(slot)
                return then()
            except MilepostError as error:
                failures += 1
                if error.kind not in _BEGIN_AGAIN or commit.until.is_over or failures > _MOST_FAILURES:
                    self._abort(commit, error)
                    raise
                log.info("a commit is begun again: key=%s cause=%s", commit.key, error.message)
                self._calls.closing.wait(min(_PAUSE_S * failures, commit.until.left_s))
            except BaseException as error:
                self._abort(commit, error)
                raise
            commit.bring = None

    def _bring(self, commit: Underway, where: pb.Bring, slot: str, parcel: Parcel | None) -> None:
        """Bring one part: one copy of its tensors, into the service's own memory where that is this host's."""
        blob = Blob(where.place, blob_of(slot))
        sinks = unpack_sources(where.sinks)
        size_bytes = commit.sizes[slot]
        room = self._ways.room(sinks, blob, size_bytes) if where.tier == "memory" else None
        if slot in commit.brought:
            memory, chunks = commit.brought[slot]
            if room is not None:
                room[:] = memory
        else:
            assert parcel is not None
            memory = room if room is not None else self._ways.own(size_bytes)
            chunks = fill(parcel, memory)
            commit.brought[slot] = memory, chunks
        if room is not None:
            self._arrived(commit, slot, chunks)
            return
        commit.travelled.add(slot)
        if slot in commit.whole or not self._told(commit, where, slot, memory, chunks):
            self._ways.bring(sinks, {blob: memory}, timeout_s=commit.until.left_s)
            self._arrived(commit, slot, chunks)

    def _told(self, commit: Underway, where: pb.Bring, slot: str, memory: memoryview, chunks: Chunks) -> bool:
        """Bring how a part differs from the version before, where that is less; return whether the service made it of that."""
        told = self._differences.told(where.service_keeps_base, slot, memory)
        if told is None:
            return False
        base, difference = told
        blob = Blob(where.place, delta_of(slot, base.number))
        try:
            self._ways.bring(unpack_sources(where.sinks), {blob: difference}, timeout_s=commit.until.left_s)
            self._arrived(commit, slot, chunks, base, pb.Shard(slot=blob.name, size_bytes=len(difference)))
        except MilepostError as error:
            if error.kind not in _BRING_WHOLE:
                raise
            log.info("a part is brought whole that was told: key=%s part=%s cause=%s", commit.key, slot, error.message)
            commit.whole.add(slot)
            return False
        return True

    def _arrived(
        self, commit: Underway, slot: str, chunks: Chunks, base: Commit | None = None, told: pb.Shard | None = None
    ) -> None:
        commit.announced.add(slot)
        request = pb.ArrivedRequest(
            caller=self._calls.caller, key=commit.key, shard=pack_shard(slot, chunks), base=pack_commit(base), told=told
        )
        wait_s = chunks.size_bytes / _VERIFIED_BYTES_S
        self._calls.ask("Arrived", request, commit.until, wait_s=wait_s, certain=lambda: commit.certain)

    def _end(self, commit: Underway, parcels: Mapping[str, Parcel], *, durable: bool) -> Done:
        done = self.wait(commit.key, commit.until, durable=durable, certain=lambda: commit.certain)
        self._compare(commit, parcels, done)
        self._differences.has_brought(done.at, {slot: commit.brought[slot][0] for slot in commit.travelled})
        commit.brought.clear()
        return done

    def wait(self, key: str, until: Until, *, durable: bool, certain: Callable[[], str] = lambda: "") -> Done:
        """Wait for a commit by its key."""

        def once() -> pb.Done:
            request = pb.FinishRequest(caller=self._calls.caller, key=key, durable=durable, wait_ms=until.left_ms)
            reply: pb.Done = self._calls.once("Finish", request, until, until.left_s)
            return reply

        reply = self._calls.keep_trying(once, until, certain)
        weights = unpack_weights(reply.weights).weights
        return Done(weights.at, weights.version, reply.durable, weights.key, weights.shards)

    def _compare(self, commit: Underway, parcels: Mapping[str, Parcel], done: Done) -> None:
        """Say so if something else has been committed under this key: samplers would have what the caller does not think."""
        there = {shard.slot: shard.digest for shard in done.shards}
        for slot, parcel in parcels.items():
            known = commit.brought.get(slot)
            chunks = known[1] if known is not None else fill(parcel, self._ways.own(parcel.size_bytes))
            if there.get(slot) != chunks.digest:
                raise ConflictError(
                    "other weights have been committed under this key",
                    kind="key-reused",
                    hint="give each commit a key of its own; without key= it gets one",
                    key=commit.key,
                    part=slot,
                    version=str(done.at),
                )

    def _abort(self, commit: Underway, why: BaseException) -> None:
        """Let go of what was brought, if the service can be told at once; else it gives up by itself."""
        reason = why.kind if isinstance(why, MilepostError) else type(why).__name__
        # A Ctrl-C may strike just when the service says that it has begun.
        may_have_begun = commit.bring is not None or not isinstance(why, Exception)
        if not may_have_begun or reason in ("superseded", "unreachable", "closed", "commit-timeout"):
            return
        try:
            request = pb.AbortRequest(caller=self._calls.caller, key=commit.key, reason=reason)
            self._calls.line.call("Abort", request, 1.0)
        except (Broken, MilepostError) as error:
            log.debug("a commit could not be given up: key=%s cause=%s", commit.key, error)
