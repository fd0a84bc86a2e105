"""Say the words of the service in those of its protocol, and read them back: what both sides of a connection share.

What is read comes from a peer, who may say anything: it is checked here, once, and is sound from then on.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from milepost.errors import (
    ConflictError,
    CorruptError,
    MilepostError,
    NotFoundError,
    ServiceError,
    StoreError,
    UsageError,
)
from milepost.records import Version
from milepost.service.core.events import Caller, Refused
from milepost.service.core.records import Commit, Shard, Weights
from milepost.service.index import Chunks, is_slot, place_of_weights
from milepost.service.proto import service_pb2 as pb
from milepost.service.transports.base import Source

PROTOCOL = "v1"
"""The versions of the protocol that are spoken here; there is one."""
REFUSED = "milepost-refused-bin"
"""Under which name a refusal travels behind a status."""
MAX_MESSAGE_BYTES = 16 << 20
"""The largest message that is sent or taken: about 4 TB of weights, told by the digests of their chunks."""
MAX_PIECE_BYTES = 1 << 20
MAX_NAME = 128
MAX_SLOTS = 16384
MAX_CHUNK_BYTES = 64 << 20
_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class Told:
    """Be a version as a client hears of it: what it is, the digests of its chunks by slot, and where its bytes lie."""

    weights: Weights
    chunks: Mapping[str, Chunks]
    place: str


def bad_message(what: str, **facts: object) -> UsageError:
    """Say that a peer said what cannot be."""
    hint = "it is a fault of the program that sent it: its milepost and the server's may be too far apart"
    return UsageError(f"a message of the service says what cannot be: {what}", kind="bad-message", hint=hint, **facts)


def check_name(name: str, what: str) -> str:
    """Return a name that a component, an incarnation or a key may have: short, of printable letters, and not empty."""
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise bad_message(f"a {what} is 1 to {MAX_NAME} printable characters", name=name[:MAX_NAME])
    return name


def check_count(value: object, what: str) -> int:
    """Return a number that a step or a time may be, as a plain one. Raises `UsageError` (kind ``bad-number``)."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if isinstance(value, bool) or not 0 <= number < _INT64:
        hint = "pass a whole number from 0 to 2**63 - 1"
        raise UsageError(
            f"a {what} is a whole number, and not below 0", kind="bad-number", hint=hint, given=repr(value)[:MAX_NAME]
        )
    return number


# Who, and where in the order of all.


def pack_caller(caller: Caller) -> pb.Caller:
    """Say who calls."""
    return pb.Caller(component=caller.component, incarnation=caller.incarnation)


def unpack_caller(message: pb.Caller) -> Caller:
    """Read who calls."""
    return Caller(check_name(message.component, "component"), check_name(message.incarnation, "incarnation"))


def pack_commit(at: Commit | None) -> pb.Commit | None:
    """Say which version; None leaves the field unset."""
    return None if at is None else pb.Commit(term=at.term, number=at.number)


def unpack_commit(message: pb.Commit) -> Commit | None:
    """Read which version; None where the field is unset, or all of it is zero."""
    if message.term == 0 and message.number == 0:
        return None
    return Commit(bounded(message.term, "term"), bounded(message.number, "number"))


# What a version is.


def pack_shard(slot: str, chunks: Chunks) -> pb.Shard:
    """Say what a part is: its size, and the digest of each of its chunks."""
    return pb.Shard(
        slot=slot,
        size_bytes=chunks.size_bytes,
        digest=chunks.digest,
        chunk_bytes=chunks.chunk_bytes,
        chunk_digests=chunks.digests,
    )


def unpack_shard(message: pb.Shard, *, is_blob: bool = False) -> tuple[Shard, Chunks]:
    """Read what a part is. ``is_blob``: its name is that of any blob. Raises `UsageError` (kind ``bad-message``)."""
    if not is_blob and not is_slot(message.slot):
        raise bad_message("a part may not have this name", slot=message.slot[:MAX_NAME])
    if not 0 < message.chunk_bytes <= MAX_CHUNK_BYTES:
        raise bad_message(f"a chunk has 1 to {MAX_CHUNK_BYTES} bytes", slot=message.slot, chunk_bytes=message.chunk_bytes)
    chunks = Chunks(bounded(message.size_bytes, "size"), message.chunk_digests, message.chunk_bytes)
    if not chunks.is_sound or chunks.digest != message.digest:
        raise bad_message("the digests of the chunks do not add up to the part's", slot=message.slot)
    return Shard(message.slot, chunks.size_bytes, chunks.digest), chunks


def pack_weights(weights: Weights, chunks: Mapping[str, Chunks]) -> pb.Weights:
    """Say what a version is. Of slots without ``chunks`` only size and digest are told."""
    return pb.Weights(
        at=pack_commit(weights.at),
        run_id=weights.version.run_id,
        step=weights.version.step,
        commit_timestamp=weights.version.commit_timestamp,
        shards=[
            pack_shard(shard.slot, chunks[shard.slot])
            if shard.slot in chunks
            else pb.Shard(slot=shard.slot, size_bytes=shard.size_bytes, digest=shard.digest)
            for shard in weights.shards
        ],
        parent=pack_commit(weights.parent),
        producer=weights.producer,
        incarnation=weights.incarnation,
        key=weights.key,
        place=place_of_weights(weights),
    )


def unpack_weights(message: pb.Weights) -> Told:
    """Read what a version is. Its place is computed from who brought it, not taken from the wire."""
    at = unpack_commit(message.at)
    if at is None:
        raise bad_message("a version has no place in the order of all")
    told = [_unpack_told(shard) for shard in message.shards]
    slots = [shard.slot for shard, _ in told]
    if len({*slots}) != len(slots) or len(slots) > MAX_SLOTS:
        raise bad_message("a part is told twice, or there are too many", parts=len(slots))
    weights = Weights(
        at=at,
        version=Version(message.run_id, message.step, message.commit_timestamp),
        shards=tuple(shard for shard, _ in told),
        parent=unpack_commit(message.parent),
        producer=check_name(message.producer, "component"),
        incarnation=check_name(message.incarnation, "incarnation"),
        key=check_name(message.key, "key"),
    )
    return Told(weights, {shard.slot: chunks for shard, chunks in told if chunks is not None}, place_of_weights(weights))


def _unpack_told(message: pb.Shard) -> tuple[Shard, Chunks | None]:
    if message.chunk_bytes:
        return unpack_shard(message)
    if not is_slot(message.slot):
        raise bad_message("a part may not have this name", slot=message.slot[:MAX_NAME])
    return Shard(message.slot, bounded(message.size_bytes, "size"), message.digest), None


def pack_source(source: Source) -> pb.Source:
    """Say one way to the bytes."""
    return pb.Source(transport=source.transport, address=source.address, host=source.host)


def unpack_sources(messages: Iterable[pb.Source]) -> tuple[Source, ...]:
    """Read the ways to the bytes."""
    return tuple(Source(each.transport, each.address, each.host) for each in messages)


def bounded(value: int, what: str) -> int:
    """Return a number that may be counted on with: from 0 up, within 64 bits."""
    if not 0 <= value < _INT64:
        raise bad_message(f"a {what} is out of all bounds", value=value)
    return value


# Refusals.

_ERRORS: dict[str, type[MilepostError]] = {
    "superseded": ConflictError,
    "fenced": ConflictError,
    "shard-differs": ConflictError,
    "unknown-version": NotFoundError,
    "no-such-blob": NotFoundError,
    "gone": NotFoundError,
    "bad-message": UsageError,
    "bad-shards": UsageError,
    "bad-setting": UsageError,
    "key-reused": UsageError,
    "not-announced": UsageError,
    "no-trainer": UsageError,
    "no-version": UsageError,
    "no-protocol": UsageError,
    "bad-token": UsageError,
    "other-run": UsageError,
    "damaged-shard": CorruptError,
    "bad-entry": CorruptError,
}
"""What the caller does next, by kind; all others are `ServiceError`."""

_NOT_FACTS = {"self", "message", "kind", "hint", "retryable", "undone", "differences"}


def pack_refused(refused: Refused) -> bytes:
    """Return a refusal as it travels behind a status. It is short: metadata has little room."""
    facts = {_cut(name, 64): _cut(str(value), 256) for name, value in [*refused.facts.items()][:12] if value is not None}
    message, hint = _cut(refused.message, 1024), _cut(refused.hint, 1024)
    return pb.Refused(kind=refused.kind, message=message, hint=hint, facts=facts).SerializeToString()


def _cut(text: str, limit_bytes: int) -> str:
    return text.encode("utf-8", "replace")[:limit_bytes].decode("utf-8", "ignore")


def unpack_refused(data: bytes) -> Refused:
    """Read a refusal."""
    message = pb.Refused.FromString(data)
    return Refused(message.kind, message.message, message.hint, {**message.facts})


def refused_of(error: MilepostError) -> Refused:
    """Say an error of the house as a refusal."""
    # A store does not know whose it is, and who is asked here keeps no generations.
    hint = error.hint.replace("keep fewer generations: Keep(last=...)", "keep fewer versions: milepost serve --disk-keep")
    return Refused(error.kind, error.message, hint, error.facts)


def error_of(refused: Refused) -> MilepostError:
    """Return the error of the house that a refusal is, for the caller to raise."""
    facts = {name: value for name, value in refused.facts.items() if name not in _NOT_FACTS}
    if refused.kind in ("disk-full", "quota", "not-written", "not-durable"):
        return StoreError(refused.message, kind=refused.kind, retryable=True, hint=refused.hint, undone=True, **facts)
    return _ERRORS.get(refused.kind, ServiceError)(refused.message, kind=refused.kind, hint=refused.hint, **facts)
