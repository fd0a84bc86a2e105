"""Show at a terminal how far a long command is: one line on stderr that rewrites itself. In a pipe it says nothing."""

from __future__ import annotations

import shutil
import sys
from typing import TextIO

from milepost.cli.text import duration, size
from milepost.clock import Clock, SystemClock

_EVERY_NS = 100_000_000
_CELLS = 20


class Progress:
    """Count bytes done out of ``total_bytes``, once those are known. Leaving its context clears the line, Ctrl-C too."""

    def __init__(self, what: str, total_bytes: int, clock: Clock, stream: TextIO, *, quiet: bool = False) -> None:
        self._what, self.total_bytes = what, total_bytes
        self._clock, self._stream = clock, stream
        self._shown = stream.isatty() and not quiet
        self._bytes = 0
        self._started_ns = self._said_ns = clock.monotonic_ns()
        self._wide = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._wide:
            self._stream.write("\r" + " " * self._wide + "\r")
            self._stream.flush()

    def advance(self, count_bytes: int) -> None:
        """Note that ``count_bytes`` more are done, and say so if it is time to."""
        self._bytes += count_bytes
        if not self._shown:
            return
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._said_ns >= _EVERY_NS:
            self._said_ns = now_ns
            # A line that wraps can't be rewritten: what does not fit is left out.
            line = self._line((now_ns - self._started_ns) / 1e9)[: shutil.get_terminal_size().columns - 1]
            self._stream.write("\r" + line.ljust(self._wide))
            self._stream.flush()
            self._wide = len(line)

    def _line(self, seconds: float) -> str:
        part = min(self._bytes / self.total_bytes, 1.0) if self.total_bytes else 1.0
        bar = "#" * int(part * _CELLS)
        speed = self._bytes / seconds
        left = f"  eta {duration((self.total_bytes - self._bytes) / speed)}" if 0 < self._bytes < self.total_bytes else ""
        return f"{self._what} {part:4.0%}  {size(self._bytes)}  {size(round(speed))}/s{left}  [{bar:-<{_CELLS}}]"


def progress(what: str, total_bytes: int, *, quiet: bool) -> Progress:
    """Return the progress of a command on its stderr. ``quiet``: its stdout is one document, so nobody is watching."""
    return Progress(what, total_bytes, SystemClock(), sys.stderr, quiet=quiet)
