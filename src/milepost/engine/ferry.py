"""Carry a state that is larger than the arena from the thread that trains to the one that writes, wave by wave."""

from __future__ import annotations

import queue
import threading

from milepost.engine.capture import Staged
from milepost.errors import StoreError

_LOOK_S = 1.0


class Ferry:
    """Copy each wave in the thread that trains, when the writer asks for it: nobody else may look at what training changes.

    Training waits in `serve` until the last wave is copied, or the save has failed: whatever becomes of the writer, it says so
    by `end`. And whatever becomes of the thread that trains, the writer does not wait for ever: ``aboard`` is a plain lock,
    which is held for as long as somebody may come, and which no Ctrl-C leaves behind.
    """

    def __init__(self, staged: Staged) -> None:
        self.aboard = threading.Lock()
        self._copy = staged.bring
        self._last = staged.wave_count - 1
        self._asked: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._brought: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._landed = False
        staged.bring = self._ask
        staged.can_bring = lambda: not self._landed

    def serve(self) -> None:
        """Copy what is asked for, until the last wave is copied. For the thread that trains, which holds ``aboard``."""
        try:
            while (wave := self._asked.get()) is not None:
                self._copy(wave)
                self._landed = wave == self._last
                self._brought.put(None)
                if self._landed:
                    return
        except BaseException as error:
            self._landed = True
            self._brought.put(error)
            raise

    def end(self) -> None:
        """Let training go: the save is over, however it ended."""
        self._asked.put(None)

    def _ask(self, wave: int) -> None:
        """Have a wave copied. For the thread that writes. Raises `StoreError` (kind ``staging-over``) if nobody does it."""
        if self._landed:
            raise _over(None)
        self._asked.put(wave)
        while True:
            gone = not self.aboard.locked()  # looked at first: what was brought before it went is found after it
            try:
                failure = self._brought.get(timeout=0.0 if gone else _LOOK_S)
            except queue.Empty:
                if gone:
                    raise _over(None) from None
            else:
                break
        if failure is not None:
            raise _over(failure)


def _over(cause: BaseException | None) -> StoreError:
    error = StoreError(
        "training went on before all of its state was copied; this save is lost",
        kind="staging-over",
        retryable=True,
        hint="a larger staging_bytes= has it copied in one go",
    )
    error.__cause__ = cause
    return error
