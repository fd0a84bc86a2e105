"""Write one export at a time beside training, and keep what became of it until somebody asks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from milepost.errors import MilepostError, SaveFailed

log = logging.getLogger("milepost")


class Job:
    """Be one export that is written in a thread of its own. The end of the program waits for it."""

    def __init__(self, path: str, work: Callable[[], object]) -> None:
        self.path = path
        self._work: Callable[[], object] | None = work
        self._failure: BaseException | None = None
        # Not the thread's own word: a Ctrl-C in join() has Python up to 3.12 believe that the thread has ended.
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="milepost-export")
        self._thread.start()

    def _run(self) -> None:
        work, self._work = self._work, None
        assert work is not None
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - nothing is lost: `failed` hands it to the next who asks
            self._failure = error
            # For who never asks: a script that ends without close() would else end as if all were well.
            log.error("[export] failed: path=`%s` %s: %s", self.path, type(error).__name__, error)
        finally:
            self._over.set()

    @property
    def is_over(self) -> bool:
        """Say whether it has ended, well or not."""
        return self._over.is_set()

    def failed(self) -> SaveFailed | None:
        """Wait until it is over, and return why it failed, if it did."""
        self._over.wait()
        if self._failure is None:
            return None
        error = SaveFailed(
            "an export that was written beside training failed",
            kind="export-failed",
            hint=getattr(self._failure, "hint", "") or "look at the error that caused it",
            path=self.path,
            cause=self._failure.message if isinstance(self._failure, MilepostError) else str(self._failure),
        )
        error.__cause__ = self._failure
        return error
