"""Carry one save out in a thread of its own, and keep what became of it until somebody asks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from milepost.errors import MilepostError, SaveFailed
from milepost.pytorch.dcp.writer import Saved

log = logging.getLogger("milepost")


class Flight:
    """Be one save. The end of the program waits for it: what was copied is published."""

    def __init__(self, step: int, work: Callable[[Callable[[], None]], Saved]) -> None:
        self.step = step
        self.saved: Saved | None = None
        self.failure: BaseException | None = None
        self._early: BaseException | None = None
        """What failed while training waited."""
        self._work: Callable[[Callable[[], None]], Saved] | None = work
        self._free, self._over = threading.Event(), threading.Event()
        """Training may change its tensors; nothing of it is under way any more. The thread is not asked: once a Ctrl-C has
        struck a join, Python says of a thread that runs that it has ended."""
        self._thread = threading.Thread(target=self._run, name="milepost-recover")
        self._thread.start()

    def _run(self) -> None:
        work, self._work = self._work, None
        assert work is not None
        try:
            self.saved = work(self._free.set)
        except BaseException as error:  # noqa: BLE001 - nothing is lost: `failed` hands it to the next who asks
            self.failure = error
            if not self._free.is_set():
                self._early = error
            # For who never asks: a script that ends without close() would else end as if all were well.
            log.error("[recover] a save failed: step=%d %s: %s", self.step, type(error).__name__, error)
        finally:
            self._free.set()
            self._over.set()

    @property
    def is_over(self) -> bool:
        """Say whether it has ended, well or not."""
        return self._over.is_set()

    def wait_for_tensors(self) -> BaseException | None:
        """Wait until no live tensor is read any more, and return what failed before that."""
        self._free.wait()
        return self._early

    def join(self) -> None:
        """Wait until it is over."""
        self._over.wait()

    def failed(self) -> SaveFailed | None:
        """Wait until it is over, and return why it failed, if it did."""
        self.join()
        if self.failure is None:
            return None
        error = SaveFailed(
            "a save that was made beside training failed",
            kind=getattr(self.failure, "kind", "save-failed"),
            hint=getattr(self.failure, "hint", "") or "look at the error that caused it",
            step=self.step,
            cause=self.failure.message if isinstance(self.failure, MilepostError) else str(self.failure),
        )
        error.__cause__ = self.failure
        return error
