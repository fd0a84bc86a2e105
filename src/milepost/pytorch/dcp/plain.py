"""Turn what a state dict holds beside tensors into trees, and back into the bytes that DCP's planners take.

``torch.distributed.checkpoint`` pickles such values. Here plain data is a tree like any other; what only a pickle can hold
is written only where that was allowed, and read only where it is trusted.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem

from milepost.errors import UsageError
from milepost.pytorch.dcp.copies import CopiesPlanner
from milepost.pytorch.dcp.nodes import is_plain
from milepost.records import LeafRecord, Node
from milepost.state.filling import LeafSource
from milepost.state.inflate import inflate
from milepost.state.opaque import Opaque
from milepost.state.tree import Flat, flatten

Kind: TypeAlias = Literal["tensor", "value", "pickle", "stream"]
"""What an entry of a state dict is stored as: a tensor; a tree; a pickle of the value; the bytes of a planner's own."""


@runtime_checkable
class GivesValues(Protocol):
    """Be a planner that gives values as they are, and not as a pickle."""

    def value_of(self, index: MetadataIndex) -> object:
        """Return the value, which is no tensor."""


def is_untouched(planner: SavePlanner) -> bool:
    """Return whether the planner gives what stands in the state dict, and as it stands there."""
    kind = type(planner)
    if kind is CopiesPlanner:
        return True  # its copies are what stands there
    same = ("resolve_data", "transform_object", "lookup_object")
    return isinstance(planner, DefaultSavePlanner) and all(getattr(kind, n) is getattr(DefaultSavePlanner, n) for n in same)


def flat_value(item: WriteItem, planner: SavePlanner, path: str, *, allow_pickle: bool) -> tuple[Kind, Flat]:
    """Return a value that is no tensor as a tree. Raises `UsageError` for what only a pickle can hold, if none is allowed."""
    if isinstance(planner, DefaultSavePlanner) and is_untouched(planner):
        return _flat(planner.lookup_object(item.index), path, allow_pickle=allow_pickle)
    if isinstance(planner, GivesValues):
        return _flat(planner.value_of(item.index), path, allow_pickle=allow_pickle)
    stream = planner.resolve_data(item)
    assert isinstance(stream, io.BytesIO)
    stream.seek(0)
    try:
        # Reads what torch.save has written, and makes nothing but plain data of it.
        value = torch.load(stream, weights_only=True)
    except Exception as error:  # a planner's own bytes: whatever torch says, they are not plain data
        if not allow_pickle:
            raise _not_plain(path, "the bytes of a planner of your own") from error
        return "stream", flatten(stream.getvalue(), path)
    return _flat(value, path, allow_pickle=allow_pickle)


def _flat(value: object, path: str, *, allow_pickle: bool) -> tuple[Kind, Flat]:
    try:
        found = flatten(value, path, allow_pickle=allow_pickle)
    except UsageError as error:
        if not allow_pickle:
            raise _not_plain(path, type(value).__name__, error.facts.get("path")) from error
    else:
        if is_plain(found.node):
            return "value", found
        if not allow_pickle:
            raise _not_plain(path, type(value).__name__)
    return "pickle", flatten(Opaque(value), path, allow_pickle=True)


def _not_plain(path: str, what: str, within: object = None) -> UsageError:
    return UsageError(
        "a value of the state dict is no plain data, and pickling was not allowed",
        kind="pickle-not-allowed",
        hint="save its state_dict(), or RunWriter(..., allow_pickle=True) and RunReader(..., trust_pickle=True)",
        path=path,
        is_a=what,
        within=within if within != path else None,
    )


def stream_of(kind: Kind, node: Node, leaves: Sequence[LeafRecord], source: LeafSource, *, trust_pickle: bool) -> io.BytesIO:
    """Return the bytes that a planner's ``load_bytes`` takes: made here and now of data that was verified.

    Raises `UsageError` (kind ``pickle-not-trusted``) for a pickle, and for bytes that a planner may unpickle.
    """
    if kind == "stream" and not trust_pickle:
        raise UsageError(
            "bytes that a planner of your own has written may be a pickle, and pickles are not trusted",
            kind="pickle-not-trusted",
            hint="RunReader(..., trust_pickle=True) if you trust whoever wrote this run root",
            path=leaves[0].path if leaves else None,
        )
    value: Any = inflate(node, leaves, source, trust_pickle=trust_pickle)
    if kind == "stream":
        return io.BytesIO(value)
    stream = io.BytesIO()
    torch.save(value.value if kind == "pickle" else value, stream)
    stream.seek(0)
    return stream
