"""Write a version from memory to disk, so that it outlives this host."""

from __future__ import annotations

from contextlib import suppress

from milepost.errors import CorruptError, StoreError
from milepost.service.index import Chunks, Index, blob_of
from milepost.service.tiers.disk import DiskTier
from milepost.service.tiers.memory import MemoryTier
from milepost.service.transports.base import Blob


def spill(index: Index, memory: MemoryTier, disk: DiskTier) -> None:
    """Write all of a version, durably: it is whole on disk when this returns, and no version there if it does not.

    What is there already, whole, stays; what an attempt before has left goes first. Raises `StoreError` as the store says, and
    `CorruptError` (kind ``damaged-shard``) for memory that is not what was brought: damage is never made durable.
    """
    with suppress(CorruptError):  # a damaged record: written anew
        if disk.index(index.place) == index:
            return
    disk.erase(index.place)
    try:
        for slot, chunks in index.chunks.items():
            _copy(Blob(index.place, blob_of(slot)), chunks, memory, disk)
    except BaseException:
        with suppress(StoreError):
            disk.erase(index.place)  # a full disk needs the room
        raise
    # The index last: from here on a service that begins anew finds a version that is durable.
    disk.write_index(index)


def _copy(blob: Blob, chunks: Chunks, memory: MemoryTier, disk: DiskTier) -> None:
    view = memory.map(blob)
    disk.new_blob(blob, chunks.size_bytes)
    for number in range(len(chunks)):
        start, stop = chunks.range_of(number)
        if not chunks.matches(number, view[start:stop]):
            raise CorruptError(
                "the bytes in memory are not those that were brought",
                kind="damaged-shard",
                hint="commit it again; if it comes again, test this machine's memory",
                blob=str(blob),
                chunk=number,
            )
        disk.write(blob, start, view[start:stop])
    disk.finish(blob)
