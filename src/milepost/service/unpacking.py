"""Read a part of a version where it lies: each array is a view of its bytes. What a part says of itself is not believed.

Its bytes are those that somebody committed; whoever that was may have a program of their own, in another language.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from milepost.encode.blob import SAFETENSORS_DTYPES
from milepost.errors import CorruptError, NotFoundError, UsageError
from milepost.records import LeafRecord
from milepost.service.packing import METADATA, MOST_HEADER_BYTES, Notes, flat_keys
from milepost.state.dtypes import dtype_named
from milepost.state.inflate import inflate

_LENGTH_BYTES = 8
_NAMES = {short: name for name, short in SAFETENSORS_DTYPES.items()}
_ITEM_BYTES = {"BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1}
_ITEM_BYTES |= {short: np.dtype(name).itemsize for short, name in _NAMES.items() if short not in _ITEM_BYTES}
_NOT_IN_NUMPY = {"bfloat16", "float8_e4m3fn", "float8_e5m2"}
_MOST_AXES = 64
_MOST_KEPT_BYTES = 4 << 20
_WIDENED = "weights.array(name, 'float32') converts it exactly; "


@dataclass(frozen=True, slots=True)
class _Said:
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Entry:
    """Say what one array is, and which bytes ``[start, stop)`` of the part it has."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        """Return how many bytes it has."""
        return self.stop - self.start


class Part:
    """Be one part of a version. Views of it stay valid for as long as anybody has one."""

    def __init__(self, data: memoryview, slot: str) -> None:
        """Read the header. Raises `CorruptError` (kind ``damaged-part``) for what is no part."""
        self.data = data
        self.slot = slot
        self.notes, self.entries = _read(data, slot)

    def entry(self, name: str) -> Entry:
        """Return what one array is. Raises `NotFoundError` (kind ``no-such-tensor``)."""
        found = self.entries.get(name)
        if found is None:
            raise NotFoundError(
                "there is no such tensor in this part",
                kind="no-such-tensor",
                hint="iterate over the weights: they yield the names there are",
                name=name,
                part=self.slot,
                first_names=", ".join([*self.entries][:5]),
            )
        return found

    def bytes_of(self, name: str) -> memoryview:
        """Return the bytes of one array."""
        entry = self.entry(name)
        return self.data[entry.start : entry.stop]

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """Return one array, read-only, where it lies. Raises `UsageError` for a dtype that NumPy does not have."""
        entry = self.entry(name)
        if entry.dtype in _NOT_IN_NUMPY:
            raise UsageError(
                "NumPy has no such dtype",
                kind="not-in-numpy",
                hint=f"{_WIDENED if entry.dtype == 'bfloat16' else ''}weights.tensors() gives torch tensors",
                name=name,
                dtype=entry.dtype,
            )
        dtype = dtype_named(entry.dtype)
        self.check_size(name, dtype.itemsize)
        return _array(entry, dtype, self.bytes_of(name))

    def check_size(self, name: str, item_bytes: int) -> None:
        """Raise `CorruptError` for an array that has not the bytes which its shape wants: only who reads it knows the dtype."""
        entry = self.entry(name)
        if math.prod(entry.shape) * item_bytes != entry.size_bytes:
            raise _damaged(self.slot, "an array has other bytes than its shape", name=name, dtype=entry.dtype)

    def widened(self, name: str, dtype: str) -> np.ndarray[Any, Any]:
        """Return a copy of one array in another dtype; that of a bfloat16 one is exact."""
        entry = self.entry(name)
        if entry.dtype != "bfloat16":
            return self.array(name).astype(dtype)
        self.check_size(name, 2)
        bits = _array(entry, np.dtype("<u2"), self.bytes_of(name)).astype("<u4")
        return (bits << np.uint32(16)).view("<f4").reshape(entry.shape).astype(dtype, copy=False)

    def value(self) -> Any:
        """Return what was committed, built anew: the tree with arrays and tensors of its own, which may be written to."""
        if self.notes.tree is None:
            raise UsageError(
                "another program has packed this part, and says nothing of a tree",
                kind="no-tree",
                hint="read its arrays: weights[name], weights.tensors()",
                part=self.slot,
            )
        records = [self._record(name, kind) for name, kind in self.notes.leaves]
        return inflate(self.notes.tree, records, _Source(self.data, records))

    def _record(self, name: str, kind: str) -> LeafRecord:
        entry = self.entries.get(name)
        if entry is None:
            raise _damaged(self.slot, "its tree names an array that is not there")
        return LeafRecord(name, kind, entry.dtype, entry.shape, 0, entry.start, entry.stop, "")


def _array(entry: Entry, dtype: np.dtype[Any], data: memoryview) -> np.ndarray[Any, Any]:
    made: np.ndarray[Any, Any] = np.ndarray(entry.shape, dtype, data if entry.size_bytes else b"")
    made.flags.writeable = False
    return made


class _Source:
    """Copy leaves out of a part."""

    def __init__(self, data: memoryview, records: Sequence[LeafRecord]) -> None:
        self._data = data
        self._records = records

    def read_into(self, index: int, into: memoryview) -> None:
        record = self._records[index]
        into[:] = self._data[record.start : record.stop]

    def settle(self) -> None:
        """All is there."""


def header_bytes(data: memoryview, slot: str) -> int:
    """Return where the first tensor of a part begins."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if len(data) < _LENGTH_BYTES or not 2 <= length <= min(MOST_HEADER_BYTES, len(data) - _LENGTH_BYTES):
        raise _damaged(slot, "its header does not fit into it", size_bytes=len(data))
    return _LENGTH_BYTES + length


def _read(data: memoryview, slot: str) -> tuple[Notes, dict[str, Entry]]:
    base = header_bytes(data, slot)
    header, data_bytes = bytes(data[_LENGTH_BYTES:base]), len(data) - base
    # The next version of the same weights has the same header: to read one again takes as long as all else of a fetch.
    return (_read_before if len(header) <= _MOST_KEPT_BYTES else _parsed)(header, data_bytes, slot)


def _parsed(header: bytes, data_bytes: int, slot: str) -> tuple[Notes, dict[str, Entry]]:
    try:
        said = msgspec.json.decode(header, type=dict[str, Any])
        metadata = msgspec.convert(said.pop("__metadata__", {}), dict[str, str])
        notes = msgspec.json.decode(metadata.get(METADATA, "{}"), type=Notes)
        entries = msgspec.convert(said, dict[str, _Said])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(slot, "its header is not one of safetensors") from error
    base = _LENGTH_BYTES + len(header)
    made = {name: _entry(name, one, notes, base, base + data_bytes, slot) for name, one in entries.items()}
    for name, kept in notes.tied.items():
        if name in made or kept not in entries:
            raise _damaged(slot, "a tied name stands for nothing", name=name)
        made[name] = made[kept]
    return notes, _in_order(made, notes)


_read_before = lru_cache(maxsize=8)(_parsed)


def _entry(name: str, said: _Said, notes: Notes, base: int, size_bytes: int, slot: str) -> Entry:
    start, stop = said.data_offsets
    item_bytes = _ITEM_BYTES.get(said.dtype)
    if item_bytes is None:
        raise _damaged(slot, "it has a dtype that is unknown here", name=name, dtype=said.dtype)
    # Before they are multiplied: a million lengths that somebody has made up have a product that takes hours.
    if len(said.shape) > _MOST_AXES or not all(0 <= length < 1 << 56 for length in said.shape):
        raise _damaged(slot, "an array has an impossible shape", name=name)
    if not 0 <= start <= stop <= size_bytes - base or math.prod(said.shape) * item_bytes != stop - start:
        raise _damaged(slot, "an array lies beyond its end, or has other bytes than its shape", name=name)
    dtype, shape = _NAMES[said.dtype], said.shape
    real = notes.dtypes.get(name)
    if real is not None:
        if said.dtype != "U8" or not shape:
            raise _damaged(slot, "an array is not stored as its dtype is", name=name, dtype=real)
        dtype, shape = real, shape[:-1]
    return Entry(dtype, shape, base + start, base + stop)


def _in_order(entries: dict[str, Entry], notes: Notes) -> dict[str, Entry]:
    """Return a mapping's arrays as they were committed, tied names in their places."""
    if not notes.tied:
        return entries
    keys = [key for key, _ in flat_keys(notes.tree) or ()]
    return {key: entries[key] for key in keys} if {*keys} == entries.keys() else entries


def _damaged(slot: str, why: str, **facts: object) -> CorruptError:
    return CorruptError(
        "a part of a version cannot be read",
        kind="damaged-part",
        hint="it was committed so, by a program that packs it otherwise: milepost status says which version this is, and whose",
        part=slot,
        why=why,
        **facts,
    )
