"""Keep how an array lies in memory: what is computed from it may depend on that in its last bits.

Pictures are an example: vector environments turn them by swapping strides, torch passes the strides on, and a convolution
takes another way through memory that lies otherwise. Equal values in another order are not the same input.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from milepost.errors import CorruptError


def strides_of(value: Any) -> tuple[int, ...] | None:
    """Return the strides of an array or tensor, in items, if they are not those of a new one but as dense; else None.

    The stride along an axis of length 1 moves nothing, and still decides which way is taken.
    """
    shape = tuple(value.shape)
    if isinstance(value, np.ndarray):
        size = value.dtype.itemsize
        if not size or any(stride % size for stride in value.strides):
            return None
        strides = tuple(stride // size for stride in value.strides)
    else:
        strides = tuple(value.stride())
    return strides if strides != _usual(shape) and _is_dense(shape, strides) else None


def memory_of(value: Any) -> tuple[int, Any]:
    """Return where the memory begins in which an array or tensor lies, and an array over what it takes of that."""
    if isinstance(value, np.ndarray):
        owner = value
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        return owner.__array_interface__["data"][0], value
    torch = sys.modules["torch"]
    if value.device.type != "cpu" or value.layout != torch.strided or not value.numel():
        return id(value), np.empty(0)
    steps = sum((length - 1) * step for length, step in zip(value.shape, value.stride(), strict=True))
    begin, size = value.storage_offset() * value.element_size(), (steps + 1) * value.element_size()
    whole = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())
    return value.untyped_storage().data_ptr(), whole[begin : begin + size].numpy()


def values_of(recorded: Any) -> Any:
    """Return a recorded array without how it lies in memory; anything else as it is."""
    return recorded["state"] if isinstance(recorded, dict) and recorded.get("$kind") == "strided" else recorded


def laid_out(saved: Any, strides: tuple[int, ...]) -> Any:
    """Return a copy of ``saved`` that lies in memory by these strides.

    Raises `CorruptError` for strides that would lead outside of its memory.
    """
    shape = tuple(saved.shape)
    if len(strides) != len(shape) or not all(type(step) is int for step in strides) or not _is_dense(shape, strides):
        raise CorruptError("a stored array cannot lie like that", kind="damaged-tree", shape=str(shape))
    if not isinstance(saved, np.ndarray):
        return sys.modules["torch"].empty_strided(shape, strides, dtype=saved.dtype, device=saved.device).copy_(saved)
    steps = [step * saved.dtype.itemsize for step in strides]
    made = np.lib.stride_tricks.as_strided(np.empty(saved.size, saved.dtype), shape, steps)
    made[...] = saved
    return made


def _usual(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(max(length, 1) for length in shape[axis + 1 :]) for axis in range(len(shape)))


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    size = math.prod(shape)
    reach = sum((length - 1) * step for length, step in zip(shape, strides, strict=True))
    return size > 0 and min(strides, default=0) >= 0 and max(strides, default=0) <= size and reach + 1 == size
