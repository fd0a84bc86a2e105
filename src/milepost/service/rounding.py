"""Publish floats in fewer bits than they are trained in: each is rounded to the nearest, ties to even, while it is copied."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np

from milepost.errors import UsageError
from milepost.records import LeafSpec
from milepost.state.leaves import Copy, LiveLeaf

_FLOATS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_SMALL = {"float8_e4m3fn": 1, "float8_e5m2": 1}
_QUIET: Any = {"over": "ignore", "invalid": "ignore"}
"""What is too large becomes infinite, and a NaN that signals one that does not, as for torch: no warning."""
_BLOCK = 1 << 18
"""How many elements are rounded at once: what is between lies in the cache."""


def check_dtype(name: object) -> str | None:
    """Return the name of a dtype to publish in. A torch.dtype's is its own. Raises `UsageError` (kind ``bad-publish-dtype``)."""
    if name is None:
        return None
    text = str(name).removeprefix("torch.")
    if text not in _FLOATS and text not in _SMALL:
        raise UsageError(
            "weights cannot be published in this dtype",
            kind="bad-publish-dtype",
            hint=f"publish_dtype is one of {', '.join((*_FLOATS, *_SMALL))}, or None to publish them as they are",
            publish_dtype=text,
        )
    return text


def rounded(leaf: LiveLeaf, dtype: str | None) -> LiveLeaf:
    """Return a floating leaf as one of this dtype, any other as it is."""
    if dtype is None or leaf.spec.dtype not in _FLOATS or leaf.spec.dtype == dtype:
        return leaf
    item_bytes = {**_FLOATS, **_SMALL}[dtype]
    size_bytes = leaf.size_bytes // _FLOATS[leaf.spec.dtype] * item_bytes
    copy = _copy_torch(dtype) if leaf.spec.kind == "torch" else _copy_numpy(dtype, leaf.path)
    return replace(leaf, spec=LeafSpec(leaf.spec.kind, dtype, leaf.spec.shape), size_bytes=size_bytes, copy=copy)


def _copy_torch(dtype: str) -> Copy:
    torch: Any = sys.modules["torch"]

    def copy(value: Any, into: memoryview) -> None:
        plain = value.detach()
        if plain.dtype is torch.float64 and dtype != "float32":
            if not plain.is_cpu:
                plain = plain.cpu()
            plain = torch.from_numpy(_to_odd(plain.numpy()))
        torch.frombuffer(into, dtype=getattr(torch, dtype)).view(value.shape).copy_(plain)

    return copy


def _copy_numpy(dtype: str, path: str) -> Copy:
    if dtype in _SMALL:
        raise UsageError(
            "NumPy arrays cannot be published in this dtype",
            kind="bad-publish-dtype",
            hint="commit torch tensors, or publish as bfloat16",
            publish_dtype=dtype,
            path=path,
        )

    def copy(value: np.ndarray[Any, Any], into: memoryview) -> None:
        if dtype != "bfloat16":
            with np.errstate(**_QUIET):
                np.copyto(np.ndarray(value.shape, dtype, into), value, casting="same_kind")
            return
        source = np.ascontiguousarray(value).reshape(-1)
        out = np.frombuffer(into, np.uint16)
        for start in range(0, len(source), _BLOCK):
            out[start : start + _BLOCK] = _to_bfloat16(source[start : start + _BLOCK])

    return copy


def _to_bfloat16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the bits of the nearest bfloat16 of each value."""
    single = _to_odd(values) if values.dtype.itemsize == 8 else values.astype(np.float32, copy=False)
    bits = single.view(np.uint32)
    up = np.right_shift(bits, np.uint32(16))
    up &= np.uint32(1)
    up += np.uint32(0x7FFF)
    up += bits
    up >>= np.uint32(16)
    nans = np.isnan(single)
    if nans.any():  # a payload that is rounded up would make an infinity of it
        up[nans] = np.right_shift(bits[nans], np.uint32(16)) | np.uint32(0x40)
    made: np.ndarray[Any, Any] = up.astype(np.uint16)
    return made


def _to_odd(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return doubles as singles whose last bit says whether anything was cut off.

    Rounded twice, to the nearest single and then to the nearest of something shorter, a value just beside the middle would come
    to lie in the middle, and go the other way. A single rounded to odd never lies in the middle by chance.
    """
    with np.errstate(**_QUIET):
        near = values.astype(np.float32)
    back = near.astype(np.float64)
    bits = near.view(np.uint32)
    # Where it went away from zero, the single before it: towards zero the bits count down, also from infinity.
    bits -= np.abs(back) > np.abs(values)
    bits |= (near.astype(np.float64) != values) & ~np.isnan(values)
    return near
