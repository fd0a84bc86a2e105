"""Name every file of a run root on one page, and read the names back.

milepost lists, sweeps and verifies only these names; whatever else lies in the directory belongs to somebody else.
"""

from __future__ import annotations

import re
from typing import Final

RUN: Final = "milepost.json"
PROGRESS: Final = "progress.json"
LATEST: Final = "LATEST"
BALLAST: Final = "ballast"
LOCK: Final = "writer.lock"
LEASE: Final = "lease.json"
SCRUB: Final = "scrub.json"

TERMS: Final = "terms/"
GENERATIONS: Final = "generations/"
BLOBS: Final = "blobs/"
PINS: Final = "pins/"
QUARANTINE: Final = "quarantine/"
EVENTS: Final = "events/"
ASIDE: Final = "reset/"

DIRECTORIES: Final = (TERMS, GENERATIONS, BLOBS, PINS, QUARANTINE, EVENTS)
"""The directories which hold one run, in no particular order; ``reset/`` holds earlier runs, whole."""

HIGHEST: Final = 999_999_999_999
"""The highest number and the highest term there can be. A name with more digits is not milepost's: whoever planted it could
else make the next claim's own number one that no file can be named by."""

MOST_MANIFEST_BYTES: Final = 256 << 20
MOST_SCRUB_BYTES: Final = 16 << 20
MOST_RECORD_BYTES: Final = 1 << 20
"""How large a manifest, ``scrub.json``, and any other record or line of an event log, may be: a larger one is refused unread."""

COMPRESSED: Final = ".zst"
"""How the name of a compressed blob ends."""

_BEFORE: Final = ".before-"
_BLOB = re.compile(
    r"blobs/(?:\d{6,12}|(?!\d{6,12}-t\d)[\w.-]*)-t(\d{1,12})-[0-9a-f]{16}"
    r"(?:-\d{1,6})?(?:\.\w{1,60}\.\d{1,20}-\d{1,20})?\.[a-z.]+",
    re.ASCII,
)
"""Matches what any writer leaves in blobs/: `000042-t7-<nonce>.safetensors`, the same with `.part`, `LATEST-t7-<nonce>.tmp`."""
_BLOB_NUMBER = re.compile(r"blobs/(\d{6,12})-t\d{1,12}-.*", re.ASCII)
# One spelling a number: a second name for one would be read, and never deleted or written.
_TERM_DIGITS, _DIGITS = r"(\d{4}|[1-9]\d{4,11})", r"(\d{6}|[1-9]\d{6,11})"
_FENCE = re.compile(rf"terms/{_TERM_DIGITS}\.json", re.ASCII)
_SETTLEMENT = re.compile(rf"terms/{_TERM_DIGITS}\.from\.json", re.ASCII)
_EVENTS = re.compile(rf"events/{_TERM_DIGITS}\.jsonl", re.ASCII)
_GENERATION = re.compile(rf"generations/{_DIGITS}\.json", re.ASCII)
_PIN = re.compile(rf"pins/{_DIGITS}", re.ASCII)
_MARK = re.compile(rf"quarantine/{_DIGITS}\.json", re.ASCII)


def fence(term: int) -> str:
    """Return the name of a term's fence."""
    return f"{TERMS}{term:04d}.json"


def settlement(term: int) -> str:
    """Return the name of a term's settlement."""
    return f"{TERMS}{term:04d}.from.json"


def manifest(number: int) -> str:
    """Return the name of a generation's manifest."""
    return f"{GENERATIONS}{number:06d}.json"


def blob(number: int, term: int, nonce: str, part: int = 0, rows: str = "", compressed: bool = False) -> str:
    """Return the name of a blob: the generation it was first written for, the writer's term, a nonce (rule 9).

    ``rows`` is for people: ``replay.917504-983040`` where nothing but these rows of one log is in it.
    """
    split = f"-{part}" if part else ""
    log, _, span = rows.rpartition(".")
    # A log may have any name. No part of one may look like a term: who sweeps goes by that.
    of = f".{re.sub('[^A-Za-z0-9_]', '_', log)[:60]}.{span}" if log else ""
    return f"{BLOBS}{number:06d}-t{term}-{nonce}{split}{of}.safetensors{COMPRESSED if compressed else ''}"


def pin(number: int) -> str:
    """Return the name of the pin on a generation."""
    return f"{PINS}{number:06d}"


def mark(number: int) -> str:
    """Return the name of the quarantine mark on a generation."""
    return f"{QUARANTINE}{number:06d}.json"


def events(term: int) -> str:
    """Return the name of a term's event log."""
    return f"{EVENTS}{term:04d}.jsonl"


def events_term(name: str) -> int | None:
    """Return the term whose event log ``name`` is, or None."""
    return _number(_EVENTS, name)


def aside(name: str, label: str, count: int) -> str:
    """Return the name under which somebody else's file stays that had one of milepost's. It is not milepost's."""
    return f"{name}{_BEFORE}{label}" + (f".{count}" if count else "")


def is_aside(name: str) -> bool:
    """Return whether ``name`` is one that `aside` gives."""
    return name.startswith((f"{LATEST}{_BEFORE}", f"{PROGRESS}{_BEFORE}"))


def label(term: int) -> str:
    """Return what a writer of ``term`` puts into the names of its temporary files."""
    return f"t{term}"


def fence_term(name: str) -> int | None:
    """Return the term whose fence ``name`` is, or None."""
    return _number(_FENCE, name)


def settlement_term(name: str) -> int | None:
    """Return the term whose settlement ``name`` is, or None."""
    return _number(_SETTLEMENT, name)


def generation_number(name: str) -> int | None:
    """Return the number of the generation whose manifest ``name`` is, or None."""
    return _number(_GENERATION, name)


def pin_number(name: str) -> int | None:
    """Return the number of the generation which the pin ``name`` is on, or None."""
    return _number(_PIN, name)


def mark_number(name: str) -> int | None:
    """Return the number of the generation which the mark ``name`` is on, or None."""
    return _number(_MARK, name)


def is_other_record(name: str) -> bool:
    """Return whether ``name`` is that of a fence, a settlement, a pin, a mark or an event log."""
    return any(_number(pattern, name) is not None for pattern in (_FENCE, _SETTLEMENT, _PIN, _MARK, _EVENTS))


def blob_term(name: str) -> int | None:
    """Return the term of whoever wrote ``name`` into ``blobs/``, unfinished and temporary files too; None if not milepost's."""
    return _number(_BLOB, name, least=0)


def is_blob(name: str) -> bool:
    """Return whether a manifest may name ``name`` as a blob: no record, no unfinished or temporary file."""
    known = len(name) <= 255 and blob_number(name) is not None and blob_term(name) is not None
    return known and not name.endswith((".part", ".tmp"))


def blob_number(name: str) -> int | None:
    """Return the number which the generation a blob was written for was going to have, or None for a temporary file.

    The generation that names the blob first has this number or a higher one.
    """
    return _number(_BLOB_NUMBER, name)


def most_bytes(name: str) -> int:
    """Return how large the record ``name`` may be."""
    if name.endswith(SCRUB):
        return MOST_SCRUB_BYTES
    return MOST_MANIFEST_BYTES if name.rpartition("/")[0].endswith(GENERATIONS[:-1]) else MOST_RECORD_BYTES


def _number(pattern: re.Pattern[str], name: str, *, least: int = 1) -> int | None:
    found = pattern.fullmatch(name)
    number = int(found.group(1)) if found else -1
    return number if number >= least else None
