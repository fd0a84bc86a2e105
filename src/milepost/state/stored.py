"""Read what a stored tree says of leaves and logs. Trusts nothing: what `flatten` never writes is a `CorruptError`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from milepost.errors import CorruptError, UsageError
from milepost.records import LeafRecord, LeafSpec, Node
from milepost.state.items import raw_spec
from milepost.state.kinds import LeafKind, leaf_kind_named
from milepost.state.pieces import Run, Span, covers, visible
from milepost.state.rows import MOST_ROWS
from milepost.state.scalars import damaged, is_utf8


def record_at(leaves: Sequence[LeafRecord], node: Node) -> LeafRecord:
    """Return the leaf that an ``array`` node refers to."""
    index = node[1] if len(node) == 2 else None
    if type(index) is not int or not 0 <= index < len(leaves):
        damaged(node)
    return leaves[index]


def kind_of(record: LeafRecord) -> LeafKind:
    """Return the registered kind of a leaf, once its size is known to fit its shape."""
    kind = leaf_kind_named(record.kind)
    if kind is None:
        raise unknown_kind(record.kind, record.path)
    if kind.size_bytes(record.spec) != record.size_bytes:
        raise CorruptError("a stored leaf's size does not fit its shape", kind="damaged-tree", path=record.path, spec=record.spec)
    return kind


def unknown_kind(name: str, path: str = "") -> UsageError:
    """Return the error for a kind of value that nobody registered."""
    package = name.partition(".")[0]
    hint = f"import {package} (or what registers this kind) before loading"
    what = "what brings this kind of value has not been imported"
    return UsageError(what, kind="unknown-kind", hint=hint, path=path, is_a=name)


def check_raw(record: LeafRecord) -> None:
    """Raise `CorruptError` for a leaf of plain bytes that says it is anything else."""
    if record.dtype != "uint8" or record.shape != (record.size_bytes,):
        raise CorruptError("a stored leaf has another size", kind="damaged-tree", path=record.path, spec=record.spec)


def too_large(record: LeafRecord) -> UsageError:
    """Return the error for a leaf that finds no room."""
    hint = "load on a machine with more memory, or only some components: parts=[...]"
    what = "a stored leaf is larger than the memory there is"
    return UsageError(what, kind="too-large", hint=hint, path=record.path, spec=record.spec, size_bytes=record.size_bytes)


@dataclass(frozen=True, slots=True)
class StoredField:
    """Say what one array of a stored ring is, and which leaves hold it."""

    name: str
    row: LeafSpec
    """One row of it."""
    at: tuple[int, ...]
    """The index of the leaf, for each piece."""

    def spec(self, rows: int) -> LeafSpec:
        """Return what so many rows are."""
        return LeafSpec(self.row.kind, self.row.dtype, (rows, *self.row.shape))


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Describe a saved `milepost.Rows`. This is also what stands in a skeleton for one."""

    capacity: int
    count: int
    spans: tuple[Span, ...]
    runs: tuple[Run, ...]
    """Which piece each row of the window is read from."""
    fields: tuple[StoredField, ...]

    @property
    def arrays(self) -> dict[str, LeafSpec]:
        """Return what its arrays were, by name."""
        return {field.name: field.spec(self.capacity) for field in self.fields}

    @property
    def window(self) -> Span:
        """Return the numbers ``[start, stop)`` of the rows that were saved."""
        return max(0, self.count - self.capacity), self.count


@dataclass(frozen=True, slots=True)
class StoredItems:
    """Describe a saved `milepost.Items`. This is also what stands in a skeleton for one."""

    start: int
    count: int
    spans: tuple[Span, ...]
    runs: tuple[Run, ...]
    at: tuple[tuple[int, int], ...]
    """The indices of the index leaf and the data leaf, for each piece."""

    @property
    def window(self) -> Span:
        """Return the numbers ``[start, stop)`` of the items that were saved."""
        return self.start, self.count


def runs_by_piece(stored: StoredRows | StoredItems) -> dict[int, list[Run]]:
    """Return what is read from each piece, of those that anything is read from, in the order of the window."""
    found: defaultdict[int, list[Run]] = defaultdict(list)
    for run in stored.runs:
        found[run.piece].append(run)
    return found


def read_rows(node: Node, leaves: Sequence[LeafRecord]) -> StoredRows:
    """Return what a ``rows`` node says."""
    match node:
        case [_, int(capacity), int(count), list(spans), list(fields)]:
            pass
        case _:
            damaged(node)
    if not 0 < capacity < MOST_ROWS or not _is_number(count) or type(capacity) is bool or not fields:
        damaged(node)
    start = max(0, count - capacity)
    found = _read_spans(spans, count, capacity)
    runs = _runs(found, start, count)
    made = tuple(_read_field(field, found, leaves) for field in fields)
    if len({field.name for field in made}) != len(made) or not _is_once({field.at for field in made}):
        damaged(node)
    return StoredRows(capacity, count, found, runs, made)


def read_items(node: Node, leaves: Sequence[LeafRecord]) -> StoredItems:
    """Return what an ``items`` node says."""
    match node:
        case [_, int(start), int(count), list(spans), list(pairs)] if len(pairs) == len(spans):
            pass
        case _:
            damaged(node)
    if not _is_number(start) or not _is_number(count) or start > count:
        damaged(node)
    found = _read_spans(spans, count, count)
    at = tuple(_read_pair(pair, leaves) for pair in pairs)
    if not _is_once(at):
        damaged(node)
    return StoredItems(start, count, found, _runs(found, start, count), at)


def check_log(stored: StoredRows | StoredItems, leaves: Sequence[LeafRecord]) -> None:
    """Raise what reading a log would raise, as far as that shows before a leaf is read: unknown kinds, impossible sizes."""
    if isinstance(stored, StoredItems):
        return
    for field in stored.fields:
        kind = leaf_kind_named(field.row.kind)
        if kind is None:
            raise unknown_kind(field.row.kind, field.name)
        kind.size_bytes(field.spec(stored.capacity))
        for index in field.at:
            kind_of(leaves[index])


def read_log(node: Node, leaves: Sequence[LeafRecord]) -> StoredRows | StoredItems:
    """Return what a log's node says."""
    return read_rows(node, leaves) if node[0] == "rows" else read_items(node, leaves)


def leaves_of(stored: StoredRows | StoredItems) -> list[int]:
    """Return the indices of all leaves that a log is read from."""
    groups = {field.at for field in stored.fields} if isinstance(stored, StoredRows) else stored.at
    return [index for group in groups for index in group]


def _is_once(groups: Collection[tuple[int, ...]]) -> bool:
    """Return whether no leaf comes twice: with one leaf for a million pieces a file of any size makes work without end.

    One group is what one array is read from. Arrays over the very same memory have the same, and then it counts once.
    """
    indices = [index for group in groups for index in group]
    return len(set(indices)) == len(indices)


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST_ROWS


def _read_spans(spans: list[Any], count: int, longest: int) -> tuple[Span, ...]:
    for span in spans:
        if type(span) is not list or len(span) != 2 or not all(map(_is_number, span)):
            damaged(span)
        if not span[0] < span[1] <= min(count, span[0] + longest):
            damaged(span)
    return tuple((start, stop) for start, stop in spans)


def _runs(spans: Sequence[Span], start: int, stop: int) -> tuple[Run, ...]:
    runs = visible(spans, start, stop)
    if not covers(runs, start, stop):
        raise CorruptError("pieces of a stored log are missing", kind="damaged-tree", window=(start, stop), pieces=len(spans))
    return tuple(runs)


def _read_field(field: Any, spans: Sequence[Span], leaves: Sequence[LeafRecord]) -> StoredField:
    match field:
        case [str(name), str(kind), str(dtype), list(shape), list(at)] if len(at) == len(spans) and is_utf8(name):
            pass
        case _:
            damaged(field)
    if not all(map(_is_number, shape)):
        damaged(field)
    made = StoredField(name, LeafSpec(kind, dtype, tuple(shape)), tuple(at))
    for index, (start, stop) in zip(at, spans, strict=True):
        if record_at(leaves, ["array", index]).spec != made.spec(stop - start):
            damaged(field)
    return made


def _read_pair(pair: Any, leaves: Sequence[LeafRecord]) -> tuple[int, int]:
    if type(pair) is not list or len(pair) != 2:
        damaged(pair)
    for index in pair:
        record = record_at(leaves, ["array", index])
        if record.spec != raw_spec(record.size_bytes):
            damaged(pair)
    return pair[0], pair[1]


@dataclass(frozen=True, slots=True)
class IndexLine:
    """Say what one item is, by its line of an index leaf."""

    node: Node
    leaves: tuple[LeafRecord, ...]
    """Their ``start`` and ``stop`` count from the item's first byte."""
    size_bytes: int
    text: bytes
    """The line itself, for an index that is put together from others."""


def read_index(data: bytes | bytearray | memoryview, span: Span, data_bytes: int, path: str) -> list[IndexLine]:
    """Return the lines of an index leaf, which says that of ``data_bytes`` bytes."""
    try:
        raws = msgspec.json.decode(data, type=list[msgspec.Raw])
        lines = [_read_line(raw, path) for raw in raws]
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise CorruptError("an index of items cannot be read", kind="damaged-tree", path=path) from error
    if len(lines) != span[1] - span[0] or sum(line.size_bytes for line in lines) != data_bytes:
        raise CorruptError("an index of items is not of these items", kind="damaged-tree", path=path)
    return lines


def _read_line(raw: msgspec.Raw, path: str) -> IndexLine:
    match msgspec.json.decode(raw):
        case [list(node), list(described), int(size)] if _is_number(size):
            leaves = tuple(_read_leaf(each, path) for each in described)
            # One after the other, as they were written: over each other they would take memory for more than there is.
            if [leaf.start for leaf in leaves] + [size] == [0, *(leaf.stop for leaf in leaves)]:
                return IndexLine(node, leaves, size, bytes(raw))
            return damaged(described)
        case line:
            return damaged(line)


def _read_leaf(described: Any, path: str) -> LeafRecord:
    match described:
        case [str(kind), str(dtype), list(shape), int(start), int(stop)] if all(map(_is_number, [*shape, start, stop])):
            return LeafRecord(path, kind, dtype, tuple(shape), 0, start, stop, "") if start <= stop else damaged(described)
        case _:
            return damaged(described)
