"""Know a tensor that several ranks have saved in chunks, built anew one plain tensor; and what each rank has by itself.

Nothing here needs ``torch.distributed``: whoever reads such a generation may be a single process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from milepost.errors import CorruptError
from milepost.records import Node
from milepost.state.kinds import ObjectKind, register_object

NAME = "torch.distributed.shards"
"""How a stored tree names such a tensor."""


@dataclass(frozen=True, slots=True)
class Shards:
    """Hold a tensor of ``size`` in chunks, each with the offsets of its first element."""

    size: tuple[int, ...]
    chunks: tuple[tuple[tuple[int, ...], torch.Tensor], ...]


@dataclass(frozen=True, slots=True)
class Own:
    """Hold a value that DCP is not to take apart; built anew, it is that value."""

    value: object


def node_of(size: Sequence[int], chunks: Sequence[tuple[Sequence[int], int]]) -> Node:
    """Return the node of a tensor whose chunks are ``(offsets, index of the leaf)``."""
    pieces = [["tuple", [_numbers(offsets), ["array", leaf]]] for offsets, leaf in chunks]
    return ["object", NAME, ["dict", [["size", _numbers(size)], ["chunks", ["list", pieces]]]]]


def _numbers(values: Sequence[int]) -> Node:
    return ["tuple", [["int", str(value)] for value in values]]


def state_of(shards: Shards) -> dict[str, object]:
    """Return the plain state of a tensor in chunks."""
    return {"size": shards.size, "chunks": [*shards.chunks]}


def assemble(state: Mapping[str, Any]) -> torch.Tensor:
    """Return the whole tensor. Raises `CorruptError` if the chunks are not exactly all of it."""
    size, chunks = tuple(state["size"]), [(tuple(offsets), chunk) for offsets, chunk in state["chunks"]]
    if not chunks:
        raise CorruptError("a stored tensor has no chunks", kind="damaged-tree", size=size)
    dtype = chunks[0][1].dtype
    for offsets, chunk in chunks:
        if not is_within(size, offsets, tuple(chunk.shape)) or chunk.dtype != dtype:
            raise CorruptError("a stored chunk is no part of its tensor", kind="damaged-tree", size=size, offsets=offsets)
    filled = sum(chunk.numel() for _, chunk in chunks)
    if filled != math.prod(size):
        raise CorruptError("the stored chunks of a tensor are not all of it", kind="damaged-tree", size=size, elements=filled)
    whole = torch.empty(size, dtype=dtype)
    for offsets, chunk in chunks:
        place = whole
        for axis, (start, length) in enumerate(zip(offsets, chunk.shape, strict=True)):
            place = place.narrow(axis, start if length else 0, length)
        place.copy_(chunk)
    return whole


def is_within(size: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]) -> bool:
    """Return whether a chunk lies within a tensor of ``size``."""
    if not len(size) == len(offsets) == len(lengths):
        return False
    return all(start >= 0 and start + length <= most for most, start, length in zip(size, offsets, lengths, strict=True))


def register() -> None:
    """Let such tensors be read by whoever has imported torch."""
    register_object(Shards, ObjectKind(NAME, state_of, make=assemble))
    register_object(Own, ObjectKind("torch.distributed.own", lambda own: own.value, make=lambda value: value))
