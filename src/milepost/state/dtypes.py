"""Name NumPy's dtypes in text that means the same bytes on every machine, and find them again."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import numpy as np

from milepost.errors import CorruptError

_NUMBERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64", "complex64", "complex128")
_SIZED = re.compile(r"[<>]U\d{1,9}|\|[SV]\d{1,9}")
_TIMES = re.compile(r"(datetime64|timedelta64|>[mM]8)(\[[1-9]?\d{0,8}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?")
# A long double is 80, 113 or 64 bits wide by machine: its mantissa is part of the name, lest bytes be misread elsewhere.
_LONG_NAMES = {
    np.dtype(scalar).newbyteorder(order): f"{order.strip('=')}{scalar.__name__}{np.finfo(np.longdouble).nmant}"
    for scalar in (np.longdouble, np.clongdouble)
    for order in ("=", ">")
    if np.dtype(np.longdouble) != np.dtype(np.float64)
}
_LONG = {name: dtype for dtype, name in _LONG_NAMES.items()}


_LONGEST_NAME = 1 << 16
"""Names are kept, a thousand of them."""


def _plain_dtypes() -> dict[str, np.dtype[Any]]:
    native = [np.dtype(name) for name in (*_NUMBERS, *_FLOATS)]
    swapped = [dtype.newbyteorder(">") for dtype in native if dtype.itemsize > 1]
    return {str(dtype): dtype for dtype in (*native, *swapped)}


_PLAIN = _plain_dtypes()


@lru_cache(maxsize=1024)
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of ``dtype``, or an empty text if its bytes alone don't say what it holds (objects, foreign kinds)."""
    if dtype.hasobject:
        return ""
    try:
        name = _structure(dtype) if dtype.names is not None else _simple_name(dtype)
        return name if name and _same(dtype_named(name), dtype) else ""
    except CorruptError:
        return ""


def _simple_name(dtype: np.dtype[Any]) -> str:
    if dtype.subdtype is not None:
        return ""
    return _LONG_NAMES.get(dtype, str(dtype))


def _same(found: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    return found == dtype and found.itemsize == dtype.itemsize and found.type is dtype.type


def _structure(dtype: np.dtype[Any]) -> str:
    fields: list[object] = []
    fields_of: Any = dtype.fields
    for field in dtype.names or ():
        inner, offset = fields_of[field][:2]
        base, shape = inner.subdtype if inner.subdtype is not None else (inner, ())
        name = dtype_name(base)
        if not name:
            return ""
        fields.append([field, name, list(shape), offset])
    return "struct" + json.dumps([dtype.itemsize, fields], separators=(",", ":"))


@lru_cache(maxsize=1024)
def dtype_named(name: str) -> np.dtype[Any]:
    """Return the dtype called ``name``. Raises `CorruptError` (kind ``unknown-dtype``) for what `dtype_name` never says."""
    found = _PLAIN.get(name, _LONG.get(name))
    if found is not None:
        return found
    if len(name) > _LONGEST_NAME:
        raise _unknown(name)
    try:
        if name.startswith("struct"):
            return _structured(json.loads(name[len("struct") :]), name)
        if _SIZED.fullmatch(name) or _TIMES.fullmatch(name):
            found = np.dtype(name)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, MemoryError) as error:
        raise _unknown(name) from error
    if found is None or str(found) != name:
        raise _unknown(name)
    return found


def _unknown(name: str) -> CorruptError:
    return CorruptError("a stored dtype is unknown here", kind="unknown-dtype", dtype=ascii(name)[:80])


def _structured(parts: Any, name: str) -> np.dtype[Any]:
    match parts:
        case [int(itemsize), list(fields)] if 0 <= itemsize < 1 << 31:
            pass
        case _:
            raise _unknown(name)
    if not all(_is_field(field) for field in fields):
        raise _unknown(name)
    found = np.dtype(
        {
            "names": [field[0] for field in fields],
            "formats": [(dtype_named(field[1]), tuple(field[2])) if field[2] else dtype_named(field[1]) for field in fields],
            "offsets": [field[3] for field in fields],
            "itemsize": itemsize,
        }
    )
    if _structure(found) != name:
        raise _unknown(name)
    return found


def _is_field(field: Any) -> bool:
    match field:
        case [str(), str(), list(shape), int(offset)]:
            return 0 <= offset < 1 << 31 and all(type(size) is int and 0 < size < 1 << 31 for size in shape)
        case _:
            return False
