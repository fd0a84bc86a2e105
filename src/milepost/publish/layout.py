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

TERMS: Final = "terms/"
GENERATIONS: Final = "generations/"
BLOBS: Final = "blobs/"
PINS: Final = "pins/"
QUARANTINE: Final = "quarantine/"
EVENTS: Final = "events/"
ASIDE: Final = "reset/"

DIRECTORIES: Final = (TERMS, GENERATIONS, BLOBS, PINS, QUARANTINE, EVENTS)
"""The directories which hold one run, in no particular order; ``reset/`` holds earlier runs, whole."""

_BLOB = re.compile(r"^blobs/[\w.-]*-t(\d+)-[0-9a-f]{16}(?:-\d+)?\.[a-z.]+$", re.ASCII)
"""Matches what any writer leaves in blobs/: `000042-t7-<nonce>.safetensors`, the same with `.part`, `LATEST-t7-<nonce>.tmp`."""
_BLOB_NUMBER = re.compile(r"^blobs/(\d+)-t\d+-")
_FENCE = re.compile(r"^terms/(\d+)\.json$")
_SETTLEMENT = re.compile(r"^terms/(\d+)\.from\.json$")
_GENERATION = re.compile(r"^generations/(\d+)\.json$")
_PIN = re.compile(r"^pins/(\d+)$")
_MARK = re.compile(r"^quarantine/(\d+)\.json$")


def fence(term: int) -> str:
    """Return the name of a term's fence."""
    return f"{TERMS}{term:04d}.json"


def settlement(term: int) -> str:
    """Return the name of a term's settlement."""
    return f"{TERMS}{term:04d}.from.json"


def manifest(number: int) -> str:
    """Return the name of a generation's manifest."""
    return f"{GENERATIONS}{number:06d}.json"


def blob(number: int, term: int, nonce: str, part: int = 0) -> str:
    """Return the name of a blob: the generation it was first written for, the writer's term, a nonce (rule 9)."""
    split = f"-{part}" if part else ""
    return f"{BLOBS}{number:06d}-t{term}-{nonce}{split}.safetensors"


def pin(number: int) -> str:
    """Return the name of the pin on a generation."""
    return f"{PINS}{number:06d}"


def mark(number: int) -> str:
    """Return the name of the quarantine mark on a generation."""
    return f"{QUARANTINE}{number:06d}.json"


def events(term: int) -> str:
    """Return the name of a term's event log."""
    return f"{EVENTS}{term:04d}.jsonl"


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


def blob_term(name: str) -> int | None:
    """Return the term of whoever wrote ``name`` into ``blobs/``, unfinished and temporary files too; None if not milepost's."""
    return _number(_BLOB, name)


def blob_number(name: str) -> int | None:
    """Return the number which the generation a blob was written for was going to have, or None for a temporary file.

    The generation that names the blob first has this number or a higher one.
    """
    return _number(_BLOB_NUMBER, name)


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    found = pattern.match(name)
    return int(found.group(1)) if found else None
