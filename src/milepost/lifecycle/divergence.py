"""Find where the states of two runs part: value by value, a log's rows by what they hold, not by how they are cut into pieces.

`milepost.lifecycle.diff` tells what a save wrote anew; two runs that hold the same rows may have written them in other
pieces. Digests decide wherever they can. Bytes are read for logs in unlike pieces, and to show the first value that differs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from milepost.errors import CorruptError, MilepostError
from milepost.lifecycle.blobs import Contents
from milepost.lifecycle.diff import text_of
from milepost.records import ComponentRecord, LeafRecord, LeafSpec, Manifest, Node
from milepost.state.paths import step
from milepost.state.stored import StoredField, StoredItems, StoredRows, read_index, read_items, read_rows, record_at
from milepost.store.base import Store

PIECE_BYTES = 4 << 20
"""How much of each side is in memory at once."""

Ignore: TypeAlias = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Say of one value in what it differs. Texts are empty where a side has nothing there."""

    path: str
    one: str
    """The kind, dtype and shape of an array, or the value itself."""
    other: str
    count: int = 0
    """How many elements differ, of ``total``; 0 where they were not compared, or there is no array on both sides."""
    total: int = 0
    index: tuple[int, ...] = ()
    """Of the first element that differs, with its two values in ``values``."""
    values: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class Apart:
    """Say of one component what differs."""

    component: str
    paths: tuple[str, ...]
    first: Divergence


@dataclass(frozen=True, slots=True)
class Side:
    """Be one of two generations that are compared: its manifest, and where its blobs lie if they are still there."""

    manifest: Manifest
    store: Store | None = None
    contents: Contents | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.store is not None:
            object.__setattr__(self, "contents", Contents(self.store))

    def read(self, leaf: LeafRecord, start: int, into: memoryview) -> None:
        """Fill ``into`` from byte ``start`` of a leaf. Raises `CorruptError` if it is not there."""
        blob = self.manifest.blobs[leaf.blob]
        if self.contents is None or self.contents.read_into(blob, leaf.start + start, into) != len(into):
            raise CorruptError("a leaf ends before it should", kind="damaged-leaf", path=leaf.path)


def divergences(one: Side, other: Side, ignore: Ignore) -> list[Apart]:
    """Return the components in which two generations differ, but for the paths that ``ignore`` says; in order of the first.

    Metrics count as one more, ``metrics``. Times, places and names of who saved what do not count.
    """
    names = dict.fromkeys(part.name for side in (one, other) for part in side.manifest.components)
    found = [_component(name, one, other, ignore) for name in names]
    return [apart for apart in (*found, _metrics(one.manifest, other.manifest, ignore)) if apart is not None]


def _component(name: str, one: Side, other: Side, ignore: Ignore) -> Apart | None:
    left, right = one.manifest.component(name), other.manifest.component(name)
    if left is None or right is None:
        return Apart(name, (name,), Divergence(name, "saved" if left else "", "saved" if right else ""))
    walk = _Walk(one, other, left, right)
    try:
        parted = [found for found in walk.nodes(left.tree, right.tree, name) if not ignore(found.path)]
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        # Sealed does not mean sane.
        raise CorruptError("a manifest holds no tree of values", kind="damaged-record", component=name) from error
    return Apart(name, tuple(found.path for found in parted), parted[0].whole()) if parted else None


def _metrics(one: Manifest, other: Manifest, ignore: Ignore) -> Apart | None:
    found = [
        Divergence(path, _metric(one, name), _metric(other, name))
        for name in sorted({*one.metrics, *other.metrics})
        if not ignore(path := f"metrics/{name}") and _metric(one, name) != _metric(other, name)
    ]
    return Apart("metrics", tuple(each.path for each in found), found[0]) if found else None


def _metric(manifest: Manifest, name: str) -> str:
    metric = manifest.metrics.get(name)
    return "" if metric is None else f"{metric.number!r} at step {metric.step:,}"


@dataclass(frozen=True, slots=True)
class _Parted:
    """Be something that differs; what exactly is looked at when it is asked for."""

    path: str
    look: Callable[[], Divergence]

    def whole(self) -> Divergence:
        return self.look()


@dataclass(frozen=True, slots=True)
class _Walk:
    """Go through two stored trees side by side."""

    one: Side | _Held
    other: Side | _Held
    left: ComponentRecord
    right: ComponentRecord

    @property
    def can_read(self) -> bool:
        """Return whether there is data: without it logs that are cut otherwise are not compared."""
        return all(isinstance(side, _Held) or side.contents is not None for side in (self.one, self.other))

    def nodes(self, a: Node, b: Node, path: str) -> Iterator[_Parted]:
        """Yield what differs between two nodes; nothing is read but the pieces of logs that are cut otherwise."""
        if a[0] != b[0]:
            yield self._plain(a, b, path)
        elif a[0] == "array":
            yield from self._arrays(record_at(self.left.leaves, a), record_at(self.right.leaves, b), path)
        elif a[0] in ("dict", "ordered-dict"):
            yield from self._dicts(a, b, path)
        elif a[0] in ("list", "tuple", "deque"):
            yield from self._lists(a, b, path)
        elif a[0] in ("object", "stateful") and a[1:-1] == b[1:-1]:
            yield from self.nodes(a[-1], b[-1], path)
        elif a[0] == "rows":
            yield from self._rows(read_rows(a, self.left.leaves), read_rows(b, self.right.leaves), path)
        elif a[0] == "items":
            yield from self._items(read_items(a, self.left.leaves), read_items(b, self.right.leaves), path)
        elif _canonical(a) != _canonical(b):
            yield self._plain(a, b, path)

    def _plain(self, a: Node | None, b: Node | None, path: str) -> _Parted:
        return _Parted(path, lambda: Divergence(path, _shown(a, self.left), _shown(b, self.right)))

    def _dicts(self, a: Node, b: Node, path: str) -> Iterator[_Parted]:
        left, right = ({json.dumps(key): (key, node) for key, node in side[1]} for side in (a, b))
        for name in dict.fromkeys((*left, *right)):
            key = (left.get(name) or right[name])[0]
            here = f"{path}{step(key) if isinstance(key, str) else f'[{text_of(key)}]'}"
            if name in left and name in right:
                yield from self.nodes(left[name][1], right[name][1], here)
            else:
                yield self._plain(left[name][1] if name in left else None, right[name][1] if name in right else None, here)
        if left.keys() == right.keys() and list(left) != list(right):
            yield _Parted(path, lambda: Divergence(path, f"keys in order {_names(left)}", f"keys in order {_names(right)}"))

    def _lists(self, a: Node, b: Node, path: str) -> Iterator[_Parted]:
        if len(a[-1]) != len(b[-1]) or a[1:-1] != b[1:-1]:
            yield _Parted(path, lambda: Divergence(path, _length(a), _length(b)))
        for index, (left, right) in enumerate(zip(a[-1], b[-1], strict=False)):
            yield from self.nodes(left, right, f"{path}[{index}]")

    def _arrays(self, a: LeafRecord, b: LeafRecord, path: str) -> Iterator[_Parted]:
        if a.spec != b.spec:
            yield _Parted(path, lambda: Divergence(path, str(a.spec), str(b.spec)))
        elif a.digest != b.digest:
            yield _Parted(path, lambda: self._elements(path, a, b))

    def _elements(self, path: str, a: LeafRecord, b: LeafRecord) -> Divergence:
        item = a.size_bytes // max(1, math.prod(a.shape))
        cut = 0, a.size_bytes, partial(self.one.read, a), partial(self.other.read, b)
        try:
            return _compared(path, a.spec, item, [cut])
        except MilepostError:
            return Divergence(path, str(a.spec), str(b.spec))  # its data is gone; that it differs, its digest says

    def _rows(self, a: StoredRows, b: StoredRows, path: str) -> Iterator[_Parted]:
        if (a.capacity, a.count, a.arrays) != (b.capacity, b.count, b.arrays):
            yield _Parted(path, lambda: Divergence(path, _described(a), _described(b)))
            return
        fields = {each.name: each for each in b.fields}
        for left in a.fields:
            here, item = f"{path}.{left.name}", _row_bytes(left, self.left) // max(1, math.prod(left.row.shape))
            cuts = list(self._cuts(a, left, b, fields[left.name]))
            if (
                cuts
                and self.can_read
                and (found := _compared(here, left.spec(_rows_in(a)), item, cuts, first_row=a.window[0])).count
            ):
                yield _Parted(here, partial(_known, found))

    def _cuts(self, a: StoredRows, left: StoredField, b: StoredRows, right: StoredField) -> Iterator[_Cut]:
        """Yield the ranges of rows that each side reads from one piece, unless that is the same piece on both sides."""
        row = _row_bytes(left, self.left)
        starts = sorted({run.start for run in (*a.runs, *b.runs)})
        for start, stop in zip(starts, [*starts[1:], a.count], strict=False):
            ours, first = _piece(a, left, self.left, start)
            theirs, second = _piece(b, right, self.right, start)
            if ours.digest != theirs.digest or first != second:
                sides = _from(self.one, ours, (start - first) * row), _from(self.other, theirs, (start - second) * row)
                yield (start - a.window[0]) * row, (stop - start) * row, *sides

    def _items(self, a: StoredItems, b: StoredItems, path: str) -> Iterator[_Parted]:
        if a.window != b.window:
            one, other = (f"items {start:,} to {stop:,}" for start, stop in (a.window, b.window))
            yield _Parted(path, lambda: Divergence(path, one, other))
            return
        if not self.can_read or _digests(a, self.left) == _digests(b, self.right):
            return
        pairs = zip(self._each(self.one, self.left, a), self._each(self.other, self.right, b), strict=True)
        for number, (left, right) in zip(range(*a.window), pairs, strict=True):
            here = f"{path}[{number}]"
            if left != right:
                walk = _Walk(_Held(left[2]), _Held(right[2]), left[1], right[1])
                yield from walk.nodes(left[0], right[0], here)

    def _each(
        self, side: Side | _Held, component: ComponentRecord, stored: StoredItems
    ) -> Iterator[tuple[Node, ComponentRecord, bytes]]:
        """Yield the node, the leaves and the bytes of every item in the window."""
        for run in stored.runs:
            index, data = (component.leaves[at] for at in stored.at[run.piece])
            span = stored.spans[run.piece]
            lines = read_index(_whole(side, index), span, data.size_bytes, index.path)
            raw, at = _whole(side, data), 0
            for number, line in zip(range(*span), lines, strict=True):
                if run.start <= number < run.stop:
                    yield line.node, _as_component(line.leaves, raw[at : at + line.size_bytes]), raw[at : at + line.size_bytes]
                at += line.size_bytes


@dataclass(frozen=True, slots=True)
class _Held:
    """Stand for a side whose leaves lie in bytes that were read already."""

    data: bytes

    def read(self, leaf: LeafRecord, start: int, into: memoryview) -> None:
        into[:] = self.data[leaf.start + start : leaf.start + start + len(into)]


_Read: TypeAlias = Callable[[int, memoryview], None]
_Cut: TypeAlias = tuple[int, int, _Read, _Read]
"""Where a range of bytes lies in the whole, how long it is, and how each side's is read."""


def _as_component(leaves: tuple[LeafRecord, ...], data: bytes) -> ComponentRecord:
    from milepost.encode.digest import xxh3

    digested = (
        LeafRecord(leaf.path, leaf.kind, leaf.dtype, leaf.shape, 0, leaf.start, leaf.stop, xxh3(data[leaf.start : leaf.stop]))
        for leaf in leaves
    )
    return ComponentRecord("", [], tuple(digested))


def _whole(side: Side | _Held, leaf: LeafRecord) -> bytes:
    data = bytearray(leaf.size_bytes)
    side.read(leaf, 0, memoryview(data))
    return bytes(data)


def _from(side: Side | _Held, leaf: LeafRecord, base: int) -> _Read:
    return lambda start, into: side.read(leaf, base + start, into)


def _known(found: Divergence) -> Divergence:
    return found


def _digests(stored: StoredItems, component: ComponentRecord) -> list[str]:
    return [component.leaves[at].digest for pair in stored.at for at in pair]


def _rows_in(stored: StoredRows) -> int:
    start, stop = stored.window
    return stop - start


def _row_bytes(of: StoredField, component: ComponentRecord) -> int:
    if not of.at:
        return 0
    leaf = component.leaves[of.at[0]]
    return leaf.size_bytes // leaf.shape[0]


def _piece(stored: StoredRows, of: StoredField, component: ComponentRecord, row: int) -> tuple[LeafRecord, int]:
    run = next(run for run in reversed(stored.runs) if run.start <= row)
    return component.leaves[of.at[run.piece]], stored.spans[run.piece][0]


def _compared(path: str, spec: LeafSpec, item: int, cuts: list[_Cut], *, first_row: int = 0) -> Divergence:
    """Count the elements of ``item`` bytes that differ, and show the first. The first axis counts from ``first_row``."""
    count, at, shown = 0, None, ("", "")
    for offset, length, one, other in cuts:
        for start, left, right in _pieces(length, item, one, other):
            differing = _differing(left, right, item)
            if differing and at is None:
                here = differing[0] * item
                at = (offset + start) // item + differing[0]
                shown = _value(left[here : here + item], spec), _value(right[here : here + item], spec)
            count += len(differing)
    index = () if at is None else _unravel(at, spec.shape)
    index = (index[0] + first_row, *index[1:]) if index else ()
    return Divergence(path, str(spec), str(spec), count, math.prod(spec.shape), index, shown)


def _pieces(length: int, item: int, one: _Read, other: _Read) -> Iterator[tuple[int, memoryview, memoryview]]:
    if not length:
        return
    piece = max(item, PIECE_BYTES // item * item)
    left, right = memoryview(bytearray(min(piece, length))), memoryview(bytearray(min(piece, length)))
    for start in range(0, length, piece):
        here = min(piece, length - start)
        one(start, left[:here])
        other(start, right[:here])
        yield start, left[:here], right[:here]


def _differing(left: memoryview, right: memoryview, item: int) -> list[int]:
    """Return which elements of ``item`` bytes are not the same bits."""
    if left == right:
        return []
    import numpy as np

    one, other = (np.frombuffer(side, np.uint8).reshape(-1, item) for side in (left, right))
    return [int(index) for index in np.flatnonzero((one != other).any(axis=1))]


def _unravel(index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    found: list[int] = []
    for length in reversed(shape):
        index, at = divmod(index, length)
        found.append(at)
    return tuple(reversed(found))


def _value(data: memoryview, spec: LeafSpec) -> str:
    """Return an element as text; of a dtype that numpy does not have its bits."""
    import numpy as np

    from milepost.state.dtypes import dtype_named

    try:
        dtype = dtype_named(spec.dtype)
    except CorruptError:
        return f"0x{bytes(data)[::-1].hex()}"
    if dtype.itemsize != len(data):
        return f"0x{bytes(data).hex()}"
    return str(np.frombuffer(data, dtype)[0])


def _canonical(node: Node) -> Node | str:
    """Return a node so that equal sets are equal: their order is that of the process which saved them."""
    return [node[0], sorted(map(json.dumps, node[1]))] if node[0] in ("set", "frozenset") else node


def _shown(node: Node | None, component: ComponentRecord) -> str:
    if node is None:
        return ""
    return str(record_at(component.leaves, node).spec) if node[0] == "array" else text_of(node)


def _length(node: Node) -> str:
    most = f", at most {node[1]}" if node[0] == "deque" else ""
    return f"{node[0]} of {len(node[-1]):,}{most}"


def _described(stored: StoredRows) -> str:
    arrays = ", ".join(f"{name} {spec}" for name, spec in stored.arrays.items())
    return f"{stored.count:,} rows written, room for {stored.capacity:,} of {arrays}"


def _names(keys: dict[str, Any]) -> str:
    text = ", ".join(keys)
    return text if len(text) <= 80 else f"{text[:79]}…"
