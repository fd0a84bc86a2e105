"""Read and write NumPy arrays as leaves, and what else is a plain run of bytes."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np

from milepost.errors import CorruptError, UsageError
from milepost.records import LeafSpec
from milepost.state.dtypes import dtype_name, dtype_named
from milepost.state.kinds import register_leaf

_MOST_AXES = 64


def as_bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """Return the memory of a C-contiguous array that is not empty, as bytes."""
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat)


def copy_array(array: np.ndarray[Any, Any], into: memoryview) -> None:
    """Copy any array's bytes in C order into ``into``, element by element as raw bytes: same dtype, no conversion."""
    np.copyto(np.ndarray(array.shape, array.dtype, into), array)


def checked_size(spec: LeafSpec, element_bytes: int) -> int:
    """Return the size of a leaf. Raises `CorruptError` for a shape that no array can have."""
    if len(spec.shape) > _MOST_AXES or min(spec.shape, default=0) < 0 or max(spec.shape, default=0) >= 1 << 62:
        raise CorruptError("a stored leaf has an impossible shape", kind="damaged-tree", shape=spec.shape)
    return math.prod(spec.shape) * element_bytes


class NumpyKind:
    """Save ``numpy.ndarray``. Values and dtype come back; strides do where the live array is restored in place.

    Refused are dtypes whose bytes don't say all: objects, variable-width text, fields with titles, other packages' dtypes.
    """

    name = "numpy"

    def describe(self, value: np.ndarray[Any, Any], path: str) -> LeafSpec:
        name = dtype_name(value.dtype)
        if not name:
            hint = "save the values as plain data, or wrap the array in milepost.Opaque and allow pickling"
            what = "an array's dtype cannot be saved"
            raise UsageError(what, kind="unsupported-dtype", hint=hint, path=path, dtype=value.dtype)
        return LeafSpec("numpy", name, value.shape)

    def size_bytes(self, spec: LeafSpec) -> int:
        return checked_size(spec, dtype_named(spec.dtype).itemsize)

    def identity(self, value: np.ndarray[Any, Any]) -> Hashable | None:
        if not value.nbytes:
            return None
        return value.__array_interface__["data"][0], value.dtype, value.shape, value.strides

    def copy_into(self, value: np.ndarray[Any, Any], into: memoryview) -> None:
        copy_array(value, into)

    def make(self, spec: LeafSpec) -> np.ndarray[Any, Any]:
        # Not numpy.empty, which turns a text of no characters into one of one.
        return np.ndarray(spec.shape, dtype_named(spec.dtype))

    def blank(self, spec: LeafSpec) -> np.ndarray[Any, Any]:
        return np.ndarray(spec.shape, dtype_named(spec.dtype), np.zeros(max(1, self.size_bytes(spec)), np.uint8))

    def memory(self, value: np.ndarray[Any, Any]) -> memoryview | None:
        return as_bytes(value) if value.flags.c_contiguous and value.flags.writeable else None

    def is_writable(self, value: np.ndarray[Any, Any]) -> bool:
        return value.flags.writeable

    def copy_from(self, value: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
        np.copyto(value, source)


def register() -> None:
    """Register ``numpy.ndarray``."""
    register_leaf(np.ndarray, NumpyKind())
