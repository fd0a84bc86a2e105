"""Make a new version of an old one and a delta, out of place: the old one stays what it is, whatever happens meanwhile.

A delta that is applied where the old version lies leaves neither when it is interrupted, and says so only by a digest that is
wrong for ever: done once more, it undoes what it had done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import numpy as np

from milepost.encode.digest import Buffer, matches
from milepost.errors import CorruptError, MismatchError, UsageError
from milepost.records import Difference
from milepost.service.delta.checking import check, damaged
from milepost.service.delta.forms import restore
from milepost.service.delta.records import Delta, Tensor, TensorDelta, Tensors
from milepost.service.delta.words import words_in


def apply(delta: Delta, base: Tensors, into: Mapping[str, memoryview] | None = None) -> dict[str, Tensor]:
    """Return the new version. ``base`` is checked before anything is written, and each new tensor after it.

    ``into`` is memory for each tensor of the manifest that is not tied to another, of its ``size_bytes``, none of which is the
    base's; without it memory is taken here. What it holds after an error is no version. Raises `MismatchError` (kind
    ``wrong-base``), which names every tensor that is not the one it was told against; `CorruptError` (kind ``damaged-delta``).
    """
    check(delta)
    _check_base(delta, base)
    if into is not None:
        _check_room(delta, base, into)
    made: dict[str, Tensor] = {}
    planes = iter(delta.planes)
    for told in delta.manifest.tensors:
        if told.tied_to is not None:
            made[told.name] = made[told.tied_to]
            continue
        room = np.empty(told.size_bytes, dtype=np.uint8).data if into is None else into[told.name]
        old = base[told.name].data if told.base_digest else None
        _write(told, old, planes, room, delta.manifest.chunk_words)
        made[told.name] = Tensor(told.dtype, told.shape, room.toreadonly())
    return made


def _write(told: TensorDelta, base: Buffer | None, planes: Iterator[Buffer], room: memoryview, chunk_words: int) -> None:
    out = words_in(room, told.word_bytes)
    old = None if base is None else words_in(base, told.word_bytes)
    for number, piece in enumerate(told.pieces):
        part = slice(number * chunk_words, (number + 1) * chunk_words)
        stored = list(islice(planes, len(piece.stored)))
        try:
            restore(piece, stored, None if old is None else old[part], out[part])
        except CorruptError as error:
            raise damaged("a piece does not give its chunk", tensor=told.name, piece=number) from error
    if not matches(room, told.digest):
        raise damaged("it has made other bytes than were encoded", tensor=told.name)


def _check_base(delta: Delta, base: Tensors) -> None:
    differences = [
        Difference(told.name, f"{told} {told.base_digest}", _words(base.get(told.name)), "digest")
        for told in delta.manifest.tensors
        if told.base_digest and not _is_base(told, base.get(told.name))
    ]
    if differences:
        raise MismatchError(
            "a delta was told against another version than this one",
            differences,
            kind="wrong-base",
            hint="ask for the version whole, or for a delta against the version that is here",
        )


def _is_base(told: TensorDelta, tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.size_bytes == told.size_bytes and matches(tensor.data, told.base_digest)


def _words(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"{tensor} of other bytes"


def _check_room(delta: Delta, base: Tensors, into: Mapping[str, memoryview]) -> None:
    """Refuse memory that is missing, or that something else lies in: what is written there would be read again as the base."""
    rooms = {told.name: into.get(told.name) for told in delta.manifest.tensors if told.tied_to is None}
    sizes = {told.name: told.size_bytes for told in delta.manifest.tensors}
    taken = [(*_extent(tensor.data), "") for tensor in base.values()]
    for name, room in rooms.items():
        if room is None or room.readonly or not room.c_contiguous or room.nbytes != sizes[name]:
            raise _no_room("it is missing, or not to be written to, or of another size", name, sizes[name])
        taken.append((*_extent(room), name))
    end, last = 0, ""
    for start, stop, name in sorted(taken):
        if start < end and (name or last) and stop > start:
            raise _no_room("it lies where the base or another tensor lies", name or last, sizes[name or last])
        if stop > end:
            end, last = stop, name


def _extent(data: Buffer) -> tuple[int, int]:
    seen = words_in(data, 1)
    start = int(seen.__array_interface__["data"][0])
    return start, start + len(seen)


def _no_room(why: str, tensor: str, size_bytes: int) -> UsageError:
    return UsageError(
        "a new version cannot be written to this memory",
        kind="bad-room",
        hint="give writable memory of its own for each tensor, none of it the base's",
        why=why,
        tensor=tensor,
        size_bytes=size_bytes,
    )
