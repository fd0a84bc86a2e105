"""Check the names of places and blobs: they come over a network, and become names of files."""

from __future__ import annotations

import re

from milepost.errors import UsageError
from milepost.service.transports.base import Blob

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


def is_plain(name: str) -> bool:
    """Return whether this may be the name of a place, or of a blob in one."""
    return _PLAIN.fullmatch(name) is not None


def checked(blob: Blob) -> Blob:
    """Return ``blob`` if both its names are plain; raise `UsageError` (kind ``bad-name``) else."""
    if is_plain(blob.place) and is_plain(blob.name):
        return blob
    raise UsageError(
        "this cannot be the name of a blob",
        kind="bad-name",
        hint="letters, digits, dots, dashes and underscores, and no dot or dash first",
        blob=ascii(str(blob)),
    )


def checked_range(blob: Blob, size_bytes: int, start: int, stop: int) -> None:
    """Raise `UsageError` (kind ``out-of-range``) unless ``[start, stop)`` lies within a blob of this size."""
    if not 0 <= start <= stop <= size_bytes:
        raise UsageError(
            "these bytes lie outside of what was announced",
            kind="out-of-range",
            hint="bring what was announced: begin again with the sizes that it has",
            blob=str(blob),
            size_bytes=size_bytes,
            start=start,
            stop=stop,
        )
