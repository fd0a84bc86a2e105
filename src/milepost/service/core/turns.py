"""Let decisions that are written down take turns: each is made on what all before it have come to, and one is under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from milepost.service.core.catalogue import Catalogue
from milepost.service.core.events import Record, Recorded
from milepost.service.core.records import Entry


@dataclass(frozen=True, slots=True)
class Turn:
    """Be one decision: what to write down, made when its turn comes; and what follows from that."""

    decide: Callable[[], tuple[Entry, ...]]
    """Return nothing if there is nothing to write down any more; it has then seen to its own answer."""
    done: Callable[[], None]
    failed: Callable[[str], None]


class Turns:
    """Be the queue of decisions, and the one that is being written down."""

    def __init__(self, catalogue: Catalogue, emit: Callable[[Record], None]) -> None:
        self._catalogue = catalogue
        self._emit = emit
        self._queue: deque[Turn] = deque()
        self._under_way: tuple[Record, Turn] | None = None
        self._ticket = 0
        self._deciding = False

    def take(self, turn: Turn) -> None:
        """Let a decision be made once all before it are written down, or have failed."""
        self._queue.append(turn)
        self._go_on()

    def recorded(self, event: Recorded) -> None:
        """Hear of what was to be written down. What is not of the one under way is old, and changes nothing."""
        if self._under_way is None or self._under_way[0].ticket != event.ticket:
            return
        (record, turn), self._under_way = self._under_way, None
        if event.failure:
            turn.failed(event.failure)
        else:
            for entry in record.entries:
                self._catalogue.apply(entry)
            turn.done()
        self._go_on()

    def _go_on(self) -> None:
        while self._under_way is None and self._queue and not self._deciding:
            turn = self._queue.popleft()
            self._deciding = True  # what a decision sets off waits for its own turn
            entries = turn.decide()
            self._deciding = False
            if entries:
                self._ticket += 1
                self._under_way = (Record(self._ticket, entries), turn)
                self._emit(self._under_way[0])
