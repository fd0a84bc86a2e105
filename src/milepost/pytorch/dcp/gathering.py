"""Make one generation of what all ranks have written. Publishes nothing: it says what is to be published, or why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.storage import WriteResult

from milepost.errors import ConflictError, InternalError, StoreError, UsageError
from milepost.publish import layout
from milepost.pytorch.dcp.index import key_of
from milepost.pytorch.dcp.naming import path_of
from milepost.pytorch.dcp.nodes import renumbered
from milepost.pytorch.dcp.plain import Kind
from milepost.pytorch.dcp.writing import Share, Wrote, shares_of
from milepost.pytorch.shards import node_of
from milepost.records import BlobRecord, ComponentRecord, LeafRecord, LeafSpec, Node
from milepost.store.base import Store

_Key = tuple[str, tuple[int, ...] | None]


@dataclass(frozen=True, slots=True)
class Gathered:
    """Hold the content of a generation."""

    blobs: tuple[BlobRecord, ...]
    components: tuple[ComponentRecord, ...]
    entries: dict[str, tuple[str, Kind]]
    """By name, its component and what it is stored as."""
    nonfinite: tuple[str, ...]


def gather(metadata: Metadata, results: Sequence[Sequence[WriteResult]]) -> Gathered:
    """Return what the ranks have written as one content, in the order of the metadata.

    Raises `InternalError` (kind ``lost-shard``) unless there is exactly one result for everything that was planned: nothing
    is published of which a part is missing.
    """
    shares = shares_of(results)
    blobs: dict[str, BlobRecord] = {}
    places: dict[int, list[int]] = {}
    for share in shares:
        # Two ranks may share an older blob: a manifest names each once.
        blobs |= {blob.name: blob for blob in share.blobs}
        names = list(blobs)
        places[share.rank] = [names.index(blob.name) for blob in share.blobs]
    left = _by_key(results)
    trees: dict[str, _Tree] = {}
    entries: dict[str, tuple[str, Kind]] = {}
    for fqn, described in metadata.state_dict_metadata.items():
        if isinstance(described, TensorStorageMetadata):
            wrote = _chunks(fqn, described, left)
        else:
            wrote = [_taken(left, (fqn, None), fqn, LeafSpec("a value", "", ()))]
        component, kind = wrote[0].component, wrote[0].kind
        tree = trees.setdefault(component, _Tree([], []))
        tree.add(fqn, described, wrote, places)
        entries[fqn] = (component, kind)
    if left:
        unplanned = ", ".join(sorted({fqn for fqn, _ in left})[:5])
        raise InternalError("a rank has written what nobody planned", kind="unplanned-shard", names=unplanned)
    components = [ComponentRecord(name, ["dict", tree.pairs], tuple(tree.leaves)) for name, tree in trees.items()]
    nonfinite = tuple(path for share in shares for path in share.nonfinite)
    return Gathered(tuple(blobs.values()), tuple(components), entries, nonfinite)


@dataclass(slots=True)
class _Tree:
    """Be one component in the making."""

    pairs: list[list[object]]
    leaves: list[LeafRecord]

    def add(self, fqn: str, described: object, wrote: Sequence[Wrote], places: dict[int, list[int]]) -> None:
        before = len(self.leaves)
        for one in wrote:
            self.leaves += [replace(leaf, blob=places[one.share.rank][leaf.blob]) for leaf in one.leaves]
        self.pairs.append([fqn, _node(described, wrote, before)])


def _node(described: object, wrote: Sequence[Wrote], before: int) -> Node:
    if not isinstance(described, TensorStorageMetadata):
        return renumbered(wrote[0].node, before)
    if len(wrote) == 1 and tuple(described.chunks[0].sizes) == tuple(described.size):
        return ["array", before]
    chunks = [(tuple(chunk.offsets), before + index) for index, chunk in enumerate(described.chunks)]
    return node_of(tuple(described.size), chunks)


def _by_key(results: Sequence[Sequence[WriteResult]]) -> dict[_Key, Wrote]:
    found: dict[_Key, Wrote] = {}
    for result in (result for some in results for result in some):
        key = key_of(result.index)
        if key in found:
            raise InternalError("two ranks have written the same", kind="twice-written", name=path_of("", key[0], key[1] or ()))
        found[key] = result.storage_data
    return found


def _chunks(fqn: str, described: TensorStorageMetadata, left: dict[_Key, Wrote]) -> list[Wrote]:
    wrote: list[Wrote] = []
    for chunk in described.chunks:
        spec = LeafSpec("torch", str(described.properties.dtype).removeprefix("torch."), tuple(chunk.sizes))
        one = _taken(left, (fqn, tuple(chunk.offsets)), path_of("", fqn, tuple(chunk.offsets)), spec)
        if one.kind != "tensor" or one.leaves[0].shape != spec.shape:
            raise _stale(fqn, spec, one)
        if wrote and wrote[0].leaves[0].dtype != one.leaves[0].dtype:
            raise _stale(fqn, wrote[0].leaves[0].spec, one)
        wrote.append(one)
    if not wrote:
        raise InternalError("a tensor was planned without any chunk", kind="lost-shard", name=fqn)
    return wrote


def _taken(left: dict[_Key, Wrote], key: _Key, name: str, planned: LeafSpec) -> Wrote:
    wrote = left.pop(key, None)
    if wrote is None:
        raise InternalError(
            "no rank has written a part of the state; nothing is published", kind="lost-shard", name=name, planned=planned
        )
    return wrote


def _stale(fqn: str, planned: LeafSpec, wrote: Wrote) -> UsageError:
    return UsageError(
        "what was written is not what was planned",
        kind="stale-plan",
        hint="give each state a subclass of its planner of its own: a planner caches plans under its class's name",
        name=fqn,
        planned=planned,
        found=wrote.leaves[0].spec if wrote.leaves else wrote.kind,
    )


def check_there(store: Store, run_id: str, term: int, shares: Sequence[Share]) -> None:
    """Raise unless every blob was written for this very claim and lies, whole, where the coordinator looks.

    A rank on another machine may have written to a directory of the same name that nobody else sees.
    """
    for share in shares:
        if (share.errand.run_id, share.errand.term) != (run_id, term):
            raise ConflictError(
                "a rank has written for another claim of the run than the coordinator's",
                kind="stale-errand",
                hint="save once more; if it persists, look how long the file system of this rank answers out of its memory",
                root=store.url,
                rank=share.rank,
                term=share.errand.term,
                claimed_term=term,
            )
    there = {entry.name: entry.size_bytes for entry in store.list(layout.BLOBS)}
    for share in shares:
        for blob in share.blobs:
            if there.get(blob.name) != blob.size_bytes:
                raise StoreError(
                    "the coordinator does not see what a rank has written",
                    kind="not-shared",
                    retryable=False,
                    hint="all ranks need the same directory: a shared file system, and an absolute path",
                    root=store.url,
                    rank=share.rank,
                    blob=blob.name,
                )
