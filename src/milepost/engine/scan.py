"""Look for numbers that are not finite beside the writing of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from milepost.lifecycle.health import Numbers, nonfinite
from milepost.threads import Member

_BESIDE_BYTES = 8 << 20
"""Less than this is looked at first: a thread would cost as much."""


class Scan:
    """Look for numbers that are not finite while the block runs, and add the paths of their leaves when it ends."""

    def __init__(self, memory: memoryview, numbers: Sequence[Numbers], found: list[str]) -> None:
        self._work: Callable[[], list[str]] = lambda: nonfinite(memory, numbers)
        self._found = found
        self._thread: Member | None = None
        self._result: list[str] = []
        self._failure: BaseException | None = None
        if sum(each.stop - each.start for each in numbers) >= _BESIDE_BYTES:
            self._thread = Member(self._run, "milepost-scan")

    def __enter__(self) -> None:
        try:
            if self._thread is not None:
                self._thread.start()
                return
        except RuntimeError:  # no more threads to be had
            self._thread = None
        self._run()

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.wait_out()  # it reads memory that is the caller's
        if self._failure is not None:
            raise self._failure
        self._found.extend(self._result)

    def _run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - whoever waits for the thread raises it
            self._failure = error
