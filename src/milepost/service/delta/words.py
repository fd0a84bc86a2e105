"""See tensors as unsigned integers, and those as planes of bytes. Bits are compared and subtracted, never numbers.

As numbers 0.0 and -0.0 are equal and a NaN differs from itself; as bits each change is one and nothing else is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from milepost.encode.digest import Buffer

Words: TypeAlias = NDArray[Any]
"""Unsigned integers of 1, 2, 4 or 8 bytes."""
Plane: TypeAlias = NDArray[np.uint8]
Mask: TypeAlias = NDArray[np.bool_]

_FAR = 255
"""A gap byte that says: so many unchanged words, and no changed one behind them."""


def words_in(data: Buffer, word_bytes: int) -> Words:
    """See bytes as words, where they lie."""
    view = memoryview(data)
    # An empty view with a zero in its shape can be neither cast nor seen as an array.
    return np.frombuffer(view.cast("B") if view.nbytes else b"", dtype=f"<u{word_bytes}")


def planes_of(words: Words) -> Iterator[Plane]:
    """Yield the lowest byte of each word, then the next one of each."""
    table = words.view(np.uint8).reshape(len(words), words.itemsize)
    for column in range(words.itemsize):
        yield np.ascontiguousarray(table[:, column])


def join(planes: Sequence[Plane], into: Words) -> None:
    """Fill words with the planes that `planes_of` made of them."""
    table = into.view(np.uint8).reshape(len(into), into.itemsize)
    for column, plane in enumerate(planes):
        table[:, column] = plane


def steps(old: Words, new: Words) -> Words:
    """Return by how much each word changed, modulo its range; small steps of either sign are small numbers: 0, -1, 1, -2 ...

    The bits of neighbouring floats are neighbouring integers: what an optimizer does to a weight is one step up or down, and
    its other planes are zero. XOR has all bits that a carry went through.
    """
    up = np.subtract(new, old)
    signed = up.view(f"<i{up.itemsize}")
    sign = np.right_shift(signed, signed.dtype.type(8 * up.itemsize - 1))  # all ones where it is negative
    np.add(signed, signed, out=signed)
    np.bitwise_xor(signed, sign, out=signed)
    return up


def step(old: Words, by: Words, out: Words) -> None:
    """Undo `steps`: fill ``out`` with the new words. ``by`` is used up."""
    one = by.dtype.type(1)
    sign = np.bitwise_and(by, one)
    np.right_shift(by, one, out=by)
    np.bitwise_xor(by, np.negative(sign, out=sign), out=by)
    np.add(old, by, out=out)


def gaps_of(where: NDArray[np.int64]) -> Plane:
    """Say in bytes where words changed: how many unchanged ones lie before each of them; 255 is as many, and none that changed.

    >>> gaps_of(np.array([0, 1, 5, 300])).tolist()
    [0, 0, 3, 255, 39]
    """
    gaps = np.diff(where, prepend=-1)
    gaps -= 1
    if gaps.max() < _FAR:
        return gaps.astype(np.uint8)
    ends = np.cumsum(gaps // _FAR + 1)
    said = np.full(int(ends[-1]), _FAR, dtype=np.uint8)
    said[ends - 1] = gaps % _FAR
    return said


def most_gaps(changed: int, words: int) -> int:
    """Return how many bytes `gaps_of` needs at most."""
    return changed + (words - changed) // _FAR


def where_of(gaps: Plane) -> NDArray[np.int64]:
    """Undo `gaps_of`. Whether positions lie within their chunk the caller checks: of damaged bytes any may come."""
    ends = np.cumsum(gaps, dtype=np.int64)
    hit = gaps != _FAR
    if hit.all():
        ends += np.arange(len(gaps))
        return ends
    ends += np.cumsum(hit) - 1
    found: NDArray[np.int64] = ends[hit]
    return found
