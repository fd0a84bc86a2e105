"""Keep DCP's `Metadata` as a tree: what of it the tensors and values themselves do not say. Never a pickle.

The component ``dcp`` holds ``ranks``, the ``entries`` (name, component, kind) in DCP's own order, ``properties`` of tensors
that have unusual ones, and ``planner_data``. Sizes, dtypes and chunks are read from the trees of the other components.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from milepost.errors import CorruptError, MismatchError, UsageError
from milepost.pytorch.dcp.naming import INDEX
from milepost.pytorch.dcp.nodes import is_plain
from milepost.pytorch.dcp.plain import Kind
from milepost.pytorch.shards import NAME, is_within
from milepost.records import ComponentRecord, Difference, LeafRecord, Manifest, Node
from milepost.state.filling import LeafSource
from milepost.state.inflate import inflate, skeleton
from milepost.state.opaque import Opaque
from milepost.state.tree import Flat, flatten

_MEMORY_FORMATS = {
    "contiguous_format": torch.contiguous_format,
    "channels_last": torch.channels_last,
    "preserve_format": torch.preserve_format,
}
_KINDS = ("tensor", "value", "pickle", "stream")


@dataclass(frozen=True, slots=True)
class Stored:
    """Say where one entry of a state dict is: in which component, as what, and the leaves of its chunks by their offsets."""

    component: ComponentRecord
    kind: Kind
    node: Node
    chunks: Mapping[tuple[int, ...], LeafRecord]


@dataclass(frozen=True, slots=True)
class Index:
    """Hold what a generation says to DCP."""

    ranks: int
    metadata: Metadata
    entries: Mapping[str, Stored]


def flat_index(metadata: Metadata, entries: Mapping[str, tuple[str, Kind]], ranks: int, *, allow_pickle: bool) -> Flat:
    """Return the tree of component ``dcp``; ``entries`` says of each name its component and kind.

    Raises `UsageError` for what a planner has added that is no plain data, unless pickling was allowed.
    """
    properties = {
        fqn: unusual
        for fqn, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata) and (unusual := _unusual(entry.properties))
    }
    value = {
        "ranks": ranks,
        "entries": [(fqn, component, kind) for fqn, (component, kind) in entries.items()],
        "properties": properties,
        "planner_data": metadata.planner_data,
    }
    try:
        found = flatten(value, INDEX)
        if is_plain(found.node):
            return found
        cause: UsageError | None = None
    except UsageError as error:
        cause = error
    if not allow_pickle:
        raise UsageError(
            "what the planner keeps of this save (planner_data) is no plain data, and pickling was not allowed",
            kind="pickle-not-allowed",
            hint="let the planner return dicts, lists, text and numbers, or RunWriter(..., allow_pickle=True)",
            is_a=type(metadata.planner_data).__name__,
        ) from cause
    return flatten({**value, "planner_data": Opaque(metadata.planner_data)}, INDEX, allow_pickle=True)


def _unusual(properties: TensorProperties) -> dict[str, object]:
    found: dict[str, object] = {}
    if properties.requires_grad:
        found["requires_grad"] = True
    if properties.pin_memory:
        found["pin_memory"] = True
    if properties.memory_format != torch.contiguous_format:
        found["memory_format"] = str(properties.memory_format).removeprefix("torch.")
    return found


def read_index(manifest: Manifest, source: LeafSource, root: str, *, trust_pickle: bool) -> Index:
    """Return what a generation says to DCP. ``source`` reads leaves of component ``dcp``.

    Raises `MismatchError` (kind ``not-dcp``) for a generation that was saved in another way, `CorruptError` for one that
    nobody has written.
    """
    record = manifest.component(INDEX)
    if record is None:
        raise MismatchError(
            "this generation was not saved through torch.distributed.checkpoint",
            [Difference(INDEX, "nothing", "a component", "missing")],
            kind="not-dcp",
            hint="CheckpointEngine.resume or milepost.load reads it; which= takes another",
            root=root,
            generation=manifest.number,
        )
    value = inflate(record.tree, record.leaves, source, trust_pickle=trust_pickle)
    try:
        return _index(manifest, value)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CorruptError(
            "what a generation says to torch.distributed.checkpoint is not what milepost writes",
            kind="damaged-tree",
            generation=manifest.number,
        ) from error


def _index(manifest: Manifest, value: Mapping[str, Any]) -> Index:
    nodes: dict[str, dict[str, Node]] = {}
    for record in manifest.components:
        if record.name != INDEX:
            tag, pairs = record.tree
            nodes[record.name] = dict(pairs) if tag == "dict" else {}
    entries: dict[str, Stored] = {}
    described: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    for fqn, name, kind in value["entries"]:
        component = manifest.component(name)
        if component is None or kind not in _KINDS:
            raise ValueError(name)
        node = nodes[name][fqn]
        if kind == "tensor":
            described[fqn], chunks = _tensor(node, component, value["properties"].get(fqn, {}))
        else:
            described[fqn], chunks = BytesStorageMetadata(), {}
        entries[fqn] = Stored(component, kind, node, chunks)
    planner_data = value["planner_data"]
    if isinstance(planner_data, Opaque):
        planner_data = planner_data.value
    return Index(int(value["ranks"]), Metadata(described, planner_data), entries)


def _tensor(
    node: Node, component: ComponentRecord, unusual: Mapping[str, Any]
) -> tuple[TensorStorageMetadata, dict[tuple[int, ...], LeafRecord]]:
    size, places = _chunks(node, component)
    dtype = vars(torch)[next(iter(places.values())).dtype]
    properties = TensorProperties(
        dtype=dtype,
        requires_grad=unusual.get("requires_grad", False),
        memory_format=_MEMORY_FORMATS[unusual.get("memory_format", "contiguous_format")],
        pin_memory=unusual.get("pin_memory", False),
    )
    chunks = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(leaf.shape)) for offsets, leaf in places.items()]
    return TensorStorageMetadata(properties, torch.Size(size), chunks), places


def _chunks(node: Node, component: ComponentRecord) -> tuple[tuple[int, ...], dict[tuple[int, ...], LeafRecord]]:
    if node[0] == "array":
        leaf = component.leaves[_index_of(node, component)]
        return leaf.shape, {(0,) * len(leaf.shape): leaf}
    if node[:2] != ["object", NAME]:
        raise ValueError(node[0])
    state = dict(node[2][1])
    size = tuple(skeleton(state["size"], component.leaves))
    places: dict[tuple[int, ...], LeafRecord] = {}
    for tag, (offsets, array) in state["chunks"][1]:
        leaf = component.leaves[_index_of(array, component)]
        at = tuple(skeleton(offsets, component.leaves))
        if tag != "tuple" or leaf.kind != "torch" or not is_within(size, at, leaf.shape):
            raise ValueError(leaf.path)
        places[at] = leaf
    if sum(math.prod(leaf.shape) for leaf in places.values()) != math.prod(size):
        raise ValueError(size)  # a load would leave the rest of a tensor as it was, and say nothing
    return size, places


def _index_of(node: Node, component: ComponentRecord) -> int:
    tag, index = node
    if tag != "array" or not 0 <= index < len(component.leaves):
        raise ValueError(tag)
    return int(index)


def key_of(index: MetadataIndex) -> tuple[str, tuple[int, ...] | None]:
    """Return what an index names: a value by its name, a chunk by its offsets, too."""
    return index.fqn, None if index.offset is None else tuple(index.offset)
