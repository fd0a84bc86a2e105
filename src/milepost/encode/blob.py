"""Lay leaves out as one safetensors file and stream it, hashing on the way.

The file opens with any safetensors reader. What safetensors has no name for (complex, long double, datetime, text,
big-endian, structured) is stored as ``U8`` with one more axis, the bytes of an element; the manifest knows the real dtype.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Protocol, TypeAlias

from milepost.encode.compress import Compressor, buffers
from milepost.encode.crew import Crew
from milepost.encode.digest import Buffer, Digest, digest_of
from milepost.encode.runs import Pool, address_of, runs
from milepost.errors import InternalError

PAGE_BYTES = 4096
"""What the data of a blob is aligned to, and the least that its header takes."""
_PIECE_BYTES = 16 << 20
"""How much is digested, and handed on to be written, at once. At each piece both threads ask training for the interpreter."""
_SMALL_BYTES = 1 << 20
_GATHER_BYTES = 4 << 20
_COPIED_BYTES = 8 << 20
"""How much is copied together before it is handed on, of a large blob: smaller direct writes cost a fifth of the speed."""
_QUEUED_PIECES = 2

View: TypeAlias = Buffer | Callable[[], Buffer]
"""A leaf's bytes, or what returns them when their turn comes."""

_ODD = re.compile("[%\x00-\x1f\x7f\ud800-\udfff]")
SAFETENSORS_DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}


@dataclass(frozen=True, slots=True)
class Item:
    """Name one leaf to lay out. ``dtype`` is that of `milepost.records.LeafSpec`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BlobLayout:
    """Say where each byte of a blob goes, before one is written."""

    header: bytes
    """Everything before the first leaf: length, JSON and padding; a multiple of 4096."""
    offsets: tuple[tuple[int, int], ...]
    """Bytes ``[start, stop)`` of the *file* (compressed, of what it unpacks to), in the order of the items."""
    order: tuple[int, ...]
    """The items' indices in the order of their bytes: larger alignments first."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class WrittenBlob:
    """Say what was written."""

    size_bytes: int
    """As stored."""
    digest: str
    """That of the whole file."""
    leaf_digests: tuple[str, ...]
    """That of each leaf, in the order of the items."""
    frames: tuple[tuple[int, int], ...] = ()
    """See `milepost.records.BlobRecord.frames`."""


class Sink(Protocol):
    """Take bytes in order, as `milepost.store.base.BlobWriter` does."""

    def write(self, data: Buffer, /) -> None:
        """Append ``data``."""


def layout(items: Sequence[Item], metadata: Mapping[str, str]) -> BlobLayout:
    """Return the layout of a blob with these leaves; pure.

    Names that safetensors would refuse or confuse (empty, repeated, ``__metadata__``, control characters) are escaped.
    """
    placed = order(items)
    spans = [(0, 0)] * len(items)
    stop = 0
    for index in placed:
        start, stop = stop, stop + items[index].size_bytes
        spans[index] = (start, stop)
    header = _header(items, _tensor_names(items), spans, metadata)
    base = len(header)
    return BlobLayout(header, tuple((base + start, base + stop) for start, stop in spans), placed, base + stop)


def order(items: Sequence[Item]) -> tuple[int, ...]:
    """Return the items' indices in the order of their bytes in the file: larger alignments first, else as given.

    Whoever lays the leaves out in memory in this order, without holes, has them written without a copy.
    """
    return tuple(sorted(range(len(items)), key=lambda index: (-alignment(items[index]), index)))


def write_blob(
    sink: Sink,
    plan: BlobLayout,
    views: Sequence[View],
    known: Sequence[str | None] = (),
    *,
    strong: bool = False,
    compress: Compressor | None = None,
) -> WrittenBlob:
    """Write the blob to ``sink`` in large pieces, in a thread beside the caller's, which digests the next piece meanwhile.

    ``views`` are the leaves' bytes in the order of the items. They stay as they are until this returns. ``known`` may give
    digests already computed (None where not). Digests are XXH3-128, or SHA-256 if ``strong``. With ``compress`` the sink
    gets a row of zstd frames, of which `milepost.encode.frames` reads any part.
    """
    leaves = _Leaves(plan, views, known, strong, cut=compress is None)
    whole = Digest(strong=strong)
    # A small blob needs no more than its size: to find and clear megabytes takes longer than all else.
    is_large = plan.size_bytes > _GATHER_BYTES
    pool = buffers() if compress else Pool(_COPIED_BYTES if is_large else plan.size_bytes, pages=is_large)
    frames: list[tuple[int, int]] = []
    size_bytes = 0
    # A small blob is one piece: there is nothing that its writing could overlap with.
    threads = 0 if plan.size_bytes <= _PIECE_BYTES else 1
    # Entered twice: see there.
    io = Crew(_writing(sink), threads=threads, ahead=1 if compress else _QUEUED_PIECES, name="milepost-io")
    with (
        io,
        io,
        compress.packing(pool, frames) if compress else nullcontext(partial(_pieces, pool)) as cut,
    ):
        for piece in io.map(_digested(whole, cut(plan.header, iter(leaves)))):
            size_bytes += len(piece)
            pool.give(piece)
    return WrittenBlob(size_bytes, whole.hex(), tuple(digest or "" for digest in leaves.digests), tuple(frames))


def _writing(sink: Sink) -> Callable[[memoryview], memoryview]:
    def write(piece: memoryview) -> memoryview:
        sink.write(piece)
        return piece

    return write


def _digested(whole: Digest, pieces: Iterable[memoryview]) -> Iterator[memoryview]:
    for piece in pieces:
        whole.update(piece)
        yield piece


class _Leaves:
    """Hand out the leaves' bytes in the order of the file, each looked at and digested when its turn comes."""

    def __init__(self, plan: BlobLayout, views: Sequence[View], known: Sequence[str | None], strong: bool, *, cut: bool) -> None:
        """With ``cut`` a large leaf is handed out in parts, so that the first is written while the next is digested."""
        self._plan = plan
        self._cut = cut
        self._views = views
        self._strong = strong
        self.digests: list[str | None] = list(known) if known else [None] * len(views)

    def __iter__(self) -> Iterator[memoryview]:
        for index in self._plan.order:
            view = self._views[index]
            data = memoryview(view() if callable(view) else view)
            start, stop = self._plan.offsets[index]
            if data.nbytes != stop - start:
                raise InternalError(
                    "a leaf has another size than its layout", kind="leaf-size", leaf=index, size_bytes=data.nbytes
                )
            data = data if data.format == "B" and data.ndim == 1 else data.cast("B")
            if self.digests[index] is None:
                if self._cut and len(data) > _PIECE_BYTES:
                    yield from self._in_parts(index, data)
                    continue
                self.digests[index] = digest_of(data, strong=self._strong)
            if len(data):
                yield data

    def _in_parts(self, index: int, data: memoryview) -> Iterator[memoryview]:
        digest = Digest(strong=self._strong)
        for start in range(0, len(data), _PIECE_BYTES):
            part = data[start : start + _PIECE_BYTES]
            digest.update(part)
            yield part
        self.digests[index] = digest.hex()


def _pieces(pool: Pool, header: bytes, leaves: Iterator[memoryview]) -> Iterator[memoryview]:
    """Hand on large runs as they lie in memory, where a direct write takes them so: on a page as in the file.

    All else is gathered, in memory that lies on a page as its place in the file does. A sink which has to copy cannot write
    meanwhile; here it is done beside the writing, while the processor has the bytes at hand from their digest.
    """
    room, start, stop, at = pool.take(), 0, 0, 0
    for run in runs(chain((memoryview(header),), leaves), _PIECE_BYTES):
        is_straight = len(run) >= _SMALL_BYTES and (address_of(run) - at) % PAGE_BYTES == 0
        at += len(run)
        if is_straight:
            if stop > start:
                yield room[start:stop]
                room = pool.take()
            yield run
            start = stop = at % PAGE_BYTES
            continue
        left = run
        while left:
            part = left[: len(room) - stop]
            room[stop : stop + len(part)] = part
            stop, left = stop + len(part), left[len(part) :]
            if stop == len(room):
                yield room[start:stop]
                room, start, stop = pool.take(), 0, 0
    if stop > start:
        yield room[start:stop]


def _header(items: Sequence[Item], names: Sequence[str], spans: Sequence[tuple[int, int]], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {_clean(key): _clean(value) for key, value in metadata.items()}}
    for item, name, span in zip(items, names, spans, strict=True):
        dtype, shape = _stored_as(item)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": span}
    text = json.dumps(entries, separators=(",", ":")).encode()
    # Trailing spaces are part of the format. With them the data starts on a page: a reader may map it, and a writer hands
    # page-aligned memory to the disk as it is.
    text += b" " * (-(8 + len(text)) % PAGE_BYTES)
    return len(text).to_bytes(8, "little") + text


def _stored_as(item: Item) -> tuple[str, list[int]]:
    dtype = SAFETENSORS_DTYPES.get(item.dtype)
    return (dtype, list(item.shape)) if dtype else ("U8", [*item.shape, _element_bytes(item)])


def _element_bytes(item: Item) -> int:
    count = math.prod(item.shape)
    return item.size_bytes // count if count else 0


def alignment(item: Item) -> int:
    """Return the largest power of two, 16 at most, that divides the leaf's element: leaves in falling order need no holes."""
    element = _element_bytes(item)
    return min(element & -element, 16) or 16


def _tensor_names(items: Sequence[Item]) -> list[str]:
    """Return a distinct name for each item; the escapes begin with ``%``, which no cleaned name has in that form."""
    names: list[str] = []
    counts: dict[str, int] = {}
    for item in items:
        name = _clean(item.name)
        name = f"%{name}" if name in ("", "__metadata__") else name
        count = counts[name] = counts.get(name, 0) + 1
        names.append(name if count == 1 else f"{name}%~{count}")
    return names


def _clean(text: str) -> str:
    return _ODD.sub(lambda match: f"%{ord(match[0]):02X}", text)
