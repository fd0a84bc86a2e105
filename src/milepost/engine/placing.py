"""Place every leaf of a generation: in a blob of the base that has it already, or in a new one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from milepost.encode.blob import Item, View, write_blob
from milepost.encode.blob import layout as blob_layout
from milepost.encode.compress import Compressor, split
from milepost.encode.digest import digest_of
from milepost.encode.plan import NewLeaf, Plan, plan
from milepost.engine.capture import KEPT, PIECES_BYTES, Staged, StagedComponent, StagedLeaf, in_files, log_path
from milepost.engine.reads import Reads
from milepost.engine.scan import Scan
from milepost.engine.session import Order, Planner, Session
from milepost.errors import CorruptError, StoreError
from milepost.lifecycle.health import Numbers, is_scanned
from milepost.publish import layout
from milepost.publish.signed import is_signing
from milepost.records import BlobRecord, LeafRecord, LeafSpec, Node
from milepost.state.merging import MergedLeaf, merge

FULL = frozenset({"disk-full", "quota"})
"""The kinds of `StoreError` that retiring older generations may cure."""
_MOST_THREADS = 4


@dataclass(slots=True)
class Content:
    """Be one component of the generation: its tree, and its leaves, staged or to be merged from others."""

    staged: StagedComponent
    tree: Node
    leaves: tuple[StagedLeaf | MergedLeaf, ...]
    records: list[LeafRecord | None]
    """Where each leaf is; None as long as it is nowhere."""

    @property
    def name(self) -> str:
        """Return the component's name."""
        return self.staged.name


@dataclass(slots=True)
class Tally:
    """Count what a save did, in bytes of leaves, and in pieces of logs."""

    staged_bytes: int = 0
    hashed_bytes: int = 0
    written_bytes: int = 0
    """As stored, all of the new files."""
    pieces_kept: int = 0
    pieces_merged: int = 0
    read_bytes: int = 0
    """Read back from the base."""


@dataclass(slots=True)
class Placed:
    """Say where everything is."""

    contents: list[Content]
    blobs: list[BlobRecord] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    """The names of the blobs that this save wrote."""
    tried: list[str] = field(default_factory=list)
    """All names it began to write."""
    nonfinite: list[str] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)


class _Slot(NamedTuple):
    """Name a leaf by its component and index."""

    content: Content
    at: int

    @property
    def leaf(self) -> StagedLeaf | MergedLeaf:
        return self.content.leaves[self.at]


def place(session: Session, staged: Staged, order: Order, placed: Placed) -> None:
    """Write what is new of ``staged``, wave by wave, into blobs, and find the rest in those of the base.

    ``placed`` is filled as it goes: whatever stops this, its ``tried`` names what is to be deleted. Raises `StoreError`; of the
    kind ``blobs-gone`` if pieces of logs, of which only the base has the bytes, are not there any more.
    """
    whole = staged.wave_count == 1
    planner = session.planner(complete=order.complete, whole=whole)
    back = _Back(session, planner)
    placing = _Placing(session, staged, planner, back, placed)
    placing.check_base()
    placed.contents = [_content(component, staged, back, merging=whole) for component in staged.components]
    for wave in staged.waves():
        last = wave == staged.wave_count - 1
        placing.training_waits = not last
        placing.place([slot for slot in _slots(placed.contents) if _is_due(slot.leaf, wave, last)])
    placing.count()


def new_bytes(session: Session, staged: Staged) -> tuple[int, int]:
    """Return how many bytes of leaves a save of ``staged`` has to write, and the least it may come to once they are compressed.

    Of leaves that are shared, none. Of a state that comes in waves nobody knows what is shared before it has come: then all
    that is staged, or nothing.
    """
    if staged.wave_count > 1:
        return staged.size_bytes, 0
    staged.arrived()
    strong = is_signing(session.store)
    leaves = [
        NewLeaf(
            component.name,
            leaf.path,
            leaf.spec,
            leaf.size_bytes,
            leaf.digest or digest_of(staged.data(leaf), strong=strong),
        )
        for component in staged.components
        for leaf in component.leaves
    ]
    planned = plan(leaves, session.base)
    new = [leaves[index] for index in (*planned.fresh, *planned.moved)]
    shrinking = session.decisions.shrink if session.decisions else lambda _: False
    return sum(leaf.size_bytes for leaf in new), sum(0 if shrinking(leaf) else leaf.size_bytes for leaf in new)


def _content(component: StagedComponent, staged: Staged, back: _Back, *, merging: bool) -> Content:
    """Return what is to be stored of a component: small pieces of logs as larger ones, where there are many."""
    leaves: tuple[StagedLeaf | MergedLeaf, ...] = component.leaves
    tree = component.tree
    if merging and any(leaf.piece for leaf in component.leaves):
        merged = merge(tree, component.leaves, lambda index: back.bytes_of(component.name, component.leaves[index], staged))
        if merged is not None:
            tree = merged.tree
            leaves = tuple(component.leaves[leaf] if isinstance(leaf, int) else leaf for leaf in merged.leaves)
    return Content(component, tree, leaves, [None] * len(leaves))


def _slots(contents: Iterable[Content]) -> Iterator[_Slot]:
    for content in contents:
        for index in range(len(content.leaves)):
            yield _Slot(content, index)


def _is_due(leaf: StagedLeaf | MergedLeaf, wave: int, last: bool) -> bool:
    if isinstance(leaf, MergedLeaf) or leaf.wave == KEPT:
        return last
    return leaf.wave == wave


class _Back:
    """Read leaves back from the base, verified."""

    def __init__(self, session: Session, planner: Planner) -> None:
        self._session = session
        self._stored = planner.stored
        self._base = session.base
        self.read_bytes = 0

    def bytes_of(self, component: str, leaf: StagedLeaf, staged: Staged) -> memoryview:
        """Return a leaf's bytes: out of the arena, or from the base. Raises `StoreError` (``blobs-gone``) if it has none."""
        if leaf.wave != KEPT:
            return staged.data(leaf)
        record = self._stored.record(NewLeaf(component, leaf.path, leaf.spec, leaf.size_bytes, leaf.digest))
        if record is None or self._base is None:
            raise self.gone(leaf.path)
        return self.read(component, record)

    def read(self, component: str, record: LeafRecord) -> memoryview:
        """Return the bytes of a leaf of the base."""
        assert self._base is not None
        data = memoryview(bytearray(record.size_bytes))
        self.read_bytes += record.size_bytes
        try:
            with Reads(self._session.store, self._base, threads=1) as reads:
                reads.ask(component, record, data)
                reads.settle()
        except CorruptError as error:
            # The live memory has these rows still: the next save takes all of them.
            self._session.distrust(self._base.blobs[record.blob].name)
            raise self.gone(record.path) from error
        return data

    def gone(self, path: str) -> StoreError:
        """Return the error of a save that kept back rows which nobody has any more."""
        return StoreError(
            "rows that were saved before and not staged again are gone from the disk, or damaged; the next save writes them anew",
            kind="blobs-gone",
            retryable=True,
            hint="look what removed or damaged files below blobs/; milepost verify names what is hit",
            root=self._session.store.url,
            leaf=path,
        )


class _Placing:
    """Place the leaves of one save."""

    def __init__(self, session: Session, staged: Staged, planner: Planner, back: _Back, placed: Placed) -> None:
        self._session = session
        self._staged = staged
        self._planner = planner
        self._back = back
        self._placed = placed
        self._base = session.base
        self._strong = is_signing(session.store)
        self.training_waits = False
        """Whoever would need the processors waits for this."""
        self._index_of: dict[int, int] = {}
        """Where among the blobs of this generation one of the base's is."""

    def check_base(self) -> None:
        """Raise `StoreError` (kind ``blobs-gone``) if the base is not to be relied on, and something was not staged for it."""
        if self._planner.distrusted:
            for component in self._staged.components:
                for leaf in component.leaves:
                    if leaf.wave == KEPT:
                        raise self._back.gone(leaf.path)

    def place(self, slots: Sequence[_Slot]) -> None:
        """Write some leaves, or find them in the base. What of them is staged is in the arena now."""
        leaves = [self._described(slot) for slot in slots]
        planned = self._planner.plan(leaves)
        for index in planned.fresh:
            leaf = slots[index].leaf
            if isinstance(leaf, StagedLeaf) and leaf.wave == KEPT:
                raise self._back.gone(leaf.path)
        with self._scanning(slots, planned):
            self._write(slots, leaves, planned)
        for index, record in planned.shared.items():
            self._share(slots[index], leaves[index], record)

    def count(self) -> None:
        """Note what of logs was kept and merged."""
        leaves = [slot.leaf for slot in _slots(self._placed.contents)]
        tally = self._placed.tally
        tally.staged_bytes = self._staged.size_bytes
        tally.read_bytes = self._back.read_bytes
        tally.pieces_kept = sum(isinstance(leaf, StagedLeaf) and leaf.wave == KEPT for leaf in leaves)
        tally.pieces_merged = sum(isinstance(leaf, MergedLeaf) for leaf in leaves)

    def _described(self, slot: _Slot) -> NewLeaf:
        leaf, component = slot.leaf, slot.content.name
        digest = ""
        if isinstance(leaf, StagedLeaf):
            digest = leaf.digest
            # What the base has nothing of is digested as it is written.
            if leaf.wave != KEPT and self._planner.stored.knows(component, leaf.path, leaf.spec):
                # By SHA-256 where the manifest will be signed: a signature over a digest that anyone can forge would say nothing.
                digest = digest_of(self._staged.data(leaf), strong=self._strong)
                self._placed.tally.hashed_bytes += leaf.size_bytes
        return NewLeaf(component, leaf.path, leaf.spec, leaf.size_bytes, digest)

    def _view(self, slot: _Slot) -> View:
        leaf, component = slot.leaf, slot.content.name
        if isinstance(leaf, MergedLeaf):
            before = slot.content.staged.leaves
            return lambda: leaf.assemble(lambda index: self._back.bytes_of(component, before[index], self._staged))
        if leaf.wave == KEPT:
            return lambda: self._back.bytes_of(component, leaf, self._staged)
        return self._staged.data(leaf)

    def _scanning(self, slots: Sequence[_Slot], planned: Plan) -> Scan:
        """Look for what is not finite among the weights and moments, beside the writing.

        What a healthy base has is not looked at again.
        """
        known = self._base is not None and self._base.healthy
        wanted = sorted((*planned.fresh, *planned.moved)) if known else range(len(slots))
        numbers: list[Numbers] = []
        for index in wanted:
            leaf = slots[index].leaf
            if isinstance(leaf, StagedLeaf) and leaf.wave != KEPT and is_scanned(slots[index].content.name):
                numbers.append(Numbers(leaf.path, leaf.spec.dtype, leaf.start, leaf.start + leaf.size_bytes))
        return Scan(self._staged.memory, numbers, self._placed.nonfinite)

    def _write(self, slots: Sequence[_Slot], leaves: Sequence[NewLeaf], planned: Plan) -> None:
        views = {index: self._view(slots[index]) for index in (*planned.fresh, *planned.moved)}
        for indices in (planned.fresh, planned.moved):
            for packed, some in self._packed(indices, leaves, views):
                for rows, group in _groups(some, slots, self._session.blob_bytes):
                    self._write_one(group, slots, leaves, views, rows, packed)

    def _packed(
        self, indices: Sequence[int], leaves: Sequence[NewLeaf], views: dict[int, View]
    ) -> Iterator[tuple[bool, list[int]]]:
        """Divide what is to be written by whether it is to be compressed."""
        if self._session.decisions is None or not indices:
            yield False, list(indices)
            return
        plain, packed = split([leaves[i] for i in indices], [views[i] for i in indices], self._session.decisions)
        yield False, [indices[place] for place in plain]
        yield True, [indices[place] for place in packed]

    def _write_one(
        self,
        group: Sequence[int],
        slots: Sequence[_Slot],
        leaves: Sequence[NewLeaf],
        views: dict[int, View],
        rows: str,
        packed: bool,
    ) -> None:
        """Write one blob. A file whose fsync failed is condemned: the bytes are written anew under another name, once."""
        session, placed, part = self._session, self._placed, len(self._placed.fresh)
        items = [Item(leaf.path, leaf.spec.dtype, leaf.spec.shape, leaf.size_bytes) for leaf in (leaves[i] for i in group)]
        lay = blob_layout(items, {"milepost_run": session.run_id, "milepost_generation": str(session.chain.next)})
        data = [views[index] for index in group]
        known = [leaves[index].digest or None for index in group]
        for last_try in (False, True):
            name = layout.blob(session.chain.next, session.chain.term, session.clock.nonce(), part, rows, packed)
            placed.tried.append(name)
            try:
                threads = min(os.cpu_count() or 1, _MOST_THREADS) if self.training_waits else 1
                compressor = Compressor(threads=threads) if packed else None
                # How much will be left of what is compressed nobody knows yet.
                with session.store.open_blob(name, size_bytes=None if packed else lay.size_bytes) as sink:
                    written = write_blob(sink, lay, data, known, strong=self._strong, compress=compressor)
                    sink.commit()
                break
            except StoreError as error:
                if last_try or error.kind in FULL or error.kind == "blobs-gone":
                    raise
        for index, span, digest in zip(group, lay.offsets, written.leaf_digests, strict=True):
            _note(slots[index], leaves[index].spec, len(placed.blobs), span, digest)
        placed.blobs.append(BlobRecord(name, written.size_bytes, written.digest, written.frames))
        placed.fresh.append(name)
        placed.tally.written_bytes += written.size_bytes
        placed.tally.hashed_bytes += sum(leaves[index].size_bytes for index in group if not leaves[index].digest)

    def _share(self, slot: _Slot, leaf: NewLeaf, record: LeafRecord) -> None:
        assert self._base is not None
        if record.blob not in self._index_of:
            self._index_of[record.blob] = len(self._placed.blobs)
            self._placed.blobs.append(self._base.blobs[record.blob])
        _note(slot, leaf.spec, self._index_of[record.blob], (record.start, record.stop), record.digest)


def _note(slot: _Slot, spec: LeafSpec, blob: int, span: tuple[int, int], digest: str) -> None:
    path = slot.leaf.path
    slot.content.records[slot.at] = LeafRecord(path, spec.kind, spec.dtype, spec.shape, blob, *span, digest)


def _groups(indices: Iterable[int], slots: Sequence[_Slot], blob_bytes: int) -> Iterator[tuple[str, list[int]]]:
    """Cut what is to be written into files: all that is dense together, and of each log the pieces, with the rows they hold.

    Pieces are in files of their own, and these are small: rows that are overwritten are to free room soon.
    """
    dense: list[int] = []
    logs: dict[str, list[int]] = {}
    for index in indices:
        leaf = slots[index].leaf
        piece = isinstance(leaf, MergedLeaf) or leaf.piece
        (logs.setdefault(log_path(leaf.path), []) if piece else dense).append(index)
    for file in in_files([slots[index].leaf.size_bytes for index in dense], blob_bytes):
        yield "", dense[file.start : file.stop]
    for log, pieces in logs.items():
        for file in in_files([slots[index].leaf.size_bytes for index in pieces], min(PIECES_BYTES, blob_bytes)):
            group = pieces[file.start : file.stop]
            yield f"{log}.{_rows(slots[index].leaf.path for index in group)}", group


def _rows(paths: Iterable[str]) -> str:
    spans = [found for path in paths if (found := _SPAN.search(path))]
    return f"{min(int(span[1]) for span in spans)}-{max(int(span[2]) for span in spans)}"


_SPAN = re.compile(r"\[(\d+):(\d+)\]\Z", re.ASCII)
