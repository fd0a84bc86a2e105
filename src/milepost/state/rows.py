"""Save a ring of equal rows, a replay buffer's arrays, as a log: a save costs what was added, whatever the capacity."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, SupportsIndex

from milepost.errors import UsageError
from milepost.records import LeafSpec, Node
from milepost.state.kinds import LeafKind, leaf_kind, load_edges
from milepost.state.leaves import KeptLeaf, LiveLeaf
from milepost.state.log import KnownPiece, Log, LogMark, Sink
from milepost.state.paths import step, type_name
from milepost.state.pieces import Span, cut, still_visible, unsaved, visible
from milepost.state.scalars import is_utf8

MOST_ROWS = 1 << 62


@dataclass(frozen=True, slots=True)
class Field:
    """Hold one array of a ring, and what a row of it is."""

    name: str
    array: Any = dataclasses.field(repr=False)
    kind: LeafKind
    spec: LeafSpec
    row_bytes: int
    twin: str
    """The first field over the very same memory: itself, but where one array has two names."""

    @property
    def capacity(self) -> int:
        """Return how many rows the array has."""
        return self.spec.shape[0]

    def piece_spec(self, rows: int) -> LeafSpec:
        """Return what a leaf of so many rows is."""
        return LeafSpec(self.spec.kind, self.spec.dtype, (rows, *self.spec.shape[1:]))

    def parts(self, start: int, stop: int) -> list[Span]:
        """Return where rows ``[start, stop)`` lie in the array: one stretch, or two where they pass its end."""
        first, rows = start % self.capacity, stop - start
        if first + rows <= self.capacity:
            return [(first, first + rows)]
        return [(first, self.capacity), (0, first + rows - self.capacity)]

    def copy_rows(self, start: int, stop: int, into: memoryview) -> None:
        """Copy rows ``[start, stop)``, in the order of their numbers, into ``into``: exactly their bytes, not none."""
        at = 0
        for first, last in self.parts(start, stop):
            end = at + (last - first) * self.row_bytes
            self.kind.copy_into(self.array[first:last], into[at:end])
            at = end

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return the live memory of rows ``[start, stop)``, or None where they are not one run of bytes."""
        parts = self.parts(start, stop)
        memory = self.kind.memory(self.array) if self.row_bytes and len(parts) == 1 else None
        return None if memory is None else memory[parts[0][0] * self.row_bytes : parts[0][1] * self.row_bytes]

    def bytes_of(self, start: int, stop: int) -> memoryview:
        """Return the bytes of rows ``[start, stop)``: live memory if they are one run there, else a copy."""
        view = self.view(start, stop)
        if view is None:
            view = memoryview(bytearray((stop - start) * self.row_bytes))
            if view:
                self.copy_rows(start, stop, view)
        return view


@dataclass(frozen=True, slots=True)
class _Piece:
    """Be what is copied when a piece is staged."""

    field: Field
    start: int
    stop: int


def _copy_piece(piece: _Piece, into: memoryview) -> None:
    piece.field.copy_rows(piece.start, piece.stop, into)


class Rows:
    """Mark arrays as a ring of rows, so that a save stages and writes only the rows written since the one before.

    ``arrays`` are NumPy arrays or torch tensors by name, all with the same first axis, the *capacity*. Row ``r``, counted
    from the first one ever written, lies at index ``r % capacity``. Write a row at `position`, then say so:

    >>> import numpy as np
    >>> from milepost import Rows
    >>> buffer = Rows({"observation": np.zeros((4, 2)), "reward": np.zeros(4)})
    >>> for step in range(6):
    ...     buffer.arrays["reward"][buffer.position] = step
    ...     buffer.advance()
    >>> buffer.count, buffer.window, buffer.position
    (6, (2, 6), 2)

    Saves take place between `advance` and the next write. Rows that are changed later need a `touch`; arrays in which
    anything may change at any time (priorities, sum trees) are better saved as what they are. ``count`` is how many rows
    have been written ever, if the arrays are not empty to begin with. For the training thread only.
    """

    __slots__ = ("_count", "arrays", "fields", "log")

    def __init__(self, arrays: Mapping[str, Any], *, count: SupportsIndex = 0) -> None:
        load_edges()
        self.fields = _fields(arrays)
        self.arrays: Mapping[str, Any] = MappingProxyType({field.name: field.array for field in self.fields})
        self._count = row_number(count)
        self.log = Log()

    @property
    def count(self) -> int:
        """Return how many rows were ever written."""
        return self._count

    @property
    def capacity(self) -> int:
        """Return how many rows there is room for."""
        return self.fields[0].capacity

    @property
    def window(self) -> Span:
        """Return the numbers ``[start, stop)`` of the rows that are there."""
        return max(0, self.count - self.capacity), self.count

    @property
    def position(self) -> int:
        """Return the index at which the next row is to be written."""
        return self.count % self.capacity

    @property
    def row_bytes(self) -> int:
        """Return how many bytes of a row are saved: of arrays over the very same memory, one."""
        return sum(field.row_bytes for field in self.fields if field.twin == field.name)

    def advance(self, n: SupportsIndex = 1) -> None:
        """Say that ``n`` more rows were written, from `position` on."""
        self._count = row_number(self._count + row_number(n))

    def touch(self, start: SupportsIndex, stop: SupportsIndex) -> None:
        """Say that rows ``[start, stop)`` (their numbers, not indices) were changed after they had been counted.

        Rows that have left the window, or are not counted yet, are passed over: the former are gone, the latter are new
        and saved anyway. Cheap enough to be called for every row; where a thousand separate ranges change between two
        saves, rows in between are saved with them.
        """
        first, last = row_number(start), row_number(stop)
        if first > last:
            raise UsageError("a range of rows ends before it starts", kind="bad-rows", hint=_NUMBERS, start=first, stop=last)
        self.log.touch(max(first, self.count - self.capacity), last)

    def doubt(self, reason: str) -> None:
        """Have the next save take the whole window, and tell ``reason``: something was changed that nobody counted."""
        self.log.forget(reason)

    def reset(self, count: SupportsIndex = 0) -> None:
        """Start over with ``count`` rows of other content: numbers come again, and nothing that was saved is relied on."""
        self._count = row_number(count)
        self.log.forget()

    def begin_load(self, count: int, node: Node) -> LogMark:
        """Note that the arrays are being overwritten with ``node``'s rows; settle the mark once all of them have verified."""
        self._count = count
        self.log.forget()
        return self.log.mark(node, count, 0)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a ring of which nothing is saved yet."""
        return partial(Rows, count=self._count), (dict(self.arrays),)

    def __repr__(self) -> str:
        return f"Rows({', '.join(self.arrays)}; capacity={self.capacity}, count={self.count})"


_NUMBERS = "rows are numbered from 0, the first ever written; the window says which are there"


def row_number(value: SupportsIndex) -> int:
    """Return a count or number of rows as python's own integer. Raises `UsageError`."""
    number = operator.index(value)
    if not 0 <= number < MOST_ROWS:
        raise UsageError("a number of rows is out of range", kind="bad-rows", hint=_NUMBERS, number=number)
    return number


def _fields(arrays: Mapping[str, Any]) -> tuple[Field, ...]:
    if not arrays:
        raise UsageError("a ring of rows needs an array", kind="bad-rows", hint='pass {"name": array, ...}')
    found: list[Field] = []
    twins: dict[Any, str] = {}
    for name, array in arrays.items():
        kind, spec = _ring_spec(name, array)
        identity = kind.identity(array)
        twin = name if identity is None else twins.setdefault((kind.name, identity), name)
        row = LeafSpec(spec.kind, spec.dtype, spec.shape[1:])
        found.append(Field(name, array, kind, spec, kind.size_bytes(row), twin))
    capacities = {field.name: field.capacity for field in found}
    if len(set(capacities.values())) > 1 or found[0].capacity < 1:
        hint = "the first axis of every array is the capacity, at least 1"
        raise UsageError("the arrays of a ring do not have the same rows", kind="bad-rows", hint=hint, rows=capacities)
    return tuple(found)


def _ring_spec(name: object, array: Any) -> tuple[LeafKind, LeafSpec]:
    if type(name) is not str or not is_utf8(name):
        raise UsageError(
            "the name of an array is not text", kind="bad-rows", hint="use str, no lone surrogates", path=ascii(name)
        )
    path = step(name)[1:]
    kind = leaf_kind(type(array))
    if kind is None:
        hint = "pass NumPy arrays or torch tensors"
        raise UsageError("a ring's rows are no array", kind="unknown-object", hint=hint, path=path, type=type_name(array))
    spec = kind.describe(array, path)
    if not spec.shape:
        raise UsageError("an array without axes has no rows", kind="bad-rows", hint="its first axis is the capacity", path=path)
    if not kind.is_writable(array):
        raise UsageError("a ring's rows cannot be written", kind="bad-rows", hint="pass an array of its own memory", path=path)
    return kind, spec


def write_rows(rows: Rows, path: str, sink: Sink) -> Node:
    """Write a ring's node and leaves into ``sink``. Costs what is new, and the number of pieces; never the capacity."""
    start, count = rows.window
    fields = _still_as_they_were(rows, path)
    names = {field.name: f"{path}.{step(field.name)[1:]}" for field in fields}
    kept = _kept(rows, names, sink)
    if not _unchanged(rows, kept, path, sink):
        kept = []
    row_bytes = max(1, rows.row_bytes)
    spans = unsaved([piece.span for piece in kept], rows.log.changed(), start, count, rows.log.gap_bytes // row_bytes)
    written = cut(spans, max(1, rows.log.piece_bytes // row_bytes))
    seen = still_visible([piece.span for piece in kept], written, start, count)
    kept = [piece for place, piece in enumerate(kept) if place in seen]
    indices: dict[str, list[int]] = {field.name: [] for field in fields}
    for piece in kept:
        for field in fields:
            if field.twin == field.name:
                spec, digest = piece.leaves[field.name]
                leaf = KeptLeaf(_name(names, field, piece.span), spec, field.kind.size_bytes(spec), digest)
                indices[field.name].append(sink.add(leaf))
    for span in written:
        for field in fields:
            if field.twin == field.name:
                indices[field.name].append(sink.add(_live(names, field, span)))
    ranges = [[first, last] for first, last in (*(piece.span for piece in kept), *written)]
    stored = [
        [field.name, field.spec.kind, field.spec.dtype, list(field.spec.shape[1:]), list(indices[field.twin])] for field in fields
    ]
    return sink.mark(rows.log, ["rows", rows.capacity, count, ranges, stored], count)


def _name(names: Mapping[str, str], field: Field, span: Span) -> str:
    return f"{names[field.name]}[{span[0]}:{span[1]}]"


def _live(names: Mapping[str, str], field: Field, span: Span) -> LiveLeaf:
    rows = span[1] - span[0]
    piece = _Piece(field, *span)
    return LiveLeaf(_name(names, field, span), field.piece_spec(rows), rows * field.row_bytes, piece, _copy_piece, piece=True)


def _still_as_they_were(rows: Rows, path: str) -> tuple[Field, ...]:
    for field in rows.fields:
        spec = field.kind.describe(field.array, path)
        if spec != field.spec:
            raise UsageError(
                "an array of a ring is not what it was",
                kind="bad-rows",
                hint="make a new milepost.Rows for new arrays",
                path=f"{path}.{step(field.name)[1:]}",
                was=field.spec,
                now=spec,
            )
    return rows.fields


def _kept(rows: Rows, names: Mapping[str, str], sink: Sink) -> list[KnownPiece]:
    """Return the pieces that are known, visible, and in the base."""
    known = rows.log.known
    if known is None or sink.have is None:
        return []
    start, _ = rows.window
    pieces = [piece for piece in known.pieces if piece.stop > start and _is_had(rows, piece, names, sink)]
    seen = still_visible([piece.span for piece in pieces], (), start, min(known.count, rows.count))
    return [piece for place, piece in enumerate(pieces) if place in seen]


def _is_had(rows: Rows, piece: KnownPiece, names: Mapping[str, str], sink: Sink) -> bool:
    for field in rows.fields:
        spec, digest = piece.leaves.get(field.name, (None, ""))
        if spec != field.piece_spec(piece.stop - piece.start):
            return False
        if field.twin == field.name and not sink.has(_name(names, field, piece.span), spec, digest):
            return False
    return True


def _unchanged(rows: Rows, kept: Sequence[KnownPiece], path: str, sink: Sink) -> bool:
    """Compare one kept piece with live memory, another one at each save; where they differ nothing is relied on any more."""
    if sink.matches is None or not kept:
        return True
    log, window = rows.log, rows.window
    changed = log.changed()
    spans = [piece.span for piece in kept]
    runs = visible([*spans, *changed], *window)
    whole = [run.piece for run in runs if run.piece < len(kept) and (run.start, run.stop) == spans[run.piece]]
    if not whole:
        return True
    piece = kept[whole[log.pieces_checked % len(whole)]]
    log.pieces_checked += 1
    for field in rows.fields:
        if field.twin == field.name and not sink.matches(field.bytes_of(*piece.span), piece.leaves[field.name][1]):
            at = f"{path}.{step(field.name)[1:]}"
            log.forget(f"rows {piece.start} to {piece.stop} of {at} were changed, and nobody said so")
            return False
    return True
