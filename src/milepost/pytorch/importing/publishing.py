"""Publish what was read from somebody else's checkpoint as one generation, through the writer that DCP's saves go through.

Tensors are brought one chunk at a time, when their bytes are written: no more than one of them, twice, is in memory. What
fails on the way, the source being damaged perhaps, leaves no generation.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from milepost.engine.reader import UNKNOWN
from milepost.errors import InternalError
from milepost.lifecycle.retain import Keep
from milepost.pytorch.dcp.holding import give_up, is_held
from milepost.pytorch.dcp.writer import RunWriter, Saved
from milepost.pytorch.importing.base import Options, not_empty

_ALL = Keep(last=1_000_000_000)
"""How many generations stay is for the trainer to say: an import that is added takes none."""

Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Be one chunk of a tensor, which is read when it is written."""

    sizes: Numbers
    bring: Callable[[], torch.Tensor]


@dataclass(slots=True)
class Content:
    """Collect what a generation is to hold: by the name that DCP gives it, and the path where it stands in the state dict."""

    tensors: dict[str, tuple[torch.dtype, Numbers, Mapping[Numbers, Piece]]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    sources: list[Callable[[], None]] = field(default_factory=list)
    """What raises if that which is read has changed since it was looked at: asked when all of it was."""
    ranks: int = 1
    """How many ranks have saved it: where as many load, each gets what it had by itself."""

    def add_tensor(
        self, path: tuple[str | int, ...], dtype: torch.dtype, size: Numbers, pieces: Mapping[Numbers, Piece], name: str = ""
    ) -> None:
        """Take a tensor; ``pieces`` are by the offsets of their first element."""
        fqn = name or ".".join(map(str, path))
        self.tensors[fqn] = (dtype, size, pieces)
        self.paths[fqn] = path

    def add_value(self, path: tuple[str | int, ...], value: object, name: str = "") -> None:
        """Take what is no tensor."""
        fqn = name or ".".join(map(str, path))
        self.values[fqn] = value
        self.paths[fqn] = path


def publish(
    content: Content, root: str, step: int, options: Options, *, components: Mapping[str, str], counters: Mapping[str, int]
) -> Saved:
    """Publish the content as a generation of ``root``, and return which it has become.

    Raises what `milepost.pytorch.dcp.save` does, and what reading the source raises.
    """
    writer = _Writer(
        root,
        step=step,
        reason="imported",
        counters=counters,
        keep=_ALL,
        components=components,
        allow_pickle=options.trust_pickle,
        key_file=options.key_file,
    )
    writer.saved_by = content.ranks
    planner = _Planner(content)
    was_held = is_held(root, options.key_file)
    try:
        writer.set_up_storage_writer(True)
        writer.check_empty(options)  # once more: since it was looked at, somebody may have published
        plan = writer.prepare_local_plan(SavePlan(planner.items))
        [plan] = writer.prepare_global_plan([plan])
        results = writer.write_data(plan, planner).wait()
        for check_unchanged in content.sources:
            check_unchanged()
        metadata = planner.metadata()
        writer.finish(metadata, [results])
    finally:
        if not was_held:
            give_up(root)
    saved = metadata.storage_data
    if not isinstance(saved, Saved):
        raise InternalError("an import has ended without a generation", kind="no-generation", step=step)
    return saved


class _Writer(RunWriter):
    """Write as one process what several ranks have saved, of whose surroundings nobody knows."""

    saved_by = 1

    def check_empty(self, options: Options) -> None:
        """Raise `UsageError` (kind ``not-empty``) if the root that is claimed now has generations and none is to be added."""
        head = self._coordinators.session.chain.head
        if head is not None and not options.add:
            raise not_empty(str(self.root), head.number)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        session = self._coordinators.session
        here, session.fingerprint = session.fingerprint, {**UNKNOWN}
        try:
            super().finish(metadata, results)
        finally:
            session.fingerprint = here

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        prepared = super().prepare_global_plan(plans)
        self._ranks = self.saved_by
        return prepared


class _Planner(SavePlanner):
    """Give the writer what it asks for; nothing is planned, since there is one process."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._described = {fqn: _described(*tensor) for fqn, tensor in content.tensors.items()}
        self.items = [*self._tensor_items(), *map(_value_item, content.values)]

    def _tensor_items(self) -> list[WriteItem]:
        found = []
        for fqn, described in self._described.items():
            for chunk in described.chunks:
                data = TensorWriteData(chunk, described.properties, described.size)
                found.append(WriteItem(MetadataIndex(fqn, chunk.offsets), WriteItemType.SHARD, tensor_data=data))
        return found

    def metadata(self) -> Metadata:
        """Return what DCP is told when it loads this."""
        values = {fqn: BytesStorageMetadata() for fqn in self._content.values}
        return Metadata({**self._described, **values}, planner_data=dict(self._content.paths))

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        index = write_item.index
        _, _, pieces = self._content.tensors[index.fqn]
        return pieces[tuple(index.offset or ())].bring()

    def value_of(self, index: MetadataIndex) -> object:
        """Return a value as it is: see `milepost.pytorch.dcp.plain.GivesValues`."""
        return self._content.values[index.fqn]

    def set_up_planner(self, *_: Any, **__: Any) -> None:
        raise _unplanned()

    def create_local_plan(self) -> SavePlan:
        raise _unplanned()

    def create_global_plan(self, *_: Any) -> tuple[list[SavePlan], Metadata]:
        raise _unplanned()

    def finish_plan(self, *_: Any) -> SavePlan:
        raise _unplanned()


def _unplanned() -> InternalError:
    return InternalError("an import was asked for a plan, and has none: nothing is shared out over ranks", kind="no-plan")


def _described(dtype: torch.dtype, size: Sequence[int], pieces: Mapping[Numbers, Piece]) -> TensorStorageMetadata:
    chunks = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(piece.sizes)) for offsets, piece in pieces.items()]
    return TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(size), chunks)


def _value_item(fqn: str) -> WriteItem:
    return WriteItem(MetadataIndex(fqn), WriteItemType.BYTE_IO)
