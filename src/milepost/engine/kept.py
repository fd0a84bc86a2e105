"""Hold a safe point that is staged and written by nobody, so that it can be published at once when the process is to end."""

from __future__ import annotations

from milepost.engine.background import Job
from milepost.engine.capture import Staged
from milepost.engine.session import Order
from milepost.lifecycle.triggers import Reading


class Kept:
    """Be the last safe point, as it was: its bytes in the arena, its step, counters, metrics and time. Holds no live object."""

    __slots__ = ("failure", "job", "now", "order", "staged")

    def __init__(self, staged: Staged, order: Order, now: Reading) -> None:
        self.staged = staged
        self.order = order
        self.now = now
        self.job: Job | None = None
        """What publishes it, once it is flushed; after one that failed there may be another."""
        self.failure: BaseException | None = None
        """What the last of them died of, once that was surfaced."""

    @property
    def published(self) -> bool:
        """Return whether a generation holds it."""
        return self.job is not None and self.job.answer is not None
