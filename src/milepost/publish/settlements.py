"""Find out what a settlement said that cannot be read any more: it is repeated in two other places (rule 3a)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from milepost.encode.digest import unseal
from milepost.errors import CorruptError, NotFoundError
from milepost.publish import layout
from milepost.publish.sane import absurdity
from milepost.records import Settlement, Summary
from milepost.store.base import Store

_FIRST_LINES_BYTES = layout.MOST_RECORD_BYTES
"""The event that repeats a settlement is the first of its term's log; how long the log grew does not matter."""


class _Event(msgspec.Struct):
    event: str
    settlement: Settlement | None = None


def repeated_settlement(store: Store, term: int, summaries: Iterable[Summary]) -> Settlement | None:
    """Return a term's settlement from any manifest of that term, or from its event log; None if neither has it."""
    for summary in summaries:
        if summary.term == term:
            return Settlement(summary.run_id, term, summary.term_head, summary.term_next, summary.term_unsure)
    return _from_events(store, term)


def _from_events(store: Store, term: int) -> Settlement | None:
    """Return it from the line that the claim or the reset wrote once its settlement was there. Sealed like any record.

    Else one rotten sector under a settlement would block a run between a claim and its first save.
    """
    name = layout.events(term)
    try:
        lines = store.read(name, 0, _FIRST_LINES_BYTES).splitlines(keepends=True)
    except NotFoundError:
        return None
    for line in lines:
        try:
            event = msgspec.json.decode(unseal(line, name), type=_Event)
        except (CorruptError, msgspec.DecodeError, RecursionError):
            continue  # a torn line, or another kind of event
        found = event.settlement
        if event.event in ("claimed", "reset") and found is not None and not absurdity(found, layout.settlement(term)):
            return found
    return None


def lost_settlement(store: Store, term: int) -> CorruptError:
    """Return the error for a settlement that is nowhere."""
    return CorruptError(
        "a settlement cannot be read, and neither a manifest nor the event log of its term repeats it; "
        "which generations count is unknown",
        kind="damaged-settlement",
        hint=f"restore {layout.settlement(term)} or {layout.events(term)} from a copy of the run",
        root=store.url,
        name=layout.settlement(term),
    )
