"""Write one rank's part of a save: its tensors and values into blobs of its own, durable and digested."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from milepost.clock import Clock
from milepost.encode.blob import Item, write_blob
from milepost.encode.blob import layout as blob_layout
from milepost.encode.digest import digest_of
from milepost.encode.plan import NewLeaf, Plan, Stored
from milepost.engine.capture import in_files
from milepost.engine.placing import FULL
from milepost.errors import CorruptError, InternalError, NotFoundError, StoreError, UsageError
from milepost.lifecycle.health import is_finite, is_scanned
from milepost.publish import layout
from milepost.publish.manifest import load_record
from milepost.publish.signed import is_signing
from milepost.pytorch.dcp.copies import CopiesPlanner, in_order
from milepost.pytorch.dcp.errands import Errand
from milepost.pytorch.dcp.naming import component_of, is_exact, path_of, rows_of
from milepost.pytorch.dcp.plain import Kind, flat_value, is_untouched
from milepost.pytorch.leaves import TensorKind
from milepost.records import BlobRecord, LeafRecord, LeafSpec, Manifest, Node
from milepost.state.kinds import load_edges
from milepost.state.leaves import LiveLeaf
from milepost.state.tree import Flat
from milepost.store.base import Store

_TENSORS = TensorKind()


@dataclass(frozen=True, slots=True)
class Share:
    """Say what one rank has written, as a whole."""

    rank: int
    errand: Errand
    blobs: tuple[BlobRecord, ...]
    """Those that it has written, and older ones that it shares."""
    nonfinite: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wrote:
    """Say what one rank has written of one entry: its node, whose leaves count from 0, and where their bytes are."""

    component: str
    kind: Kind
    node: Node
    leaves: tuple[LeafRecord, ...]
    """Their ``blob`` counts among the blobs of the share."""
    share: Share


@dataclass(slots=True)
class _Leaf:
    path: str
    spec: LeafSpec
    size_bytes: int
    bring: Callable[[], memoryview]
    scanned: bool = False
    """Its numbers are to be finite."""
    shareable: bool = False
    """No other leaf of the generation has its path."""
    digest: str = ""
    """Known where the base has such a leaf."""
    nonfinite: bool = False

    def view(self) -> memoryview:
        """Return its bytes, and note if there are weights or moments among them that are not finite."""
        data = self.bring()
        self.nonfinite = self.scanned and not is_finite(self.spec.dtype, data)
        return data


@dataclass(slots=True)
class _Part:
    """Be one entry that is to be written."""

    item: WriteItem
    component: str
    kind: Kind
    node: Node
    leaves: list[_Leaf]


@dataclass(frozen=True, slots=True)
class Task:
    """Hold what the writing of one rank's part goes by."""

    store: Store
    clock: Clock
    errand: Errand
    rank: int
    components: dict[str, str]
    allow_pickle: bool
    blob_bytes: int


def write_share(task: Task, items: Sequence[WriteItem], planner: SavePlanner) -> list[WriteResult]:
    """Write all items that changed since the base, and return for each where it is. Raises `StoreError`, `UsageError`.

    Nothing is read of a tensor before its bytes are written or compared, and its copy is dropped after: where tensors are on a
    device, one of them at a time is in the memory of this machine. Where there are copies, they come last, in blobs of their
    own. What fails leaves nothing of it.
    """
    load_edges()
    writing = _Writing(task, _base(task))
    try:
        for some in in_order([*items], planner):
            writing.write([_part(task, item, planner) for item in some])
            if isinstance(planner, CopiesPlanner):
                planner.free()
    except BaseException:
        _discard(task.store, writing.tried)
        raise
    nonfinite = tuple(leaf.path for part, _ in writing.parts for leaf in part.leaves if leaf.nonfinite)
    share = Share(task.rank, task.errand, tuple(writing.blobs), nonfinite)
    return [_result(part, leaves, share) for part, leaves in writing.parts]


@dataclass(slots=True)
class _Writing:
    """Be what one rank has written so far of one save."""

    task: Task
    base: Manifest | None
    blobs: list[BlobRecord] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    """The names of all blobs that were begun."""
    parts: list[tuple[_Part, tuple[LeafRecord, ...]]] = field(default_factory=list)

    def write(self, parts: Sequence[_Part]) -> None:
        """Write some entries, durably."""
        task, blobs = self.task, self.blobs
        leaves = [leaf for part in parts for leaf in part.leaves]
        planned = _planned(task, parts, self.base)
        records: dict[int, LeafRecord] = {}
        for some in (planned.fresh, planned.moved):
            for group in in_files([leaves[index].size_bytes for index in some], task.blob_bytes):
                indices = some[group.start : group.stop]
                blob, wrote = _write_blob(task, [leaves[index] for index in indices], len(blobs), self.tried)
                blobs.append(blob)
                records.update(zip(indices, wrote, strict=True))
        for index, old in planned.shared.items():
            assert self.base is not None
            if self.base.blobs[old.blob] not in blobs:
                blobs.append(self.base.blobs[old.blob])
            records[index] = replace(old, blob=blobs.index(self.base.blobs[old.blob]))
        placed = iter(records[index] for index in range(len(leaves)))
        self.parts += [(part, tuple(next(placed) for _ in part.leaves)) for part in parts]


def _result(part: _Part, leaves: tuple[LeafRecord, ...], share: Share) -> WriteResult:
    size_bytes = sum(leaf.size_bytes for leaf in leaves)
    return WriteResult(part.item.index, size_bytes, Wrote(part.component, part.kind, part.node, leaves, share))


def _planned(task: Task, parts: Sequence[_Part], base: Manifest | None) -> Plan:
    """Say which leaves the base has as they are: the generation that this claim has published last, if there is nothing
    against it. Tensors of a frozen network are so written once.
    """
    stored, strong = Stored(base), is_signing(task.store)
    new: list[NewLeaf] = []
    for part in parts:
        for leaf in part.leaves:
            if leaf.shareable and stored.knows(part.component, leaf.path, leaf.spec):
                leaf.digest = digest_of(leaf.view(), strong=strong)
            new.append(NewLeaf(part.component, leaf.path, leaf.spec, leaf.size_bytes, leaf.digest))
    return stored.plan(new)


def _base(task: Task) -> Manifest | None:
    if not task.errand.base:
        return None
    try:
        return load_record(task.store, layout.manifest(task.errand.base), Manifest)
    except (NotFoundError, CorruptError):
        return None  # then all of it is written


def _part(task: Task, item: WriteItem, planner: SavePlanner) -> _Part:
    fqn = item.index.fqn
    component = component_of(fqn, task.components)
    if item.type != WriteItemType.BYTE_IO:
        return _Part(item, component, "tensor", ["array", 0], [_tensor_leaf(item, planner, component)])
    kind, flat = flat_value(item, planner, path_of(component, fqn), allow_pickle=task.allow_pickle)
    leaves = [_value_leaf(leaf) for leaf in flat.leaves if isinstance(leaf, LiveLeaf)]
    return _Part(item, component, kind, flat.node, leaves)


def _tensor_leaf(item: WriteItem, planner: SavePlanner, component: str) -> _Leaf:
    assert item.tensor_data is not None
    chunk, size = item.tensor_data.chunk, item.tensor_data.size
    whole = tuple(chunk.sizes) == tuple(size)
    path = path_of(component, item.index.fqn, () if whole else tuple(chunk.offsets))
    if isinstance(planner, DefaultSavePlanner) and is_untouched(planner):
        # A cached plan may be that of another state, with other dtypes: DCP compares none. This looks, and copies nothing.
        spec = _TENSORS.describe(_dense(planner.lookup_object(item.index), path), path)
    else:
        spec = _TENSORS.describe(torch.empty(tuple(chunk.sizes), dtype=item.tensor_data.properties.dtype, device="cpu"), path)

    def bring() -> memoryview:
        tensor = planner.resolve_data(item)
        assert isinstance(tensor, torch.Tensor)
        return _bytes_of(tensor, spec, path)

    if spec.shape != tuple(chunk.sizes):
        raise _another(path, LeafSpec(spec.kind, spec.dtype, tuple(chunk.sizes)), spec)
    shareable = is_exact(item.index.fqn)
    return _Leaf(path, spec, _TENSORS.size_bytes(spec), bring, is_scanned(component), shareable)


def _bytes_of(tensor: torch.Tensor, spec: LeafSpec, path: str) -> memoryview:
    """Return a tensor's bytes in C order: where they lie, if they lie so on the host."""
    tensor = _dense(tensor, path)
    found = _TENSORS.describe(tensor, path)
    if found != spec:
        raise _another(path, spec, found)
    memory = _TENSORS.memory(tensor)
    if memory is None:
        memory = memoryview(bytearray(_TENSORS.size_bytes(spec)))
        if memory:
            _TENSORS.copy_into(tensor, memory)
    return memory


def _dense(tensor: torch.Tensor, path: str) -> torch.Tensor:
    """Return the tensor, whose elements lie in memory of its own. Raises `UsageError` for one that only stands for others."""
    stands_for_others: bool = is_traceable_wrapper_subclass(tensor)
    if not stands_for_others:
        return tensor.detach()
    wait = getattr(tensor, "wait", None)
    if wait is None:
        raise UsageError(
            "a tensor of a class that wraps others cannot be saved",
            kind="unsupported-dtype",
            hint="save what it is made of: its own tensors, each under a name",
            path=path,
            type=type(tensor).__name__,
        )
    whole: torch.Tensor = wait()  # the result of a collective that may not have come yet
    return whole.detach()


def _another(path: str, planned: LeafSpec, found: LeafSpec) -> UsageError:
    return UsageError(
        "a tensor is not what was planned",
        kind="stale-plan",
        hint="give each state a subclass of its planner of its own: a planner caches plans under its class's name",
        path=path,
        planned=planned,
        found=found,
    )


def _value_leaf(leaf: LiveLeaf) -> _Leaf:
    def bring() -> memoryview:
        memory = memoryview(bytearray(leaf.size_bytes))
        leaf.copy_into(memory)
        return memory

    return _Leaf(leaf.path, leaf.spec, leaf.size_bytes, bring)


def _write_blob(task: Task, leaves: Sequence[_Leaf], part: int, tried: list[str]) -> tuple[BlobRecord, list[LeafRecord]]:
    """Write one blob. A file whose fsync failed is condemned: the bytes are written anew under another name, once."""
    errand = task.errand
    items = [Item(leaf.path, leaf.spec.dtype, leaf.spec.shape, leaf.size_bytes) for leaf in leaves]
    plan = blob_layout(items, {"milepost_run": errand.run_id, "milepost_generation": str(errand.number)})
    views = [leaf.view for leaf in leaves]
    known = [leaf.digest or None for leaf in leaves]
    for last_try in (False, True):
        rows = rows_of(task.rank, errand.ranks)
        name = layout.blob(errand.number, errand.term, task.clock.nonce(), part, rows)
        tried.append(name)
        try:
            with task.store.open_blob(name, size_bytes=plan.size_bytes) as sink:
                written = write_blob(sink, plan, views, known, strong=is_signing(task.store))
                sink.commit()
            break
        except StoreError as error:
            if last_try or error.kind in FULL:
                raise
    records = [
        LeafRecord(leaf.path, leaf.spec.kind, leaf.spec.dtype, leaf.spec.shape, part, *span, digest)
        for leaf, span, digest in zip(leaves, plan.offsets, written.leaf_digests, strict=True)
    ]
    return BlobRecord(name, written.size_bytes, written.digest), records


def _discard(store: Store, names: Sequence[str]) -> None:
    for name in names:
        try:
            store.delete(name)
        except StoreError:
            return  # the coordinator deletes it when the next save begins, or whoever claims the root next


def write_values(task: Task, flat: Flat, blob: int) -> tuple[list[BlobRecord], list[LeafRecord]]:
    """Write the leaves of one more tree, if it has any, into a blob that will be the ``blob``-th of the generation."""
    leaves = [_value_leaf(leaf) for leaf in flat.leaves if isinstance(leaf, LiveLeaf)]
    tried: list[str] = []
    if not leaves:
        return [], []
    try:
        record, records = _write_blob(task, leaves, blob, tried)
    except BaseException:
        _discard(task.store, tried)
        raise
    return [record], records


def shares_of(results: Sequence[Sequence[WriteResult]]) -> list[Share]:
    """Return what each rank that has written anything has written, by rank."""
    found: dict[int, Share] = {}
    for result in (result for some in results for result in some):
        wrote: Any = result.storage_data
        if not isinstance(wrote, Wrote):
            raise InternalError("a result of a save is not milepost's", kind="foreign-result", fqn=result.index.fqn)
        found[wrote.share.rank] = wrote.share
    return [found[rank] for rank in sorted(found)]
