"""Hash bytes, and seal JSON records with a digest of themselves.

XXH3-128 tells damage in leaves and blobs at memory speed; records, which decide what counts, carry SHA-256.
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import xxhash

from milepost.errors import CorruptError, InternalError

Buffer: TypeAlias = bytes | bytearray | memoryview

_HEAD = b'"digest":"sha256:'
_TAIL = b'"}\n'
_SEAL_BYTES = len(_HEAD) + 64 + len(_TAIL)


def xxh3(data: Buffer) -> str:
    """Return XXH3-128 of ``data`` as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


class Digest:
    """Hash a stream of pieces; equals `xxh3` of their concatenation. Releases the GIL on large pieces."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state = xxhash.xxh3_128()

    def update(self, data: Buffer) -> None:
        """Append ``data`` (C-contiguous)."""
        self._state.update(data)

    def hex(self) -> str:
        """Return the digest of everything so far, 32 hexadecimal digits."""
        return self._state.hexdigest()


def sha256(data: Buffer) -> str:
    """Return SHA-256 of ``data`` as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def seal(body: bytes) -> bytes:
    r"""Append a digest of itself to a JSON object, as its last member, and a newline.

    >>> seal(b'{"a":1}')
    b'{"a":1,"digest":"sha256:015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"}\n'
    """
    if body[:1] != b"{" or body[-1:] != b"}":
        raise InternalError("only a compact JSON object can be sealed", kind="not-an-object", starts=body[:20])
    comma = b"" if body == b"{}" else b","
    return body[:-1] + comma + _HEAD + sha256(body).encode() + _TAIL


def unseal(data: bytes, what: str) -> bytes:
    """Return the body that `seal` was given; ``what`` names the record in the error.

    Raises `CorruptError` (kind ``damaged-record``) if any byte was changed, added or removed. The whole record is made
    again and compared, so that a flip in the digest, its name or the last newline is found like one in the body.
    """
    front = data[:-_SEAL_BYTES]
    body = front.removesuffix(b",") + b"}"
    if len(data) <= _SEAL_BYTES or body[:1] != b"{" or seal(body) != data:
        raise CorruptError("a record is damaged", kind="damaged-record", what=what, size_bytes=len(data))
    return body
