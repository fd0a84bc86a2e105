"""Say what goes over a bulk socket, byte by byte. All numbers are little-endian and without a sign. docs/service-protocol.md.

A client greets with the token and gets an answer; then it sends requests, and the answers come in their order.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgspec

from milepost.errors import MilepostError
from milepost.service.transports.base import Blob

MAGIC = b"MILEBULK"
PROTOCOL = 1
GET, PUT = 1, 2
DONE, REFUSED = 0, 1

MOST_TOKEN_BYTES = 1024
MOST_NAME_BYTES = 200
MOST_TEXT_BYTES = 4096
MOST_PUT_BYTES = 16 << 20
"""What one request may bring. What is refused is read all the same, so that the next request is found."""

GREETING = struct.Struct("<8sHH4x")
"""``MILEBULK``, version, length of the token that follows."""
REQUEST = struct.Struct("<B3xHHQQ")
"""What to do, length of the place and of the name that follow, first byte, how many."""
ANSWER = struct.Struct("<B7xQ")
"""Whether it was done, how many bytes follow: those asked for, or the refusal as JSON."""


class Malformed(Exception):
    """Say that the peer does not speak this protocol."""


@dataclass(frozen=True, slots=True)
class Request:
    """Ask for bytes of a blob, or bring some."""

    verb: int
    blob: Blob
    start: int
    size_bytes: int

    def encode(self) -> bytes:
        """Return it as it is sent; what is brought follows."""
        place, name = self.blob.place.encode(), self.blob.name.encode()
        return REQUEST.pack(self.verb, len(place), len(name), self.start, self.size_bytes) + place + name


def greeting(token: str) -> bytes:
    """Return what a client sends first."""
    secret = token.encode()
    return GREETING.pack(MAGIC, PROTOCOL, len(secret)) + secret


def greeted(head: bytes) -> int:
    """Return how long the token is that follows. Raises `Malformed`."""
    magic, version, size_bytes = GREETING.unpack(head)
    if magic != MAGIC or version != PROTOCOL:
        raise Malformed("no greeting of this protocol")
    if size_bytes > MOST_TOKEN_BYTES:
        raise Malformed("the token is too long")
    return int(size_bytes)


def requested(head: bytes) -> tuple[int, int, int, int, int]:
    """Return verb, lengths of place and name, first byte, and how many, none of them beyond its bounds. Raises `Malformed`."""
    verb, place_bytes, name_bytes, start, size_bytes = REQUEST.unpack(head)
    if verb not in (GET, PUT):
        raise Malformed("neither GET nor PUT")
    if max(place_bytes, name_bytes) > MOST_NAME_BYTES:
        raise Malformed("the name is too long")
    if verb == PUT and size_bytes > MOST_PUT_BYTES:
        raise Malformed("too many bytes at once")
    return verb, place_bytes, name_bytes, start, size_bytes


def named(name: bytes, place_bytes: int) -> Blob:
    """Return the blob of this name. Raises `Malformed` if that is not text."""
    try:
        return Blob(name[:place_bytes].decode("ascii"), name[place_bytes:].decode("ascii"))
    except UnicodeDecodeError as error:
        raise Malformed("the name is not ASCII") from error


class _Refusal(msgspec.Struct, frozen=True):
    kind: str
    message: str
    hint: str = ""


def refusal(error: MilepostError) -> bytes:
    """Return an error as it is sent; escaped as JSON it is still no longer than `MOST_TEXT_BYTES`."""
    message, hint = (text.encode("ascii", "replace").decode() for text in (str(error).partition("\nhint: ")[0], error.hint))
    return msgspec.json.encode(_Refusal(error.kind[:100], message[:1000], hint[:500]))


def refused(text: bytes) -> tuple[str, str, str]:
    """Return kind, message and hint of what `refusal` was given. Raises `Malformed`."""
    try:
        said = msgspec.json.decode(text, type=_Refusal)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed("the refusal cannot be read") from error
    return said.kind, said.message, said.hint
