"""Log what happened to a run, one sealed JSON line an event, one file a term."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from milepost.clock import Clock, utc_text
from milepost.encode.digest import seal
from milepost.engine.redact import redacted_facts
from milepost.errors import StoreError
from milepost.publish import layout
from milepost.store.base import Store

log = logging.getLogger("milepost")


class Events:
    """Append to the event log of one term. Events are for people and monitors: nothing is decided from them."""

    def __init__(self, store: Store, clock: Clock, *, run_id: str, term: int, attempt: int) -> None:
        self._store = store
        self._clock = clock
        self._head = {"run_id": run_id, "term": term, "attempt": attempt}
        self._name = layout.events(term)

    def write(self, event: str, **facts: object) -> None:
        """Append one event. A log that cannot be written is logged, and stops nobody."""
        head = {"event": event, "at": utc_text(self._clock.wall_ns()), **self._head}
        # What errors say may hold the URL of a store with its password, or a line of somebody's configuration.
        line = seal(msgspec.json.encode(head | redacted_facts(facts)))
        if len(line) > layout.MOST_RECORD_BYTES:
            line = seal(msgspec.json.encode(head | {"too_long_bytes": len(line)}))
        try:
            self._store.append(self._name, line)
        except StoreError as error:
            log.warning("the event log could not be written: %s", error)


def milliseconds(phases_ns: Mapping[str, int]) -> dict[str, str]:
    """Return durations for an event: text in milliseconds, since JSON numbers are not for measurements."""
    return {name: f"{ns / 1e6:.3f}" for name, ns in phases_ns.items()}
