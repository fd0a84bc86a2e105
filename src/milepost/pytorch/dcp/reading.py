"""Read what one rank asks for of a generation, every byte verified."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner, ReadItem
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from milepost.engine.reader import Source
from milepost.engine.reads import Reads
from milepost.errors import CorruptError, MilepostError, MismatchError
from milepost.pytorch.dcp.index import Index, Stored
from milepost.pytorch.dcp.naming import rank_of
from milepost.pytorch.dcp.plain import stream_of
from milepost.pytorch.leaves import TensorKind
from milepost.records import Difference, LeafRecord, Manifest
from milepost.store.base import Store

AT_ONCE_BYTES = 256 << 20
"""How much of chunks is read before it is copied to where it belongs: so much more memory a load takes."""
_TENSORS = TensorKind()


@dataclass(slots=True)
class _Chunk:
    """Be one chunk that is needed, and the items which need parts of it."""

    component: str
    record: LeafRecord
    items: list[ReadItem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Hold what a rank reads from."""

    store: Store
    manifest: Manifest
    index: Index
    rank: int
    trust_pickle: bool
    converted: set[str] = field(default_factory=set)
    """The tensors here that have another dtype than was saved: DCP converts, and says nothing."""


def read_items(wanted: Wanted, items: Sequence[ReadItem], planner: LoadPlanner) -> None:
    """Load every item through the planner.

    A chunk is read as a whole, also where a rank needs only some rows of it: the digest is of all its bytes. One that is wanted
    whole goes straight into the live tensor, verified on its way. Raises
    `CorruptError` (kind ``damaged-leaf``) naming the shard, who wrote it and who reads it.
    """
    reads = Reads(wanted.store, wanted.manifest)
    with reads, reads:  # twice: see there
        for item in items:
            if item.type == LoadItemType.BYTE_IO:
                _named(wanted, lambda item=item: _load_value(wanted, reads, item, planner))  # type: ignore[misc]
        for group in _groups(_chunks(wanted, items)):
            _load_chunks(wanted, reads, group, planner)


def _load_value(wanted: Wanted, reads: Reads, item: ReadItem, planner: LoadPlanner) -> None:
    stored = _stored(wanted, item.storage_index.fqn)
    source = Source(reads, stored.component)
    leaves = stored.component.leaves
    planner.load_bytes(item, stream_of(stored.kind, stored.node, leaves, source, trust_pickle=wanted.trust_pickle))


def _stored(wanted: Wanted, fqn: str) -> Stored:
    found = wanted.index.entries.get(fqn)
    if found is None:
        raise CorruptError("a plan asks for what the generation has not", kind="not-planned", name=fqn)
    return found


def _chunks(wanted: Wanted, items: Sequence[ReadItem]) -> list[_Chunk]:
    found: dict[int, _Chunk] = {}
    for item in items:
        if item.type != LoadItemType.TENSOR:
            continue
        stored = _stored(wanted, item.storage_index.fqn)
        record = stored.chunks.get(tuple(item.storage_index.offset or ()))
        if record is None and item.storage_index.offset is None and len(stored.chunks) == 1:
            record = next(iter(stored.chunks.values()))
        if record is None:
            raise CorruptError(
                "a plan asks for a chunk that the generation has not", kind="not-planned", name=stored.component.name
            )
        found.setdefault(id(record), _Chunk(stored.component.name, record)).items.append(item)
    return sorted(found.values(), key=lambda chunk: (chunk.record.blob, chunk.record.start))


def _groups(chunks: Sequence[_Chunk]) -> Iterator[list[_Chunk]]:
    group: list[_Chunk] = []
    size_bytes = 0
    for chunk in chunks:
        if group and size_bytes + chunk.record.size_bytes > AT_ONCE_BYTES:
            yield group
            group, size_bytes = [], 0
        group.append(chunk)
        size_bytes += chunk.record.size_bytes
    if group:
        yield group


def _load_chunks(wanted: Wanted, reads: Reads, group: Sequence[_Chunk], planner: LoadPlanner) -> None:
    direct: list[tuple[ReadItem, torch.Tensor]] = []
    copied: list[tuple[_Chunk, torch.Tensor, list[torch.Tensor]]] = []
    for chunk in group:
        if _TENSORS.size_bytes(chunk.record.spec) != chunk.record.size_bytes:
            raise CorruptError("a stored leaf's size does not fit its shape", kind="damaged-tree", path=chunk.record.path)
        targets = [planner.resolve_tensor(item).detach() for item in chunk.items]
        if len(targets) == 1 and _goes_straight(chunk, targets[0]):
            tensor = targets[0]
            direct.append((chunk.items[0], tensor))
        else:
            tensor = _TENSORS.make(chunk.record.spec)
            copied.append((chunk, tensor, targets))
        if chunk.record.size_bytes:
            memory = _TENSORS.memory(tensor)
            assert memory is not None, "it is contiguous and writable"
            reads.ask(chunk.component, chunk.record, memory)
    _named(wanted, reads.settle)
    for item, tensor in direct:
        planner.commit_tensor(item, tensor)
    for chunk, tensor, targets in copied:
        for item, target in zip(chunk.items, targets, strict=True):
            _copy(wanted, chunk, narrow_tensor_by_index(tensor, item.storage_offsets, item.lengths), item, target)
            planner.commit_tensor(item, target)


def _goes_straight(chunk: _Chunk, target: torch.Tensor) -> bool:
    """Return whether all of a chunk belongs into a live tensor, and lies there as it lies on disk."""
    record = chunk.record
    stands_for_others: bool = is_traceable_wrapper_subclass(target)
    if tuple(chunk.items[0].lengths) != record.shape or not record.size_bytes or stands_for_others:
        return False
    plain = target.device.type == "cpu" and _TENSORS.memory(target) is not None
    return plain and _TENSORS.describe(target, record.path) == record.spec


def _copy(wanted: Wanted, chunk: _Chunk, part: torch.Tensor, item: ReadItem, target: torch.Tensor) -> None:
    if target.size() != part.size():
        raise MismatchError(
            "a planner offers a tensor of another size than it asked for",
            [Difference(chunk.record.path, str(tuple(part.shape)), str(tuple(target.shape)))],
            kind="shape",
        )
    if target.dtype != part.dtype:
        here = str(target.dtype).removeprefix("torch.")
        wanted.converted.add(f"{item.dest_index.fqn} ({chunk.record.dtype} to {here})")
    target.copy_(part)


def _named(wanted: Wanted, read: Callable[[], None]) -> None:
    try:
        read()
    except CorruptError as error:
        if error.kind != "damaged-leaf":
            raise
        raise _damaged(wanted, error) from error


def _damaged(wanted: Wanted, error: MilepostError) -> CorruptError:
    blob = str(error.facts["blob"])
    return CorruptError(
        "the bytes of a shard are not those that were saved",
        kind="damaged-leaf",
        hint=f"milepost verify {wanted.store.url}; RunReader(root, which=...) takes an older generation, "
        "milepost.pytorch.dcp.load the newest that is sound",
        generation=wanted.manifest.number,
        shard=error.facts["leaf"],
        blob=blob,
        written_by_rank=rank_of(blob),
        read_by_rank=wanted.rank,
    )
