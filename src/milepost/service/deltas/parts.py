"""See a part, one safetensors file, as what `milepost.service.delta` tells: its header, its tensors, and what lies between.

They come in the order of their bytes, and no byte lies outside of them: one after the other they are the file again. So a
reader needs no header to know where each of them goes, and an old and a new file need not have the same tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, TypeAlias

import msgspec

from milepost.encode.digest import Buffer
from milepost.service.delta.records import Tensor, Tensors, fits

_LENGTH_BYTES = 8
_COMPLEX = {"C64": "complex64", "C128": "complex128"}
_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[_Number, ...]
    data_offsets: tuple[_Number, _Number]


_names = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entry = msgspec.json.Decoder(_Entry)


def tensors_of(part: Buffer) -> Tensors:
    """Return what a part is made of, where it lies. What is no safetensors file is one tensor of bytes."""
    view = memoryview(part).cast("B").toreadonly()
    try:
        return dict(_pieces(view))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, _NotInARowError):
        return {"bytes": _bytes(view)}


class _NotInARowError(Exception):
    """Say that tensors overlap, or reach beyond the file: told one after the other they would not be the file again."""


def _pieces(part: memoryview) -> Iterator[tuple[str, Tensor]]:
    start = _LENGTH_BYTES + int.from_bytes(part[:_LENGTH_BYTES], "little")
    entries = _entries(bytes(part[_LENGTH_BYTES : min(start, len(part))]))
    yield "header", _bytes(part[:start])
    end, last = start, None
    for name, entry in entries:
        begin, stop = (start + offset for offset in entry.data_offsets)
        if last is None or entry != last:  # tied ones lie in the same bytes, as the same
            if begin < end or not begin <= stop <= len(part):
                raise _NotInARowError
            if begin > end:
                yield f"before {name}", _bytes(part[end:begin])
            end, last = stop, entry
        yield f"tensor {name}", _tensor(entry, part[begin:stop])
    if end < len(part):
        yield "rest", _bytes(part[end:])


def _entries(header: bytes) -> list[tuple[str, _Entry]]:
    entries = [(name, _entry.decode(raw)) for name, raw in _names.decode(header).items() if name != "__metadata__"]
    return sorted(entries, key=lambda each: each[1].data_offsets)


def _tensor(entry: _Entry, data: memoryview) -> Tensor:
    if not fits(entry.shape, len(data)):  # elements that are no whole bytes
        return _bytes(data)
    return Tensor(_COMPLEX.get(entry.dtype, entry.dtype), entry.shape, data)


def _bytes(data: memoryview) -> Tensor:
    return Tensor("bytes", (len(data),), data)
