"""Make parts of what was told about them: at a reader, who has the base, and at a service that is told the next version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from milepost.encode.digest import Buffer
from milepost.errors import CorruptError, MismatchError, NotFoundError, ServiceError
from milepost.service.deltas.telling import make
from milepost.service.index import Chunks, blob_of
from milepost.service.tiers.memory import MemoryTier
from milepost.service.transports.base import Blob, Source
from milepost.service.transports.folder import Folder
from milepost.service.transports.landing import Land, PrivateLanding
from milepost.service.transports.moving import Moved, Mover


@dataclass(frozen=True, slots=True)
class ToldPart:
    """Be a part of a version as it was offered: the blob that tells it, and what the reader has it told against."""

    blob: Blob
    told: Chunks
    base: Buffer
    chunks: Chunks
    """What the part must be."""


def fetch_told(
    mover: Mover,
    sources: Sequence[Source],
    parts: Mapping[str, ToldPart],
    *,
    land: Land = PrivateLanding,
    timeout_s: float | None = None,
) -> tuple[Moved, str]:
    """Return those of ``parts`` (by slot) that could be made of what was told, and why the others could not be, or nothing.

    The others are to be had whole. No base is changed, and nothing is handed out of which one chunk is wrong. At one time it
    takes the memory of one delta, which is less than its part, beside the new parts themselves.
    """
    moved, why = Moved({}), ""
    # In the order in which a mover lands parts: where landings are shared by readers, nobody waits in a ring.
    for slot, part in sorted(parts.items(), key=lambda item: item[1].chunks.digest):
        whole = Blob(part.blob.place, blob_of(slot))
        try:
            with closing(land(part.chunks)) as landing:
                missing = landing.missing()
                if missing and len(missing) < len(part.chunks):
                    continue  # somebody had begun to have it whole: that goes on where it was, and no byte is written twice
                if missing:
                    came = mover.fetch(sources, {part.blob: part.told}, limit_bytes=part.chunks.size_bytes, timeout_s=timeout_s)
                    for name, count in came.bytes_by.items():
                        moved.bytes_by[name] = moved.bytes_by.get(name, 0) + count
                    make(came.views[part.blob], part.base, landing.memory, part.chunks)
                    for number in missing:
                        landing.landed(number)
                moved.views[whole] = landing.finish()
        except (CorruptError, MismatchError, NotFoundError, ServiceError) as error:
            why = str(error)
    return moved, why


def take_told(memory: MemoryTier, told: Blob, base: Buffer, part: Blob, chunks: Chunks) -> None:
    """Make ``part`` in ``memory`` of the blob ``told``, which was brought, and ``base``. The blob goes, whatever comes of it.

    Raises `MismatchError` (kind ``wrong-base``), `CorruptError` (kind ``damaged-delta``), and what a tier raises; there is no
    such part then, and it is to be brought whole.
    """
    try:
        said = memory.map(told)
        into = Folder(memory.directory).map_new(part, chunks.size_bytes)
        try:
            make(said, base, into, chunks)
        except BaseException:
            memory.drop(part)
            raise
    finally:
        memory.drop(told)
