"""Write small immutable values as nodes, and read them back. What cannot be read is damage, whatever it is.

Every value has one spelling only, so that a flipped character is either another value (which the record's seal finds) or
an error here, never a second way to say the same.
"""

from __future__ import annotations

import base64
import binascii
import re
import reprlib
import struct
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from milepost.errors import CorruptError
from milepost.records import Node
from milepost.state.dtypes import dtype_name, dtype_named

Encode = Callable[[Any], Node]
Decode = Callable[[Node], Any]

_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_HEXADECIMAL = re.compile(r"-?0x[1-9a-f][0-9a-f]*")
_DECIMAL_BITS = 60


def damaged(node: object) -> NoReturn:
    """Raise `CorruptError` for a part of a tree that milepost never writes."""
    raise CorruptError("a stored tree is damaged", kind="damaged-tree", node=_shown(node))


def _shown(node: object) -> str:
    try:
        return ascii(reprlib.repr(node))[1:-1]
    except (ValueError, RecursionError):  # an integer of more digits than python prints
        return "a huge one"


def _text(node: Node) -> str:
    if len(node) != 2 or type(node[1]) is not str:
        damaged(node)
    return node[1]


def _base64(node: Node) -> bytes:
    text = _text(node)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        damaged(node)
    if base64.b64encode(data).decode() != text:
        damaged(node)
    return data


def _hex(node: Node, size_bytes: int) -> bytes:
    text = _text(node)
    try:
        data = bytes.fromhex(text)
    except ValueError:
        damaged(node)
    if data.hex() != text or len(data) != size_bytes:
        damaged(node)
    return data


def is_utf8(text: str) -> bool:
    """Return whether ``text`` has no lone surrogate, which JSON writers refuse."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def text_bytes(text: str) -> bytes:
    """Return any text as bytes, lone surrogates included."""
    return text.encode("utf-8", "surrogatepass")


def bytes_text(data: bytes) -> str:
    """Return the text that `text_bytes` was given."""
    try:
        text = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        damaged(data[:40])
    return text


def _write_str(value: str) -> Node:
    return ["str", value] if is_utf8(value) else ["str-raw", base64.b64encode(text_bytes(value)).decode()]


def _read_raw_str(node: Node) -> str:
    text = bytes_text(_base64(node))
    return damaged(node) if is_utf8(text) else text


def _write_int(value: int) -> Node:
    # Decimal text of a huge integer takes quadratic time, and python refuses it beyond 4,300 digits.
    return ["int", str(value) if value.bit_length() <= _DECIMAL_BITS else hex(value)]


def _read_int(node: Node) -> int:
    text = _text(node)
    if _DECIMAL.fullmatch(text):
        value = int(text)
    elif _HEXADECIMAL.fullmatch(text):
        value = int(text, 16)
    else:
        damaged(node)
    return value if _write_int(value) == node else damaged(node)


def _read_bool(node: Node) -> bool:
    if len(node) != 2 or type(node[1]) is not bool:
        damaged(node)
    return node[1]


def _read_float(node: Node) -> float:
    (value,) = struct.unpack(">d", _hex(node, 8))
    return float(value)


def _read_complex(node: Node) -> complex:
    return complex(*struct.unpack(">dd", _hex(node, 16)))


def _write_numpy(value: np.generic) -> Node:
    # NumPy cuts trailing NULs off text when it reads it from memory; the scalar itself may have them.
    if isinstance(value, np.str_):
        return ["numpy.str", _write_str(str(value))]
    if isinstance(value, np.bytes_):
        return ["numpy.bytes", base64.b64encode(bytes(value)).decode()]
    return ["numpy", dtype_name(value.dtype), value.tobytes().hex()]


def _read_numpy(node: Node) -> np.generic:
    match node:
        case [tag, str(name), str(text)]:
            dtype = dtype_named(name)
            data = _hex([tag, text], dtype.itemsize)
        case _:
            return damaged(node)
    if dtype.kind in "US":
        damaged(node)
    value: Any = np.ndarray((), dtype, bytearray(data))[()]  # a structured one is a view of memory which nobody else has
    return value if isinstance(value, np.generic) else damaged(node)


def _read_numpy_str(node: Node) -> np.str_:
    match node:
        case [_, ["str", str()] as inner]:
            return np.str_(_text(inner))
        case [_, ["str-raw", str()] as inner]:
            return np.str_(_read_raw_str(inner))
        case _:
            return damaged(node)


ENCODE: dict[type, Encode] = {
    type(None): lambda _: ["none"],
    bool: lambda value: ["bool", value],
    int: _write_int,
    float: lambda value: ["float", struct.pack(">d", value).hex()],
    complex: lambda value: ["complex", struct.pack(">dd", value.real, value.imag).hex()],
    str: _write_str,
    bytes: lambda value: ["bytes", base64.b64encode(value).decode()],
    bytearray: lambda value: ["bytearray", base64.b64encode(value).decode()],
}
"""Writers by exact type. NumPy's scalars come through `encode`."""

DECODE: dict[str, Decode] = {
    "none": lambda node: None if len(node) == 1 else damaged(node),
    "bool": _read_bool,
    "int": _read_int,
    "float": _read_float,
    "complex": _read_complex,
    "str": lambda node: _text(node) if is_utf8(_text(node)) else damaged(node),
    "str-raw": _read_raw_str,
    "bytes": _base64,
    "bytearray": lambda node: bytearray(_base64(node)),
    "numpy": _read_numpy,
    "numpy.str": _read_numpy_str,
    "numpy.bytes": lambda node: np.bytes_(_base64(node)),
}
"""Readers by tag."""


def encode(value: object) -> Node | None:
    """Return the node of a small immutable value (or bytearray), or None if it is nothing of the kind."""
    write = ENCODE.get(type(value))
    if write is not None:
        return write(value)
    if isinstance(value, np.generic) and type(value).__module__ == "numpy" and dtype_name(value.dtype):
        return _write_numpy(value)
    return None
