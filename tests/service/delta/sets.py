"""Draw two versions of some weights, of every kind of element, with the bit patterns that floats are careless about."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

from milepost.service.delta.records import Delta, Tensor, Tensors
from milepost.service.delta.settings import How
from milepost.service.delta.wire import pack, parse

ITEM_BYTES: Mapping[str, int] = {
    "bool": 1,
    "uint8": 1,
    "float8_e4m3fn": 1,
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "int64": 8,
    "complex64": 8,
    "complex128": 16,
    "<U3": 12,
    "void3": 3,
}
LIMIT = 1 << 40


def tensor(array: np.ndarray[Any, Any], dtype: str | None = None) -> Tensor:
    """See an array as a tensor, where it lies."""
    return Tensor(dtype or str(array.dtype), array.shape, array.reshape(-1).view(np.uint8).data if array.size else b"")


def bytes_of(tensors: Tensors) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (one.dtype, one.shape, bytes(one.data)) for name, one in tensors.items()}


def sent(delta: Delta) -> Delta:
    """Return what arrives of it at the other end."""
    return parse(b"".join(pack(delta)), limit_bytes=LIMIT)


hows = st.builds(
    How,
    incremental_threshold=st.sampled_from(["auto", 0.0, 0.3, 1.0]),
    link_bytes_s=st.sampled_from([1.0, 125e6, 1e12]),
    chunk_words=st.sampled_from([1, 3, 16, 300, 1 << 22]),
    strong=st.booleans(),
)
shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)


def special(width: int) -> list[int]:
    """Return 0.0, -0.0, infinities, NaNs with payloads and the integers at either end, as integers of so many bytes."""
    top = 1 << (8 * width - 1)
    return [0, top, 1, top | 1, top - 1, 2 * top - 1, 0x7F << (8 * width - 8), (0x7F << (8 * width - 8)) | 1, top >> 1]


@st.composite
def contents(draw: st.DrawFn, size: int, item: int, base: bytes = b"") -> bytes:
    """Draw bytes: any, or special ones, or the base's with some changes."""
    if base and draw(st.booleans()):
        changed = bytearray(base)
        for where in draw(st.lists(st.integers(0, size - 1), max_size=4)):
            changed[where] = draw(st.sampled_from([changed[where] ^ 0x80, (changed[where] + 1) % 256, 0, 255]))
        return bytes(changed)
    width = item if item in (1, 2, 4, 8) else 1
    if draw(st.booleans()):
        words = st.sampled_from([word.to_bytes(width, "little") for word in special(width)])
        count = size // width
        return b"".join(draw(st.lists(words, min_size=count, max_size=count)))
    return draw(st.binary(min_size=size, max_size=size))


@st.composite
def tensors(draw: st.DrawFn, old: Tensor | None = None) -> Tensor:
    if old is not None and draw(st.integers(0, 4)):
        dtype, shape = old.dtype, old.shape
    else:
        old, dtype, shape = None, draw(st.sampled_from(sorted(ITEM_BYTES))), draw(shapes)
    size = math.prod(shape) * ITEM_BYTES[dtype]
    data = draw(contents(size, ITEM_BYTES[dtype], bytes(old.data) if old else b""))
    return Tensor(dtype, shape, bytearray(data))


@st.composite
def versions(draw: st.DrawFn) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Draw a base and a new version: tensors stay, come, go, become others, and are tied to one another."""
    base: dict[str, Tensor] = {}
    new: dict[str, Tensor] = {}
    for name in draw(st.lists(st.sampled_from(["", "a", "b.weight", "c", "head"]), unique=True, max_size=5)):
        fate = draw(st.sampled_from(["stays", "stays", "comes", "goes", "tied"]))
        if fate in ("stays", "goes"):
            base[name] = draw(tensors())
        if fate == "tied" and new:
            new[name] = new[draw(st.sampled_from(sorted(new)))]
        elif fate != "goes":
            new[name] = draw(tensors(base.get(name)))
    return base, new
