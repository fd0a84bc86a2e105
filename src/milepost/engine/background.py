"""Run one save at a time beside training, and keep what became of it until somebody asks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

Work = Callable[[], object]


class Background:
    """Run saves in a thread of their own (``thread``), or right away in the caller (``inline``, for tests).

    The thread is no daemon: a program that ends, or dies of an exception, waits for the save that is staged already.
    """

    def __init__(self, writer: Literal["thread", "inline"]) -> None:
        self._writer = writer
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Return whether a save is in flight."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Work) -> None:
        """Begin ``work``; none may be in flight."""
        if self._writer == "inline":
            try:
                work()
            except Exception as error:  # noqa: BLE001 - nothing is lost: `collect` hands it to the caller
                self._failure = error
            return
        self._thread = threading.Thread(target=self._run, args=(work,), name="milepost-writer")
        self._thread.start()

    def _run(self, work: Work) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - a thread has nobody to raise to: `collect` hands it to the next caller
            self._failure = error

    def join(self) -> None:
        """Wait until no save is in flight."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def collect(self) -> BaseException | None:
        """Return what the last save died of, once. Call `join` first."""
        failure, self._failure = self._failure, None
        return failure
