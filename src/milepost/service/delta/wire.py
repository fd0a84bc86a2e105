"""Put a delta into a row of bytes, and read one that came from anywhere."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from milepost.encode.digest import Buffer, seal, unseal
from milepost.errors import CorruptError, UsageError
from milepost.service.delta.checking import check, damaged
from milepost.service.delta.records import Delta, DeltaManifest

_MAGIC = b"MPDELTA\x01"
_LENGTH_BYTES = 8
_HEAD_BYTES = len(_MAGIC) + _LENGTH_BYTES
MOST_MANIFEST_BYTES = 64 << 20
"""A trillion weights in chunks of the usual size have a manifest of a quarter of it."""

_decoder = msgspec.json.Decoder(DeltaManifest)


def pack(delta: Delta) -> Iterator[Buffer]:
    """Yield the bytes of a delta: a mark, the length of its manifest (8 bytes, little-endian), that, sealed, and its planes."""
    manifest = seal(msgspec.json.encode(delta.manifest))
    if len(manifest) > MOST_MANIFEST_BYTES:
        raise UsageError(
            "a delta has too many chunks",
            kind="too-many-chunks",
            hint="encode it with larger chunk_words",
            manifest_bytes=len(manifest),
            most=MOST_MANIFEST_BYTES,
        )
    yield _MAGIC + len(manifest).to_bytes(_LENGTH_BYTES, "little")
    yield manifest
    yield from delta.planes


def parse(data: Buffer, *, limit_bytes: int) -> Delta:
    """Return the delta that `pack` has put into ``data``, in whose memory its planes stay.

    ``limit_bytes`` is how large the new version may be. Raises `CorruptError` (kind ``damaged-delta``) for all that is not a
    sound delta; whether its planes are is seen when it is applied.
    """
    view = memoryview(data).cast("B").toreadonly()
    if bytes(view[: len(_MAGIC)]) != _MAGIC or len(view) < _HEAD_BYTES:
        raise damaged("it does not begin as one", size_bytes=len(view))
    length = int.from_bytes(view[len(_MAGIC) : _HEAD_BYTES], "little")
    if length > min(MOST_MANIFEST_BYTES, len(view) - _HEAD_BYTES):
        raise damaged("its manifest is longer than it, or than any", manifest_bytes=length, size_bytes=len(view))
    end = _HEAD_BYTES + length
    manifest = _manifest(bytes(view[_HEAD_BYTES:end]))
    delta = Delta(manifest, tuple(_planes(manifest, view[end:])))
    check(delta, limit_bytes)
    return delta


def _manifest(record: bytes) -> DeltaManifest:
    try:
        return _decoder.decode(unseal(record, "the manifest of a delta"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, CorruptError) as error:
        raise damaged("its manifest is none") from error


def _planes(manifest: DeltaManifest, rest: memoryview) -> Iterator[memoryview]:
    start = 0
    for tensor in manifest.tensors:
        for piece in tensor.pieces:
            for size in piece.stored:
                if not 0 < size <= len(rest) - start:
                    raise damaged("it ends within its planes", tensor=tensor.name)
                yield rest[start : start + size]
                start += size
    if start < len(rest):
        raise damaged("something follows its planes", left_bytes=len(rest) - start)
