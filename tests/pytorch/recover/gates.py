"""Hold a save where a test wants it: what happens meanwhile is seen, and not guessed from the time that has passed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from milepost.pytorch.dcp import writing

WAIT_S = 60
"""Only ever fails."""


class Gate:
    """Let what passes through wait, until it is opened; and know that something has come."""

    def __init__(self) -> None:
        self._come, self._open = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self._come.set()
        assert self._open.wait(WAIT_S), "nobody has opened the gate"

    def wait(self) -> None:
        """Wait until something has come."""
        assert self._come.wait(WAIT_S), "nothing has come to the gate"

    def open(self) -> None:
        self._open.set()


@contextmanager
def held_blobs(after: int = 0) -> Iterator[Gate]:
    """Hold the writing of all blobs but the first ``after`` of this process."""
    gate, real, count = Gate(), writing._write_blob, [0]

    def held(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        if count[0] > after:
            gate.pass_through()
        return real(*args, **kwargs)

    with mock.patch.object(writing, "_write_blob", held):
        try:
            yield gate
        finally:
            gate.open()


@contextmanager
def failing_blobs(error: Exception, nth: int = 1) -> Iterator[None]:
    """Have the writing of the ``nth`` blob from now on fail, once."""
    real, count = writing._write_blob, [0]

    def failing(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        if count[0] == nth:
            raise error
        return real(*args, **kwargs)

    with mock.patch.object(writing, "_write_blob", failing):
        yield
