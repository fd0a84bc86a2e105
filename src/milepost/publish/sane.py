"""Say what in a sealed record cannot be, before anybody acts on it: what milepost never writes, whoever sealed it.

Readers take memory, name files and count by these numbers. Pure functions of the record and of the name it was read from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from milepost.encode.frames import MOST_RAW_BYTES, most_stored
from milepost.publish import layout
from milepost.publish.layout import HIGHEST
from milepost.records import (
    BlobRecord,
    Fence,
    Latest,
    LeafRecord,
    Manifest,
    Pin,
    Progress,
    QuarantineMark,
    Reset,
    RunRecord,
    Scrubbed,
    Settlement,
    Summary,
)

_RUN_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")
"""A run that is set aside lies in a directory of this name."""
FAR = 1 << 63
"""No step and no count is further from 0."""
_MOST_AXES = 64


def absurdity(record: object, name: str) -> str:
    """Return what in ``record``, read from ``name``, cannot be; empty if there is nothing."""
    return next(_absurdities(record, name), "")


def _absurdities(record: object, name: str) -> Iterator[str]:
    match record:
        case Manifest():
            yield from _of_summary(record)
            yield from _of_components(record)
        case Summary():
            yield from _of_summary(record)
        case RunRecord():
            yield from _run(record.run_id)
            yield from _within(1, HIGHEST, record.format_version)
        case Fence():
            yield from _within(1, HIGHEST, record.term)
            yield from _within(-FAR, FAR, record.pid)
            yield from _named(layout.fence(record.term), name)
        case Settlement():
            yield from _of_settlement(record)
            yield from _named(layout.settlement(record.term), name)
        case Pin():
            yield from _within(1, HIGHEST, record.number)
            yield from _named(layout.pin(record.number), name)
        case QuarantineMark():
            yield from _within(1, HIGHEST, record.number)
            yield from _within(0, HIGHEST, record.term)
            yield from _named(layout.mark(record.number), name)
        case Latest():
            yield from _within(1, HIGHEST, record.generation)
            yield from _within(-FAR, FAR, record.step)
        case Progress():
            yield from _within(1, HIGHEST, record.generation, record.term)
            yield from _within(-FAR, FAR, record.step, record.attempt)
        case Scrubbed():
            yield from _within(-FAR, FAR, *record.checked_ns.values())


def _within(least: int, most: int, *numbers: int | None) -> Iterator[str]:
    for number in numbers:
        if number is not None and not least <= number <= most:
            yield f"{number} where there is {least} to {most}"


def _run(run_id: str) -> Iterator[str]:
    if not _RUN_ID.fullmatch(run_id):
        yield f"a run called {run_id[:80]!a}"


def _named(due: str, name: str) -> Iterator[str]:
    """Yield a record that lies under another's name: a copy of it, which would count twice."""
    if name and not name.endswith(due):
        yield f"it belongs to {due}"


def _of_settlement(record: Settlement) -> Iterator[str]:
    yield from _within(1, HIGHEST, record.term)
    yield from _within(0, HIGHEST, record.head, record.next, record.unsure)
    if not record.dead:
        yield from _run(record.run_id)
        if not record.head < record.next:
            yield f"head {record.head} and next {record.next}"
    if record.reset is not None:
        yield from _of_reset(record.reset)
        yield from _within(1, record.term, record.reset.term)


def _of_reset(record: Reset) -> Iterator[str]:
    yield from _run(record.run_id)
    yield from _within(1, HIGHEST, record.first_term, record.term, record.next)
    yield from _within(0, HIGHEST, record.head)


def _of_summary(record: Summary) -> Iterator[str]:
    yield from _run(record.run_id)
    generations = record.parent, record.rollback_to, record.trim_of, record.term_head, record.term_next, record.term_unsure
    counted = record.step, record.commit_timestamp, record.provenance.pid, record.provenance.attempt, *record.counters.values()
    yield from _within(1, HIGHEST, record.format_version, record.number, record.term)
    yield from _within(0, HIGHEST, *generations)
    yield from _within(1, HIGHEST, *_extremes(record.keep), *_extremes(record.line))
    yield from _within(-FAR, FAR, *counted, *(metric.step for metric in record.metrics.values()))
    yield from _of_blobs(record.blobs)
    yield from _not_a_time(record.elapsed_s)
    for metric in record.metrics.values():
        yield from _not_a_float(metric.value)


def _extremes(numbers: Sequence[int]) -> Iterable[int]:
    return (min(numbers), max(numbers)) if numbers else ()


def _of_blobs(blobs: Sequence[BlobRecord]) -> Iterator[str]:
    for blob in blobs:
        if not layout.is_blob(blob.name) or not 0 <= blob.size_bytes < FAR:
            yield f"a blob called {blob.name[:200]!a} of {blob.size_bytes} bytes"
        yield from _of_frames(blob)
    if len({blob.name for blob in blobs}) != len(blobs):
        # Each is looked at; one that is named a thousand times, with a thousand digests, would be read as often.
        yield "a blob is named twice"


def _of_frames(blob: BlobRecord) -> Iterator[str]:
    """Yield frames that nobody wrote: a reader takes memory for one frame, and finds the others by adding up."""
    if bool(blob.frames) != blob.name.endswith(layout.COMPRESSED):
        yield f"a blob called {blob.name[:200]!a} of {len(blob.frames)} frames"
    for raw, stored in blob.frames:
        if not (0 < raw <= MOST_RAW_BYTES and stored > 0 and (stored <= raw or stored <= most_stored(raw))):
            yield f"a frame of {raw} bytes, stored as {stored}"
    if blob.frames and sum(stored for _, stored in blob.frames) != blob.size_bytes:
        yield f"frames that are not the {blob.size_bytes} bytes of their file"


def _not_a_time(text: str) -> Iterator[str]:
    try:
        if not math.isfinite(float.fromhex(text)):
            yield f"elapsed_s {text}"
    except (ValueError, OverflowError):
        yield f"elapsed_s {text[:80]!a}"


def _not_a_float(text: str) -> Iterator[str]:
    try:
        float.fromhex(text)
    except (ValueError, OverflowError):
        yield f"a number that reads {text[:80]!a}"


def _of_components(record: Manifest) -> Iterator[str]:
    if len({component.name for component in record.components}) != len(record.components):
        yield "a component is there twice"
    leaves = [leaf for component in record.components for leaf in component.leaves]
    sizes = [blob.raw_bytes for blob in record.blobs]
    for leaf in leaves:
        if not 0 <= leaf.blob < len(sizes) or not 0 <= leaf.start <= leaf.stop <= sizes[leaf.blob]:
            yield f"leaf {leaf.path[:200]!a} lies outside its blob"
        elif len(leaf.shape) > _MOST_AXES or not all(0 <= size < FAR for size in leaf.shape):
            yield f"leaf {leaf.path[:200]!a} has an impossible shape"
    yield from _overlaps(leaves)


def _overlaps(leaves: Sequence[LeafRecord]) -> Iterator[str]:
    """Yield a leaf that lies over another. Without this rule a thousand leaves of one gigabyte take a terabyte of memory."""
    filled = sorted((leaf.blob, leaf.start, leaf.stop, index) for index, leaf in enumerate(leaves) if leaf.start < leaf.stop)
    for (blob, _, stop, _), (other, start, _, index) in pairwise(filled):
        if blob == other and start < stop:
            yield f"leaf {leaves[index].path[:200]!a} lies over another"
