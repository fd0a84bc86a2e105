"""Say what one version is made of, byte by byte: its parts, their chunks, and the names under which they lie.

A part is one safetensors file. It is checked in chunks, so that of a damaged one only a chunk is fetched again, and so that a
transfer that was cut off goes on where it was; the digest of a part is the digest of the digests of its chunks. Nothing is ever
renamed: where a version's bytes lie follows from who brought it under which key, which no other commit has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import xxhash

from milepost.encode.digest import Buffer, seal, unseal, xxh3
from milepost.errors import CorruptError
from milepost.service.core.records import Shard, Weights

CHUNK_BYTES = 4 << 20
INDEX_NAME = "index.json"
DELTA = ".from-"
"""What the name of a blob has that tells a part against another version; no part's own name has it."""
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Chunks:
    """Be the digests of a blob's chunks: XXH3-128, 16 bytes each, one after the other."""

    size_bytes: int
    digests: bytes
    chunk_bytes: int = CHUNK_BYTES

    @classmethod
    def of(cls, data: Buffer, chunk_bytes: int = CHUNK_BYTES) -> Chunks:
        """Digest ``data``. Lets go of the interpreter while it does."""
        view = memoryview(data).cast("B")
        pieces = (view[start : start + chunk_bytes] for start in range(0, len(view), chunk_bytes))
        return cls(len(view), b"".join(map(xxhash.xxh3_128_digest, pieces)), chunk_bytes)

    def __len__(self) -> int:
        return -(-self.size_bytes // self.chunk_bytes)

    @property
    def digest(self) -> str:
        """Return the digest of the whole."""
        return xxh3(self.digests)

    def range_of(self, number: int) -> tuple[int, int]:
        """Return which bytes ``[start, stop)`` a chunk is."""
        start = number * self.chunk_bytes
        return start, min(start + self.chunk_bytes, self.size_bytes)

    def matches(self, number: int, data: Buffer) -> bool:
        """Return whether these are the bytes of a chunk."""
        at = number * _DIGEST_BYTES
        return xxhash.xxh3_128_digest(data) == self.digests[at : at + _DIGEST_BYTES]

    def wrong(self, data: Buffer) -> Iterator[int]:
        """Yield the numbers of the chunks of ``data`` that are not as they should be."""
        view = memoryview(data).cast("B")
        for number in range(len(self)):
            start, stop = self.range_of(number)
            if not self.matches(number, view[start:stop]):
                yield number

    @property
    def is_sound(self) -> bool:
        """Return whether there is one digest for each chunk."""
        return self.size_bytes >= 0 and self.chunk_bytes > 0 and len(self.digests) == len(self) * _DIGEST_BYTES


@dataclass(frozen=True, slots=True)
class Index:
    """Be the record that lies beside the bytes of a version: whose they are, and what each of them is.

    It is written when all parts are there, and before it is written down that the version is visible: bytes without it are no
    version. Which version it is the service's journal knows.
    """

    component: str
    key: str
    step: int
    chunks: dict[str, Chunks]
    """By slot."""

    @property
    def shards(self) -> tuple[Shard, ...]:
        """Return the parts, in the order of their slots."""
        return tuple(Shard(slot, chunks.size_bytes, chunks.digest) for slot, chunks in sorted(self.chunks.items()))

    @property
    def place(self) -> str:
        """Return where its bytes lie."""
        return place_of(self.component, self.key, self.step)

    def encode(self) -> bytes:
        """Return it as a sealed record."""
        return seal(msgspec.json.encode(self))

    @classmethod
    def decode(cls, record: bytes, what: str) -> Index:
        """Return what `encode` was given. Raises `CorruptError` (kind ``damaged-record``) for anything else."""
        try:
            index = _decoder.decode(unseal(record, what))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _damaged(what) from error
        if not all(chunks.is_sound for chunks in index.chunks.values()):
            raise _damaged(what)
        return index


_decoder = msgspec.json.Decoder(Index)


def place_of(component: str, key: str, step: int) -> str:
    """Return under which directory the bytes of a commit lie, in memory and on disk; the step is there for people.

    >>> place_of("trainer", "a1-7", 120)
    '000000000120-1264475e082cb6a3'
    """
    named = xxh3(f"{component}\n{key}".encode())
    return f"{max(step, 0):012d}-{named[:16]}"


def place_of_weights(weights: Weights) -> str:
    """Return where the bytes of a version lie."""
    return place_of(weights.producer, weights.key, weights.version.step)


def blob_of(slot: str) -> str:
    """Return the name of a part's file in its place."""
    return f"{slot}.safetensors"


def delta_of(slot: str, base: int) -> str:
    """Return the name of the blob that tells a part against the version of this number."""
    return f"{slot}{DELTA}{base}"


def is_slot(name: str) -> bool:
    """Return whether a part may have this name: what a file may be called everywhere, and no other file here is."""
    return (
        0 < len(name) <= 128
        and name.isascii()
        and all(letter.isalnum() or letter in "._-" for letter in name)
        and name[0] not in ".-"
        and DELTA not in name
    )


def _damaged(what: str) -> CorruptError:
    return CorruptError(
        "the record beside a version's bytes is damaged",
        kind="damaged-record",
        hint="milepost status says where else this version is",
        what=what,
    )
