"""Read the pieces of a log to where they belong: a ring's rows straight into its arrays, items as they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from milepost.errors import CorruptError, UsageError
from milepost.records import Difference, LeafRecord, Node
from milepost.state.items import Items
from milepost.state.kinds import leaf_kind_named
from milepost.state.paths import step
from milepost.state.pieces import Run
from milepost.state.rows import Field, Rows
from milepost.state.stored import StoredItems, StoredRows, kind_of, read_index, runs_by_piece, too_large

_SCRATCH_BYTES = 128 << 20
"""How much is read aside at most before it is put in place; one piece may be larger."""


class LeafSource(Protocol):
    """Give the bytes of a component's leaves by index. Called from one thread."""

    def read_into(self, index: int, into: memoryview) -> None:
        """Fill ``into`` (writable bytes, exactly the leaf's size, not zero), at once or by the next `settle`.

        So a source may queue reads and run them side by side. ``into`` stays alive and untouched until `settle`.
        Raises `CorruptError` if the bytes are damaged.
        """

    def settle(self) -> None:
        """Return once every `read_into` so far has been filled and verified. Raises what they would have raised."""


Build = Callable[[Node, Sequence[LeafRecord], LeafSource], Any]
"""Build one item from its node, its leaves and their bytes."""


def row_differences(live: Rows, stored: StoredRows, path: str) -> list[Difference]:
    """Return every difference that keeps saved rows out of a live ring. The count is none: it is data."""
    found = []
    if stored.capacity != live.capacity:
        found.append(Difference(path, f"{stored.capacity} rows", f"{live.capacity} rows", "shape"))
    saved, here = {field.name: field.row for field in stored.fields}, {field.name: field.piece_spec(1) for field in live.fields}
    for name in {**saved, **here}:
        at = f"{path}.{step(name)[1:]}"
        if name not in here:
            found.append(Difference(at, str(saved[name]), "missing", "missing"))
        elif name not in saved:
            found.append(Difference(at, "missing", "an array", "unexpected"))
        elif (spec := next(field for field in stored.fields if field.name == name).spec(1)) != here[name]:
            kinds = (("type", spec.kind != here[name].kind), ("shape", spec.shape != here[name].shape), ("dtype", True))
            found.append(
                Difference(at, f"rows of {spec}", f"rows of {here[name]}", next(kind for kind, differs in kinds if differs))
            )
    return found


def item_differences(live: Items, stored: StoredItems, path: str) -> list[Difference]:
    """Return what keeps saved items out of a live queue: that it has no room for them."""
    there, most = stored.count - stored.start, getattr(live.items, "maxlen", None)
    return [] if most is None or there <= most else [Difference(path, f"{there} items", f"room for {most}", "shape")]


@dataclass(frozen=True, slots=True)
class _Aside:
    """Hold a piece that was read aside, since it wraps or others lie over a part of it."""

    field: Field
    start: int
    runs: Sequence[Run]
    value: Any

    def put(self) -> None:
        """Copy what is visible of it into the ring."""
        for run in self.runs:
            at = run.start - self.start
            for first, last in self.field.parts(run.start, run.stop):
                self.field.kind.copy_from(self.field.array[first:last], self.value[at : at + last - first])
                at += last - first


def fill_rows(rows: Rows, stored: StoredRows, leaves: Sequence[LeafRecord], source: LeafSource) -> None:
    """Read every visible row into the arrays of a ring that fits. All of it is there once ``source`` has settled again.

    A piece that lies in one stretch of the array, and of which every row counts, is read to its place; no two reads
    have a byte in common, whatever order they come in.
    """
    filling = _Filling(leaves, source)
    at = {field.name: field.at for field in stored.fields}
    filled: dict[str, tuple[int, ...]] = {}
    pieces = runs_by_piece(stored)
    for field in rows.fields:
        if not field.row_bytes or filled.get(field.twin) == at[field.name]:
            continue
        if field.twin in filled:
            filling.settle()  # two saved arrays, one live memory: the later must not race with the earlier
        filled[field.twin] = at[field.name]
        for place, runs in pieces.items():
            start, stop = stored.spans[place]
            whole = len(runs) == 1 and (runs[0].start, runs[0].stop) == (start, stop)
            filling.read(at[field.name][place], field, start, stop, None if whole else runs)
    filling.settle()


class _Filling:
    """Queue reads, and put what is read aside in place before it becomes too much."""

    def __init__(self, leaves: Sequence[LeafRecord], source: LeafSource) -> None:
        self._leaves = leaves
        self._source = source
        self._aside: list[_Aside] = []
        self._bytes = 0

    def read(self, index: int, field: Field, start: int, stop: int, runs: Sequence[Run] | None) -> None:
        """Read the piece ``[start, stop)``; of ``runs`` only these rows count."""
        place = field.view(start, stop) if runs is None else None
        if place is not None:
            self._source.read_into(index, place)
            return
        value, memory = _scratch(field, self._leaves[index])
        self._source.read_into(index, memory)
        self._aside.append(_Aside(field, start, runs or [Run(start, stop, 0)], value))
        self._bytes += len(memory)
        if self._bytes >= _SCRATCH_BYTES:
            self.settle()

    def settle(self) -> None:
        """Have all that was asked for in place."""
        if self._aside:
            self._source.settle()
        for aside in self._aside:
            aside.put()
        self._aside, self._bytes = [], 0


def _scratch(field: Field, record: LeafRecord) -> tuple[Any, memoryview]:
    kind_of(record)
    try:
        value = field.kind.make(record.spec)
    except MemoryError as error:
        raise too_large(record) from error
    memory = field.kind.memory(value)
    assert memory is not None, "a fresh array is contiguous and writable"
    return value, memory


def new_rows(stored: StoredRows) -> Rows:
    """Return a ring that fits, all zeros; arrays that were one memory are one again."""
    made: dict[tuple[int, ...], Any] = {}
    arrays = {}
    for field in stored.fields:
        kind = leaf_kind_named(field.row.kind)
        assert kind is not None, "it has been checked"
        spec = field.spec(stored.capacity)
        try:
            array = made.get(field.at)
            arrays[field.name] = kind.blank(spec) if array is None else array
        except MemoryError as error:
            what, hint = "a stored ring is larger than the memory there is", "load on a machine with more memory"
            raise UsageError(what, kind="too-large", hint=hint, path=field.name, spec=spec) from error
        except (ValueError, TypeError, OverflowError, RuntimeError) as error:
            raise CorruptError("a stored ring cannot exist", kind="damaged-tree", path=field.name, spec=spec) from error
        if field.at:
            made[field.at] = arrays[field.name]
    return Rows(arrays, count=stored.count)


def stored_items(stored: StoredItems, leaves: Sequence[LeafRecord], source: LeafSource, build: Build) -> list[Any]:
    """Return the items of the window, built anew. All is read on return; nothing from an index is trusted."""
    made: list[tuple[int, list[Any]]] = []
    for place, runs in runs_by_piece(stored).items():
        index, data = (_read_whole(leaves[at], at, source) for at in stored.at[place])
        source.settle()
        path, start = leaves[stored.at[place][0]].path, stored.spans[place][0]
        lines = read_index(index, stored.spans[place], len(data), path)
        begins = [0]
        for line in lines:
            begins.append(begins[-1] + line.size_bytes)
        for run in runs:
            wanted = range(run.start - start, run.stop - start)
            items = [
                build(lines[at].node, lines[at].leaves, _Slice(memoryview(data)[begins[at] : begins[at + 1]], lines[at].leaves))
                for at in wanted
            ]
            made.append((run.start, items))
    made.sort(key=lambda each: each[0])
    return [item for _, items in made for item in items]


def _read_whole(record: LeafRecord, index: int, source: LeafSource) -> bytearray:
    try:
        data = bytearray(record.size_bytes)
    except MemoryError as error:
        raise too_large(record) from error
    if data:
        source.read_into(index, memoryview(data))
    return data


@dataclass(frozen=True, slots=True)
class _Slice:
    """Give the leaves of one item out of its bytes."""

    data: memoryview
    leaves: Sequence[LeafRecord]

    def read_into(self, index: int, into: memoryview) -> None:
        """Fill ``into`` at once."""
        into[:] = self.data[self.leaves[index].start : self.leaves[index].stop]

    def settle(self) -> None:
        """Return: all is read."""
