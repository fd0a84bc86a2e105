"""Say how an entry of the journal is written, one row each, and chain the rows: one that is lost, bent or added is found."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from milepost.errors import CorruptError
from milepost.service.core.records import Entry

BEGINNING = b"\0" * 32
"""What the first row is chained to."""

_decoders: dict[str, msgspec.json.Decoder[Any]] = {kind.__name__: msgspec.json.Decoder(kind) for kind in get_args(Entry)}

Row = tuple[str, bytes, bytes]
"""Kind, body, and the digest of both and of the row before."""


def rows_of(entries: Iterable[Entry], before: bytes) -> list[Row]:
    """Return the rows of entries that follow the row with the digest ``before``."""
    rows: list[Row] = []
    for entry in entries:
        kind, body = type(entry).__name__, msgspec.json.encode(entry)
        before = chained(before, kind, body)
        rows.append((kind, body, before))
    return rows


def chained(before: bytes, kind: str, body: bytes) -> bytes:
    """Return the digest of a row that follows the row with the digest ``before``."""
    return hashlib.sha256(b"%b%b\0%b" % (before, kind.encode(), body)).digest()


def entry_of(kind: str, body: bytes) -> Entry:
    """Return the entry of a row. Raises `ValueError` for one that is none."""
    decoder = _decoders.get(kind)
    if decoder is None:
        raise ValueError(f"no entry is called {kind!r}")
    entry: Entry = decoder.decode(body)
    return entry


def damaged_journal(path: str, found: str) -> CorruptError:
    """Say that a journal is not what was written, and what to do."""
    return CorruptError(
        "the service's journal is damaged",
        kind="damaged-journal",
        hint="milepost serve --restore goes back to its newest snapshot; what lies in service/versions is kept",
        path=path,
        found=found,
    )
