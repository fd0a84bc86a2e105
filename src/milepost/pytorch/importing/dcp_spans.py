"""Hold what a directory of DCP's says, and check that it can be true: every range in its file, every chunk in its tensor."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from milepost.errors import CorruptError, MilepostError
from milepost.pytorch.importing.base import Stamp, check_stamp, damaged, open_within, stamp_of
from milepost.pytorch.shards import is_within


@dataclass(frozen=True, slots=True)
class Span:
    """Be bytes ``[start, start + length)`` of a file of the directory."""

    file: str
    start: int
    length: int
    is_raw: bool = False
    """The bytes are the tensor's own; else what ``torch.save`` has made of it."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Be one part of a tensor."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """Be a tensor in chunks, which are all of it."""

    dtype: torch.dtype
    size: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class DcpSource:
    """Hold what a directory says, checked."""

    directory: Path
    tensors: Mapping[str, SavedTensor]
    values: Mapping[str, Span]
    paths: Mapping[str, tuple[str | int, ...]]
    """Where in the state dict each of them stood, as far as the writer said."""
    ranks: int
    """How many ranks have written it, as far as the names of files say."""
    unchecked: set[str] = field(default_factory=set)
    """What was read, and has no checksum."""
    stamps: dict[str, Stamp] = field(default_factory=dict)
    """By file, what it was when its ranges were checked."""

    def check_unchanged(self) -> None:
        """Raise `CorruptError` (kind ``damaged-source``) if a file is not what it was: then half may be of another save."""
        for file, stamp in self.stamps.items():
            with open_within(self.directory, file) as opened:
                check_stamp(opened, stamp, self.directory / file)


def check(source: DcpSource) -> None:
    """Raise `CorruptError` (kind ``damaged-source``) for what cannot be: before a byte of a tensor is read."""
    _check_spans(source)
    for fqn, tensor in source.tensors.items():
        _check_chunks(source.directory, fqn, tensor)


def _check_spans(source: DcpSource) -> None:
    """Raise `CorruptError` unless each range lies in its file, and all of a file's ranges are no more than it."""
    spans = [chunk.span for tensor in source.tensors.values() for chunk in tensor.chunks] + [*source.values.values()]
    told: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for span in spans:
        if span.file not in sizes:
            source.stamps[span.file] = _stamp_within(source.directory, span.file)
            sizes[span.file] = source.stamps[span.file][0]
        if span.start + span.length > sizes[span.file]:
            raise damaged(
                "a file is shorter than what is said to be in it",
                source.directory,
                file=span.file,
                size_bytes=sizes[span.file],
                needed_bytes=span.start + span.length,
            )
        told[span.file] = told.get(span.file, 0) + span.length
    for file, total in told.items():
        if total > sizes[file]:
            raise damaged("more is said to be in a file than it has bytes", source.directory, file=file, size_bytes=sizes[file])


def _stamp_within(directory: Path, file: str) -> Stamp:
    try:
        with open_within(directory, file) as opened:
            return stamp_of(opened)
    except MilepostError as error:
        if error.kind != "source-missing":
            raise
        raise damaged("a file that belongs to it is missing", directory, file=file) from error


def _check_chunks(path: Path, fqn: str, tensor: SavedTensor) -> None:
    """Raise `CorruptError` unless the chunks are the whole tensor, each element once, and fit into their ranges."""
    for chunk in tensor.chunks:
        if not is_within(tensor.size, chunk.offsets, chunk.sizes):
            raise _not_whole(path, fqn, "a chunk lies outside of its tensor")
        if math.prod(chunk.sizes) * tensor.dtype.itemsize > chunk.span.length:
            raise _not_whole(path, fqn, "a tensor is larger than its bytes")
    filled = sum(math.prod(chunk.sizes) for chunk in tensor.chunks)
    if not tensor.chunks or filled != math.prod(tensor.size):
        raise _not_whole(path, fqn, "the chunks of a tensor are not all of it")
    if len(tensor.chunks) > 1 and _overlap(tensor):
        raise _not_whole(path, fqn, "two chunks of a tensor overlap")


def _overlap(tensor: SavedTensor) -> bool:
    """Return whether two chunks have an element in common: a sweep along the axis that most of the splits are on."""
    axis = max(range(len(tensor.size)), key=lambda axis: len({chunk.offsets[axis] for chunk in tensor.chunks}))
    active: list[tuple[int, int]] = []
    order = sorted(range(len(tensor.chunks)), key=lambda index: tensor.chunks[index].offsets[axis])
    for index in order:
        chunk = tensor.chunks[index]
        if not math.prod(chunk.sizes):
            continue
        start = chunk.offsets[axis]
        del active[: bisect_right(active, (start, len(order)))]
        if any(_meet(chunk, tensor.chunks[other]) for _, other in active):
            return True
        insort(active, (start + chunk.sizes[axis], index))
    return False


def _meet(a: Chunk, b: Chunk) -> bool:
    return all(
        start < other + other_length and other < start + length
        for start, length, other, other_length in zip(a.offsets, a.sizes, b.offsets, b.sizes, strict=True)
    )


def _not_whole(path: Path, fqn: str, what: str) -> CorruptError:
    return damaged(what, path, name=fqn)
