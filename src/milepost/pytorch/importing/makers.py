"""Make plain values, arrays and tensors of what a pickle would have called: each by what is told here, and never by itself.

Every size is compared with the bytes that are there before anything is made of it. What is bent raises any exception.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

_ARRAY_DTYPE = re.compile(r"[biufcSUmM?][0-9]{0,9}\Z", re.ASCII)
_DATE_UNIT = re.compile(r"[a-zA-Z]{1,7}\Z", re.ASCII)


class Making(Protocol):
    """Be who asks for values to be made."""

    def check_room(self, size_bytes: int) -> None:
        """Raise unless so many bytes of a tensor can come of the file that is read."""

    def refused(self, name: object) -> Exception:
        """Return the error for what only a pickle that is trusted may call."""

    def storage(self, data: bytes) -> object:
        """Return the storage that torch has written as ``data``."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Hold what a maker goes by; all of it is made already."""

    making: Making
    arguments: list[Any]
    state: Any
    items: list[tuple[Any, Any]]
    elements: list[Any]


def _ordered_dict(asked: Asked) -> object:
    return OrderedDict([*(asked.arguments[0] if asked.arguments else ()), *asked.items])


def _deque(asked: Asked) -> object:
    first = asked.arguments[0] if asked.arguments else ()
    most = asked.arguments[1] if len(asked.arguments) > 1 else None
    return deque([*_listed(first), *asked.elements], most)


def _listed(value: object) -> list[Any]:
    if not isinstance(value, list | tuple | set | frozenset):
        raise TypeError("no list of values")
    return list(value)


def _one_of(kind: Callable[[list[Any]], object]) -> Callable[[Asked], object]:
    return lambda asked: kind(_listed(asked.arguments[0]) if asked.arguments else [])


def _bytearray(asked: Asked) -> object:
    # bytearray(10**12) would be a thousand million zeros, and bytearray(text, encoding) is what protocol 2 says
    first = asked.arguments[0] if asked.arguments else b""
    return bytearray(first if isinstance(first, bytes) else first.encode(*asked.arguments[1:2]))


def _no_bytes(asked: Asked) -> object:
    return bytes(*asked.arguments[:0])


def _complex(asked: Asked) -> object:
    real, imaginary = asked.arguments
    return complex(float(real), float(imaginary))


def _encoded(asked: Asked) -> object:
    text, encoding = asked.arguments
    if encoding not in ("latin1", "latin-1", "utf-8"):
        raise ValueError(f"encoding {encoding}")
    return str.encode(text, encoding)


def _path(asked: Asked) -> object:
    return "/".join(map(str, asked.arguments))


def _size(asked: Asked) -> object:
    return torch.Size([int(length) for length in asked.arguments[0]])


def _dtype(asked: Asked) -> np.dtype[Any]:
    text = asked.arguments[0]
    if not isinstance(text, str) or not _ARRAY_DTYPE.match(text):
        raise asked.making.refused(f"numpy.dtype({text!r})")
    state: tuple[Any, ...] = asked.state or (3, "=", None, None, None)
    if any(part is not None for part in state[2:5]):
        raise asked.making.refused("numpy.dtype with fields")
    if len(state) > 8:
        unit, count = state[8][1][:2]
        unit = unit.decode("ascii") if isinstance(unit, bytes) else unit
        if not _DATE_UNIT.match(unit):
            raise ValueError(unit)
        if unit != "generic":
            text = f"{text}[{int(count)}{unit}]"
    return np.dtype(text).newbyteorder(state[1])


def _scalar(asked: Asked) -> object:
    dtype, data = asked.arguments
    return _array_of(data, dtype, ())[()]


def _frombuffer(asked: Asked) -> object:
    data, dtype, shape, order = asked.arguments
    return _array_of(data, dtype, shape, order)


def _reconstructed(asked: Asked) -> object:
    _, shape, dtype, is_fortran, data = asked.state
    if not isinstance(data, bytes | bytearray):
        raise asked.making.refused("an array of objects")
    return _array_of(data, dtype, shape, "F" if is_fortran else "C")


def _array_of(data: bytes | bytearray, dtype: np.dtype[Any], shape: tuple[int, ...], order: str = "C") -> np.ndarray[Any, Any]:
    if not isinstance(dtype, np.dtype) or min(shape, default=0) < 0 or len(data) != math.prod(shape) * dtype.itemsize:
        raise ValueError("an array's bytes are not as many as its shape has")
    return np.ndarray(shape, dtype, data, order="F" if order == "F" else "C")


def _storage(asked: Asked) -> object:
    (data,) = asked.arguments
    return asked.making.storage(data)


def _rebuilt(asked: Asked) -> object:
    storage, offset, size, stride = asked.arguments[:4]
    if not isinstance(storage, torch.storage.TypedStorage) or len(size) != len(stride):
        raise TypeError("no storage")
    if min([offset, *size, *stride]) < 0:
        raise ValueError("a negative size")
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    memory: torch.UntypedStorage = storage._untyped_storage
    tensor = torch.empty(0, dtype=storage.dtype)
    if not math.prod(size):
        return tensor.reshape(size)
    if (last + 1) * tensor.element_size() > memory.nbytes():
        raise ValueError("a tensor larger than its storage")
    asked.making.check_room(math.prod(size) * tensor.element_size())
    return tensor.set_(memory, offset, torch.Size(size), tuple(stride))


NAMED = frozenset({"numpy.ndarray"})
"""What may stand as an argument, by its name alone."""
MAKERS: Mapping[str, Callable[[Asked], object]] = {
    "collections.OrderedDict": _ordered_dict,
    "collections.deque": _deque,
    "builtins.set": _one_of(set),
    "builtins.frozenset": _one_of(frozenset),
    "builtins.bytearray": _bytearray,
    "builtins.bytes": _no_bytes,
    "builtins.complex": _complex,
    "_codecs.encode": _encoded,
    "pathlib.PosixPath": _path,
    "pathlib.PurePosixPath": _path,
    "numpy.dtype": _dtype,
    "numpy._core.multiarray.scalar": _scalar,
    "numpy._core.multiarray._reconstruct": _reconstructed,
    "numpy._core.numeric._frombuffer": _frombuffer,
    "numpy.ndarray": _reconstructed,
    "torch.Size": _size,
    "torch.storage._load_from_bytes": _storage,
    "torch._utils._rebuild_tensor_v2": _rebuilt,
}
