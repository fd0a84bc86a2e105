"""Save a queue of items, episodes say, as a log: appended right, evicted left, and saved as what was appended.

A piece ``[a, b)`` is two leaves. The *index* is JSON: of each item its node, its leaves as ``[kind, dtype, shape, start,
stop]``, and how many bytes of the *data* leaf are its own; ``start`` and ``stop`` count from the first of these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, SupportsIndex

import msgspec

from milepost.errors import UsageError
from milepost.records import LeafSpec, Node
from milepost.state.leaves import KeptLeaf, LiveLeaf
from milepost.state.log import KnownPiece, Log, LogMark, Sink
from milepost.state.paths import type_name
from milepost.state.pieces import Span, still_visible, unsaved, visible
from milepost.state.rows import row_number

INDEX, DATA = "index", "data"
_ALWAYS_CHECKED = 64
"""A piece of more items is compared with live memory only where as many are new: to encode them takes a while."""

Encode = Callable[[Any, str], tuple[Node, Sequence[LiveLeaf]]]
"""Flatten one item."""


class Items:
    """Mark a queue as a log, so that a save writes only the items appended since the one before.

    ``items`` is a deque, with or without a ``maxlen``, or a list; each item is any tree of containers, arrays and scalars.
    Append and evict through this object:

    >>> from collections import deque
    >>> from milepost import Items
    >>> episodes = Items(deque(maxlen=2))
    >>> for length in (3, 5, 4):
    ...     episodes.append({"length": length})
    >>> episodes.count, episodes.start, len(episodes.items)
    (3, 1, 2)

    Items are numbered from 0, the first ever appended; `start` is the number of the oldest that is there. An item that is
    changed after a save needs a `touch`. Where the queue was changed by others the next save takes all of it, as far as its
    length and its newest item tell. ``count`` is how many have been appended ever; not given, those that are there.
    For the training thread only.
    """

    __slots__ = ("_count", "_newest", "_start", "items", "log")

    def __init__(self, items: deque[Any] | list[Any], *, count: SupportsIndex | None = None) -> None:
        if type(items) not in (deque, list):
            hint = "pass a collections.deque or a list"
            raise UsageError("a queue of items is neither", kind="bad-items", hint=hint, type=type_name(items))
        self.items = items
        self._count = len(items) if count is None else row_number(count)
        if self._count < len(items):
            hint = "count is how many items were ever appended"
            raise UsageError("more items than were appended", kind="bad-items", hint=hint, count=self._count, there=len(items))
        self._start = self._count - len(items)
        self._newest: Any = items[-1] if items else None
        self.log = Log()

    @property
    def count(self) -> int:
        """Return how many items were ever appended."""
        return self._count

    @property
    def start(self) -> int:
        """Return the number of the oldest item that is there; `count` if none is."""
        return self._count - len(self.items)

    @property
    def window(self) -> Span:
        """Return the numbers ``[start, stop)`` of the items that are there."""
        return self.start, self._count

    def append(self, item: Any) -> None:
        """Append an item; a deque that is full evicts its oldest."""
        self.items.append(item)
        self._count += 1
        self._newest = item

    def popleft(self) -> Any:
        """Take out the oldest item and return it."""
        return self.items.popleft() if isinstance(self.items, deque) else self.items.pop(0)

    def touch(self, number: SupportsIndex) -> None:
        """Say that the item of this number was changed. One that is gone, or that no save has seen yet, is passed over."""
        at = row_number(number)
        if at >= self.start:
            self.log.touch(at, at + 1)

    def doubt(self, reason: str) -> None:
        """Have the next save take all items, and tell ``reason``: something was changed that nobody counted."""
        self.log.forget(reason)

    def between(self, first: int, last: int) -> list[Any]:
        """Return the items numbered ``[first, last)``; takes no longer for those at the end of a long deque."""
        size, start, stop = len(self.items), first - self.start, last - self.start
        if size - stop < start:
            return list(islice(reversed(self.items), size - stop, size - start))[::-1]
        return list(islice(self.items, start, stop))

    def begin_load(self, items: Sequence[Any], count: int, node: Node) -> LogMark:
        """Take what was saved as ``node`` into the very same queue; settle the mark once all has verified."""
        self.items.clear()
        self.items.extend(items)
        self._count, self._start = count, count - len(self.items)
        self._newest = self.items[-1] if self.items else None
        self.log.forget()
        return self.log.mark(node, count, 0)

    def check(self) -> None:
        """Doubt everything if the queue was changed past this object; its items are then numbered from a new count."""
        newest = self.items[-1] if self.items else self._newest
        if self.start < self._start or newest is not self._newest:
            self._count = max(self._count, self._start + len(self.items))
            self.log.forget("the queue was changed, and not by its Items")
        self._start, self._newest = self.start, newest

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a queue of which nothing is saved yet."""
        return partial(Items, count=self._count), (self.items,)

    def __repr__(self) -> str:
        return f"Items({type(self.items).__name__}; start={self.start}, count={self.count})"


@dataclass(frozen=True, slots=True)
class _Piece:
    """Hold what one piece is made of."""

    span: Span
    index: bytes
    leaves: tuple[LiveLeaf, ...]
    size_bytes: int


def _copy_data(leaves: Sequence[LiveLeaf], into: memoryview) -> None:
    at = 0
    for leaf in leaves:
        leaf.copy_into(into[at : at + leaf.size_bytes])
        at += leaf.size_bytes


def _copy_index(data: bytes, into: memoryview) -> None:
    into[:] = data


def write_items(items: Items, path: str, sink: Sink, encode: Encode) -> Node:
    """Write a queue's node and leaves into ``sink``. Costs what is new, and the number of pieces."""
    items.check()
    start, count = items.window
    kept = _kept(items, path, sink)
    fresh = unsaved([piece.span for piece in kept], items.log.changed(), start, count)
    if not _unchanged(items, kept, path, sink, encode, sum(stop - first for first, stop in fresh)):
        kept, fresh = [], [(start, count)] if count > start else []
    written = [piece for span in fresh for piece in _encoded(items, path, span, encode)]
    seen = still_visible([piece.span for piece in kept], [piece.span for piece in written], start, count)
    kept = [piece for place, piece in enumerate(kept) if place in seen]
    ranges = [list(span) for span in (*(piece.span for piece in kept), *(piece.span for piece in written))]
    indices = [
        [sink.add(KeptLeaf(_name(path, name, piece.span), spec, spec.shape[0], digest)) for name, (spec, digest) in _both(piece)]
        for piece in kept
    ]
    indices += [[sink.add(leaf) for leaf in _live(path, piece)] for piece in written]
    return sink.mark(items.log, ["items", start, count, ranges, indices], count)


def _name(path: str, part: str, span: Span) -> str:
    return f"{path}.{part}[{span[0]}:{span[1]}]"


def _both(piece: KnownPiece) -> list[tuple[str, tuple[LeafSpec, str]]]:
    return [(name, piece.leaves[name]) for name in (INDEX, DATA)]


def _live(path: str, piece: _Piece) -> tuple[LiveLeaf, LiveLeaf]:
    size = len(piece.index)
    return (
        LiveLeaf(_name(path, INDEX, piece.span), raw_spec(size), size, piece.index, _copy_index, piece=True),
        LiveLeaf(
            _name(path, DATA, piece.span), raw_spec(piece.size_bytes), piece.size_bytes, piece.leaves, _copy_data, piece=True
        ),
    )


def raw_spec(size_bytes: int) -> LeafSpec:
    """Return what either leaf of a piece is."""
    return LeafSpec("bytes", "uint8", (size_bytes,))


@dataclass(frozen=True, slots=True)
class _Line:
    """Hold one encoded item: its line of the index, and its leaves."""

    text: bytes
    leaves: Sequence[LiveLeaf]
    data_bytes: int


def _lines(items: Items, path: str, span: Span, encode: Encode) -> Iterator[_Line]:
    for number, item in enumerate(items.between(*span), span[0]):
        node, leaves = encode(item, f"{path}[{number}]")
        described, at = [], 0
        for leaf in leaves:
            spec, end = leaf.spec, at + leaf.size_bytes
            described.append([spec.kind, spec.dtype, list(spec.shape), at, end])
            at = end
        yield _Line(msgspec.json.encode([node, described, at]), leaves, at)


def _encoded(items: Items, path: str, span: Span, encode: Encode) -> Iterator[_Piece]:
    """Encode items and cut them into pieces of at most ``piece_bytes``, of one item at least."""
    lines: list[_Line] = []
    first, size = span[0], 0
    for line in _lines(items, path, span, encode):
        line_bytes = len(line.text) + line.data_bytes
        if lines and size + line_bytes > items.log.piece_bytes:
            yield _piece((first, first + len(lines)), lines)
            first, size, lines = first + len(lines), 0, []
        lines.append(line)
        size += line_bytes
    yield _piece((first, span[1]), lines)


def _piece(span: Span, lines: Sequence[_Line]) -> _Piece:
    leaves = tuple(leaf for line in lines for leaf in line.leaves)
    return _Piece(span, joined([line.text for line in lines]), leaves, sum(line.data_bytes for line in lines))


def joined(lines: Sequence[bytes]) -> bytes:
    """Return an index of these lines, each the JSON of one item."""
    return b"[" + b",\n".join(lines) + b"]"


def _kept(items: Items, path: str, sink: Sink) -> list[KnownPiece]:
    """Return the pieces that are known, visible, and in the base."""
    known = items.log.known
    if known is None or sink.have is None:
        return []
    start = items.start
    pieces = [
        piece
        for piece in known.pieces
        if piece.stop > start
        and all(sink.has(_name(path, name, piece.span), spec, digest) for name, (spec, digest) in _both(piece))
    ]
    seen = still_visible([piece.span for piece in pieces], (), start, min(known.count, items.count))
    return [piece for place, piece in enumerate(pieces) if place in seen]


def _unchanged(items: Items, kept: Sequence[KnownPiece], path: str, sink: Sink, encode: Encode, fresh: int) -> bool:
    """Compare one kept piece with live memory, another one at each save; where they differ nothing is relied on any more."""
    if sink.matches is None or not kept:
        return True
    spans = [piece.span for piece in kept]
    runs = visible([*spans, *items.log.changed()], *items.window)
    most = max(_ALWAYS_CHECKED, fresh)
    whole = [
        run.piece
        for run in runs
        if run.piece < len(kept) and (run.start, run.stop) == spans[run.piece] and run.stop - run.start <= most
    ]
    if not whole:
        return True
    piece = kept[whole[items.log.pieces_checked % len(whole)]]
    items.log.pieces_checked += 1
    index, data = _live(path, _piece(piece.span, list(_lines(items, path, piece.span, encode))))
    copied = memoryview(bytearray(data.size_bytes))
    data.copy_into(copied)
    if sink.matches(memoryview(index.value), piece.leaves[INDEX][1]) and sink.matches(copied, piece.leaves[DATA][1]):
        return True
    items.log.forget(f"items {piece.start} to {piece.stop} of {path} were changed, and nobody said so")
    return False
