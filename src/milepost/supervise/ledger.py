"""Remember orders: what was taken and not begun, and by its key what was given before, so that it is done once."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from concurrent.futures import Future
from dataclasses import dataclass

from milepost.errors import MilepostError, UsageError
from milepost.supervise.orders import Answer, Order, RestartAll, RestartRole, RestartWorker
from milepost.supervise.roles import Place

REMEMBERED = 1024
"""So many keys are remembered, the latest; those of a `milepost up` that has ended are not."""


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """Be an order under way."""

    order: RestartWorker | RestartRole | RestartAll
    future: Future[Answer]
    floors: dict[Place, int]
    """What it names, with the start that has to be passed."""
    outcome: str


class Ledger:
    """Take orders from any thread, and give them to the one that carries them out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inbox: deque[tuple[Order, Future[Answer]]] = deque()
        self._by_key: OrderedDict[str, tuple[Order, Future[Answer]]] = OrderedDict()
        self._closed: MilepostError | None = None

    def take(self, order: Order, key: str) -> Future[Answer]:
        """Note an order, and return what tells of its end; of one that was given before, with the same key, the same."""
        with self._lock:
            if key in self._by_key:
                before, future = self._by_key[key]
                if before != order:
                    hint = "a key belongs to one order: draw another for each new one"
                    raise UsageError("this key belongs to another order", kind="key-reused", hint=hint, key=key)
                return future
            if self._closed is not None:
                raise self._closed
            future = Future()
            future.set_running_or_notify_cancel()  # what is begun is not called off half way
            self._inbox.append((order, future))
            if key:
                self._by_key[key] = order, future
                if len(self._by_key) > REMEMBERED:
                    # Not one under way: given once more it would be done twice.
                    old = next((each for each, (_, ended) in self._by_key.items() if ended.done()), None)
                    if old is not None:
                        del self._by_key[old]
            return future

    def taken(self) -> list[tuple[Order, Future[Answer]]]:
        """Return what came since the last time."""
        with self._lock:
            found = [*self._inbox]
            self._inbox.clear()
            return found

    def close(self, error: MilepostError) -> None:
        """Take nothing more, and fail what was not begun."""
        with self._lock:
            self._closed = error
            left = [*self._inbox]
            self._inbox.clear()
        for _, future in left:
            future.set_exception(error)
