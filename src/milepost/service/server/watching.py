"""Tell who watches what the pointers are now. Who reads slowly is told the newest, and not all that was between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from milepost.service.core.events import Refused
from milepost.service.core.records import Began, Committed, Entry, Held, Resumed, RolledBack, Stored

MAX_WATCHERS = 2048
_REASONS: dict[type[Entry], str] = {
    Stored: "durable",
    Resumed: "resumed",
    Committed: "committed",
    Held: "held",
    RolledBack: "rolled back",
    Began: "began",
}
"""The reasons for news, in the order of how much they mean: of several the last here is told."""
_WEIGHT = {reason: weight for weight, reason in enumerate(_REASONS.values())}


class Watchers:
    """Be those who watch."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Event, str] = {}
        """Of each the reason of which it was not told yet."""
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def tell(self, entries: tuple[Entry, ...]) -> None:
        """Let all know what was written down."""
        for reason in [_REASONS[type(entry)] for entry in entries if type(entry) in _REASONS]:
            for woken, before in self._waiting.items():
                self._waiting[woken] = max(before, reason, key=lambda each: _WEIGHT.get(each, -1))
                woken.set()

    def close(self) -> None:
        """Let all end."""
        self._closed = True
        for woken in self._waiting:
            woken.set()

    def full(self) -> Refused | None:
        """Refuse one more than there may be."""
        if len(self._waiting) < MAX_WATCHERS:
            return None
        return Refused(
            "too-many", "too many watch already", "let one process of each host watch", {"watchers": len(self._waiting)}
        )

    async def watch(self) -> AsyncIterator[str]:
        """Yield the reason of each news; the first at once."""
        woken = asyncio.Event()
        self._waiting[woken] = "began"
        woken.set()
        try:
            while True:
                await woken.wait()
                if self._closed:
                    return
                woken.clear()
                reason, self._waiting[woken] = self._waiting[woken], ""
                yield reason
        finally:
            del self._waiting[woken]
