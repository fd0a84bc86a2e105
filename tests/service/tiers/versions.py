"""Make up versions, and put their bytes into a tier."""

from __future__ import annotations

from collections.abc import Iterable

from milepost.records import Version
from milepost.service.core.records import Commit, Committed, Weights
from milepost.service.index import Chunks, Index, blob_of
from milepost.service.tiers.disk import DiskTier
from milepost.service.tiers.memory import MemoryTier
from milepost.service.transports.base import Blob

CHUNK = 1000


def contents(number: int, sizes: Iterable[int] = (2500, 0, 1000)) -> dict[str, bytes]:
    """Return the bytes of each slot of a version: none is like another's."""
    return {f"part{at}": bytes((number * 7 + at + byte * 13) % 251 for byte in range(size)) for at, size in enumerate(sizes)}


def index_of(number: int, parts: dict[str, bytes] | None = None, component: str = "trainer") -> Index:
    parts = contents(number) if parts is None else parts
    return Index(component, f"k{number}", number * 10, {slot: Chunks.of(data, CHUNK) for slot, data in parts.items()})


def weights_of(index: Index, number: int, parent: Commit | None = None, term: int = 1) -> Weights:
    version = Version("0" * 32, index.step, 1_700_000_000_000_000_000 + number)
    return Weights(Commit(term, number), version, index.shards, parent, index.component, "i1", index.key)


def committed(number: int, parent: int | None = None, term: int = 1) -> Committed:
    at = None if parent is None else Commit(term, parent)
    return Committed(weights_of(index_of(number), number, at, term))


def bring(tier: MemoryTier | DiskTier, number: int, parts: dict[str, bytes] | None = None, *, whole: bool = True) -> Index:
    """Put a version into a tier, as the service does: its blobs, then its index."""
    parts = contents(number) if parts is None else parts
    index = index_of(number, parts)
    for slot, data in parts.items():
        blob = Blob(index.place, blob_of(slot))
        tier.new_blob(blob, len(data))
        for start in range(0, len(data), 700):
            tier.write(blob, start, data[start : start + 700])
        tier.finish(blob)
    if whole:
        tier.write_index(index)
    return index


def read_all(tier: MemoryTier | DiskTier, index: Index) -> dict[str, bytes]:
    """Return the bytes of each slot, as `read_into` gives them."""
    found = {}
    for slot, chunks in index.chunks.items():
        into = bytearray(chunks.size_bytes)
        tier.read_into(Blob(index.place, blob_of(slot)), 0, memoryview(into))
        found[slot] = bytes(into)
    return found
