"""Tell one chunk in each form, and make it again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from milepost.encode.digest import Buffer
from milepost.encode.frames import unpack
from milepost.errors import CorruptError
from milepost.service.delta.records import Piece
from milepost.service.delta.words import Mask, Plane, Words, gaps_of, join, planes_of, step, steps, where_of

if TYPE_CHECKING:
    import zstandard

Told: TypeAlias = tuple[Piece, list[bytes]]

_LEAST_GAIN = 32
"""A plane is packed if that takes a 32nd away: else a reader would unpack for nothing."""


class Packer:
    """Pack planes, in one thread at a time."""

    def __init__(self) -> None:
        import zstandard

        self._packer: zstandard.ZstdCompressor = zstandard.ZstdCompressor(level=1, write_content_size=True)

    def pack(self, plane: Plane) -> bytes:
        """Return a frame, or the plane's own bytes where a frame is hardly smaller."""
        packed = self._packer.compress(plane.data)
        return packed if len(packed) < len(plane) - len(plane) // _LEAST_GAIN else plane.tobytes()

    def pack_all(self, planes: Iterable[Plane]) -> list[bytes]:
        """Pack one plane after the other."""
        return [self.pack(plane) for plane in planes]


def sparse(old: Words, new: Words, differs: Mask, packer: Packer) -> Told:
    """Tell where words changed, and by how much. At least one did."""
    where = np.flatnonzero(differs)
    gaps = gaps_of(where)
    planes = packer.pack_all([gaps, *planes_of(steps(old[where], new[where]))])
    return Piece("sparse", _sizes(planes), len(where), len(gaps)), planes


def dense(old: Words, new: Words, packer: Packer) -> Told:
    """Tell by how much each word changed."""
    planes = packer.pack_all(planes_of(steps(old, new)))
    return Piece("dense", _sizes(planes)), planes


def shuffled(new: Words, packer: Packer) -> Told:
    """Tell the words themselves, their bytes by place: exponents of floats shrink, and only beside each other."""
    planes = packer.pack_all(planes_of(new))
    return Piece("full", _sizes(planes)), planes


def raw(new: Words) -> Told:
    """Tell the words as they lie."""
    plane = new.tobytes()
    return Piece("full", (len(plane),)), [plane]


def _sizes(planes: Sequence[bytes]) -> tuple[int, ...]:
    return tuple(len(plane) for plane in planes)


def raw_sizes(piece: Piece, words: int, word_bytes: int) -> tuple[int, ...]:
    """Return how many bytes each plane of a piece has that is not packed; empty where its form has no such number of planes."""
    shapes: dict[str, list[tuple[int, ...]]] = {
        "skip": [()],
        "sparse": [(piece.gaps, *(piece.changed,) * word_bytes)],
        "dense": [(words,) * word_bytes],
        "full": [(words,) * word_bytes, (words * word_bytes,)],
    }
    return next((shape for shape in shapes[piece.form] if len(shape) == len(piece.stored)), ())


def restore(piece: Piece, stored: Sequence[Buffer], old: Words | None, out: Words) -> None:
    """Fill ``out`` with the new words of a chunk. The piece was checked; what its planes hold was not.

    Raises `CorruptError` for a frame that is damaged or does not give exactly its plane, and for positions that are none.
    """
    sizes = raw_sizes(piece, len(out), out.itemsize)
    if piece.form == "full":
        if len(sizes) == 1:
            _fill(stored[0], out.view(np.uint8))
        else:
            join(_unpacked(stored, sizes), out)
        return
    assert old is not None
    if piece.form == "dense":
        by = np.empty_like(out)
        join(_unpacked(stored, sizes), by)
        step(old, by, out)
        return
    out[:] = old
    if piece.form == "sparse":
        gaps, *planes = _unpacked(stored, sizes)
        where = where_of(gaps)
        if len(where) != piece.changed or where[-1] >= len(out):
            raise CorruptError("positions do not lie in their chunk", kind="damaged-delta")
        by = np.empty(len(where), dtype=out.dtype)
        join(planes, by)
        changed = old[where]
        step(changed, by, changed)
        out[where] = changed


def _unpacked(stored: Sequence[Buffer], sizes: Sequence[int]) -> list[Plane]:
    planes = [np.empty(size, dtype=np.uint8) for size in sizes]
    for packed, plane in zip(stored, planes, strict=True):
        _fill(packed, plane)
    return planes


def _fill(stored: Buffer, plane: Plane) -> None:
    if len(stored) == len(plane):
        plane[:] = np.frombuffer(stored, dtype=np.uint8)
    else:
        unpack(memoryview(stored), plane.data)
