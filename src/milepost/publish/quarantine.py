"""Mark generations that must not be loaded, and take the mark away again. Only whoever holds the claim marks."""

from __future__ import annotations

from typing import Literal

from milepost.clock import Clock, utc_text
from milepost.publish import layout
from milepost.publish.manifest import encode
from milepost.records import QuarantineMark
from milepost.store.base import Store

_LONGEST = 4000
"""Of a reason, in characters: it may name every blob of a generation, and a record is small."""


def mark(
    store: Store, clock: Clock, *, run_id: str, term: int, number: int, kind: Literal["damaged", "kills-loader"], reason: str
) -> QuarantineMark:
    """Mark a generation. Its number stays taken and its files stay; resume skips it and says so.

    ``damaged`` is only a memory of what was seen: each claim checks again, since a paused old writer may have written
    the mark, or the medium may have recovered. ``kills-loader`` stands until an operator clears it.
    """
    record = QuarantineMark(run_id, number, kind, reason[:_LONGEST], utc_text(clock.wall_ns()), term)
    store.replace(layout.mark(number), encode(record), label=layout.label(term))
    return record


def clear(store: Store, number: int) -> None:
    """Take the mark away."""
    store.delete(layout.mark(number))
    store.sync(layout.QUARANTINE)
