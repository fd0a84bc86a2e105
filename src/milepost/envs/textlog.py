"""Carry the text of an open log file through a checkpoint.

A script that is run again opens its logs with mode ``w`` and so cuts them before anybody can object. The checkpoint
holds their bytes; a restore writes them back through the handle that is open now: rows written after the checkpoint
vanish, and training makes them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

CHUNK_BYTES = 1 << 16
"""A growing log is saved in pieces of this size: all but the last equal the parent generation's, and cost nothing."""


def read_log(handle: Any) -> list[bytes]:
    """Return the bytes of the file behind a text handle, in pieces; nothing if it is closed or gone."""
    if handle.closed:
        return []
    handle.flush()
    try:
        with open(handle.name, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return []
    return [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]


def rewrite_log(handle: Any, chunks: Sequence[bytes]) -> None:
    """Make the file behind an open text handle hold these bytes, and go on writing after them."""
    if handle.closed:
        return
    handle.seek(0)
    handle.truncate()
    handle.buffer.write(b"".join(chunks))
    handle.buffer.flush()
    handle.seek(0, 2)
