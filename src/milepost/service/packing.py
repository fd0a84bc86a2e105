"""Lay a part of a version out as one safetensors file, and fill memory with it: each tensor is copied once, and digested once.

safetensors knows no holes, so tensors stand in falling order of the power of two that divides their size, 64 at most: whatever
is a multiple of 64 bytes begins at one, everything else at a multiple of its element. What lies in one memory is stored once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import xxhash

from milepost.encode.blob import PAGE_BYTES, SAFETENSORS_DTYPES
from milepost.encode.crew import Crew
from milepost.errors import UsageError
from milepost.records import LeafSpec, Node
from milepost.service.index import CHUNK_BYTES, Chunks
from milepost.service.rounding import rounded
from milepost.state.dtypes import dtype_name, dtype_named
from milepost.state.late import is_late, start_copies
from milepost.state.leaves import LiveLeaf
from milepost.state.protocol import Stateful
from milepost.state.tree import flatten

ALIGN_BYTES = 64
MOST_HEADER_BYTES = 100_000_000
"""What readers of safetensors take."""
METADATA = "milepost"
"""Under which name `Notes` stand in the header, as JSON."""
_MOST_THREADS = 4


@dataclass(frozen=True, slots=True)
class Notes:
    """Say of a part what safetensors has no word for. Members that say nothing are left out; a reader may do without any."""

    tied: dict[str, str] = field(default_factory=dict)
    """Names that lie in the memory of another, with that one's name: they stand nowhere else."""
    dtypes: dict[str, str] = field(default_factory=dict)
    """The real dtype of what is stored as bytes: ``U8`` with one more axis, the bytes of an element."""
    tree: Node | None = None
    """How all of it hangs together: docs/FORMAT.md has the nodes; the arrays in it are those of ``leaves``."""
    leaves: list[tuple[str, str]] = field(default_factory=list)
    """The name and the kind of each array of the tree."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Be a part before it is brought: which bytes it will have, and the live memory that they come from."""

    header: bytes
    """Everything before the first tensor: length, JSON and padding; a multiple of 4096."""
    leaves: tuple[LiveLeaf, ...]
    """In the order of the file."""
    size_bytes: int


def parcel(value: object, slot: str, publish_dtype: str | None = None) -> Parcel:
    """Lay ``value`` out: a mapping of tensors and arrays, or any tree of them that a checkpoint can hold. No array is copied.

    With ``publish_dtype`` floating arrays are rounded to it. Raises `UsageError` naming the path of what cannot be saved, as
    `milepost.state.tree.flatten` does: nothing is pickled.
    """
    if not isinstance(value, Mapping) and isinstance(value, Stateful):
        value = value.state_dict()
    flat = flatten(value, slot)
    leaves = [rounded(_little(leaf), publish_dtype) for leaf in flat.leaves if isinstance(leaf, LiveLeaf)]
    keys = flat_keys(flat.node)
    names = _unique(leaf.path.removeprefix(slot).removeprefix("/") for leaf in leaves) if keys is None else _first(keys)
    tied = {} if keys is None else {key: names[index] for key, index in keys if key != names[index]}
    odd = {name: leaf.spec.dtype for name, leaf in zip(names, leaves, strict=True) if leaf.spec.dtype not in SAFETENSORS_DTYPES}
    kinds = [leaf.spec.kind for leaf in leaves]
    return _laid_out(names, leaves, Notes(tied, odd, flat.node, list(zip(names, kinds, strict=True))), slot)


def flat_keys(node: Node | None) -> list[tuple[str, int]] | None:
    """Return which leaf stands under which key, if a tree is a flat mapping of arrays; else None, also for what is no tree."""
    match node:
        case ["dict" | "ordered-dict", list(pairs), *_]:
            found = [_flat_key(pair) for pair in pairs]
            keys = [each for each in found if each is not None]
            return keys if len(keys) == len(found) else None
        case _:
            return None


def _flat_key(pair: object) -> tuple[str, int] | None:
    match pair:
        case [str(key), ["array", int(index)]] if key != "__metadata__":
            return key, index
        case _:
            return None


def _first(keys: list[tuple[str, int]]) -> list[str]:
    names: dict[int, str] = {}
    for key, index in keys:
        names.setdefault(index, key)
    return [names[index] for index in range(len(names))]


def _unique(paths: Iterator[str]) -> list[str]:
    names: dict[str, None] = {"__metadata__": None}
    for path in paths:
        name, count = path, 1
        while name in names:
            count += 1
            name = f"{path}#{count}"
        names[name] = None
    return [*names][1:]


def _little(leaf: LiveLeaf) -> LiveLeaf:
    """Return a leaf of numbers that a big-endian machine wrote as one of this machine's: same values."""
    if leaf.spec.kind != "numpy" or not leaf.spec.dtype.startswith(">"):
        return leaf
    native = dtype_named(leaf.spec.dtype).newbyteorder("<")
    if native.kind not in "iufc":
        return leaf

    def swap(value: np.ndarray[Any, Any], into: memoryview) -> None:
        np.copyto(np.ndarray(value.shape, native, into), value)

    return replace(leaf, spec=LeafSpec("numpy", dtype_name(native), leaf.spec.shape), copy=swap)


def _laid_out(names: list[str], leaves: list[LiveLeaf], notes: Notes, slot: str) -> Parcel:
    order = sorted(range(len(leaves)), key=lambda index: -_alignment(leaves[index].size_bytes))
    spans: dict[int, tuple[int, int]] = {}
    stop = 0
    for index in order:
        start, stop = stop, stop + leaves[index].size_bytes
        spans[index] = (start, stop)
    told = {key: value for key, value in msgspec.to_builtins(notes).items() if value}
    entries: dict[str, object] = {"__metadata__": {"format": "pt", METADATA: msgspec.json.encode(told).decode()}}
    for index, name in enumerate(names):
        dtype, shape = _stored_as(leaves[index])
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": spans[index]}
    header = _header(entries, slot)
    return Parcel(header, tuple(leaves[index] for index in order), len(header) + stop)


def _alignment(size_bytes: int) -> int:
    return min(size_bytes & -size_bytes, ALIGN_BYTES) or ALIGN_BYTES


def _stored_as(leaf: LiveLeaf) -> tuple[str, tuple[int, ...]]:
    dtype = SAFETENSORS_DTYPES.get(leaf.spec.dtype)
    if dtype is not None:
        return dtype, leaf.spec.shape
    elements = int(np.prod(leaf.spec.shape, dtype=object)) if leaf.spec.shape else 1
    return "U8", (*leaf.spec.shape, leaf.size_bytes // elements if elements else 0)


def _header(entries: dict[str, object], slot: str) -> bytes:
    text = msgspec.json.encode(entries)
    # Trailing spaces are part of the format. With them the data begins on a page, and so at 64 bytes wherever it is mapped.
    text += b" " * (-(8 + len(text)) % PAGE_BYTES)
    if len(text) > MOST_HEADER_BYTES:
        hint = "commit it in several parts"
        raise UsageError("a part has too many tensors", kind="too-many-tensors", hint=hint, part=slot, header_bytes=len(text))
    return len(text).to_bytes(8, "little") + text


def fill(parcel: Parcel, memory: memoryview) -> Chunks:
    """Write a part to ``memory`` (as many bytes as it has), and return the digests of its chunks.

    Each tensor is copied by the caller's thread, and each chunk digested by another while the next one is copied. What a device
    has is there, too, when this returns: the tensors may be changed from then on.
    """
    room = memory.cast("B")
    threads = min(_MOST_THREADS, max(1, (os.cpu_count() or 1) - 1)) if parcel.size_bytes > CHUNK_BYTES else 0
    crew = Crew(xxhash.xxh3_128_digest, threads=threads, ahead=1 << 30, name="milepost-digest")
    with crew, crew:  # entered twice: see there
        return Chunks(parcel.size_bytes, b"".join(crew.map(_full_chunks(parcel, room))))


def _full_chunks(parcel: Parcel, room: memoryview) -> Iterator[memoryview]:
    """Yield each chunk of the file once all of it has been copied."""
    done = 0
    for stop in _copying(parcel, room):
        while stop - done >= CHUNK_BYTES:
            yield room[done : done + CHUNK_BYTES]
            done += CHUNK_BYTES
    if done < parcel.size_bytes:
        yield room[done:]


def _copying(parcel: Parcel, room: memoryview) -> Iterator[int]:
    """Copy, and yield again and again up to where all is there."""
    start = len(parcel.header)
    room[:start] = parcel.header
    late: list[tuple[LiveLeaf, memoryview]] = []
    for leaf in parcel.leaves:
        stop = start + leaf.size_bytes
        if is_late(leaf):
            late.append((leaf, room[start:stop]))
        else:
            leaf.copy_into(room[start:stop])
            if not late:
                yield stop
        start = stop
    if late:
        start_copies(late)()
    yield start
