"""Hash bytes, and seal JSON records with a digest of themselves.

XXH3-128 tells damage in leaves and blobs at memory speed, but anyone can make other bytes with the same one. Where a key
says who may have written a run, they carry SHA-256 instead. A digest says by its form which of the two it is, and everybody
who compares one does so by `matches` or `Digest.like`. Records, which decide what counts, carry SHA-256 always.
"""

from __future__ import annotations

import hashlib
import re
from typing import TypeAlias

import xxhash

from milepost.errors import CorruptError, InternalError

Buffer: TypeAlias = bytes | bytearray | memoryview

_STRONG = "sha256:"
_HEAD = b'"digest":"sha256:'
_TAIL = b'"}\n'
_SEAL_BYTES = len(_HEAD) + 64 + len(_TAIL)
_SIGNATURE = re.compile(rb'(\A\{|(?<!\{),)"signature":"(hmac-sha256:[0-9a-f]{64})"}\Z')


def xxh3(data: Buffer) -> str:
    """Return XXH3-128 of ``data`` as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def is_strong(digest: str) -> bool:
    """Return whether nobody can make other bytes with this digest: whether it is SHA-256 and not XXH3-128."""
    return digest.startswith(_STRONG)


def digest_of(data: Buffer, *, strong: bool = False) -> str:
    """Return the digest of ``data``: XXH3-128 as 32 hexadecimal digits, or if ``strong`` ``sha256:`` and 64 of them."""
    return _STRONG + sha256(data) if strong else xxh3(data)


def matches(data: Buffer, digest: str) -> bool:
    """Return whether ``data`` has this digest, of whichever kind it is."""
    return digest_of(data, strong=is_strong(digest)) == digest


class Digest:
    """Hash a stream of pieces; equals `digest_of` their concatenation. Releases the GIL on large pieces."""

    __slots__ = ("_prefix", "_state")

    def __init__(self, *, strong: bool = False) -> None:
        self._prefix = _STRONG if strong else ""
        self._state = hashlib.sha256() if strong else xxhash.xxh3_128()

    @classmethod
    def like(cls, digest: str) -> Digest:
        """Return a hash of the same kind as ``digest``, to be compared with it."""
        return cls(strong=is_strong(digest))

    def update(self, data: Buffer) -> None:
        """Append ``data`` (C-contiguous)."""
        self._state.update(data)

    def hex(self) -> str:
        """Return the digest of everything so far."""
        return self._prefix + self._state.hexdigest()


def sha256(data: Buffer) -> str:
    """Return SHA-256 of ``data`` as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def seal(body: bytes, signature: str = "") -> bytes:
    r"""Append a digest of itself to a JSON object, as its last member, and a newline; a signature, if any, before that.

    >>> seal(b'{"a":1}')
    b'{"a":1,"digest":"sha256:015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"}\n'
    """
    if body[:1] != b"{" or body[-1:] != b"}":
        raise InternalError("only a compact JSON object can be sealed", kind="not-an-object", starts=body[:20])
    if signature:
        body = body[:-1] + _comma(body) + b'"signature":"' + signature.encode() + b'"}'
    return body[:-1] + _comma(body) + _HEAD + sha256(body).encode() + _TAIL


def _comma(body: bytes) -> bytes:
    return b"" if body == b"{}" else b","


def unseal(data: bytes, what: str) -> bytes:
    """Return the body that `seal` was given, whether it was signed or not; ``what`` names the record in the error.

    Raises `CorruptError` (kind ``damaged-record``) if any byte was changed, added or removed. The whole seal is made again
    and compared, so that a flip in the digest, its name or the last newline is found like one in the body.
    """
    return unseal_signed(data, what)[0]


def unseal_signed(data: bytes, what: str) -> tuple[bytes, str]:
    """Return the body that `seal` was given and the signature, empty if there is none. Whether that is right is not checked."""
    # As `seal` leaves it: a comma before the digest, unless that is the only member.
    end = len(data) - _SEAL_BYTES - 1
    body = data[: end or 1] + b"}" if end == 0 or (end > 1 and data[end : end + 1] == b",") else b""
    if body[:1] != b"{" or data[-_SEAL_BYTES:] != _HEAD + sha256(body).encode() + _TAIL:
        raise CorruptError(
            "a record is damaged",
            kind="damaged-record",
            hint="milepost verify names all that is damaged, and what a resume would take",
            what=what,
            size_bytes=len(data),
        )
    # Looked for at the end only: a pattern that starts anywhere would read a large manifest once more.
    signed = _SIGNATURE.search(body, max(0, len(body) - 128)) if b'"signature":"' in body[-128:] else None
    if signed is None:
        return body, ""
    return body[: signed.start()] + signed[1].removeprefix(b",") + b"}", signed[2].decode()
