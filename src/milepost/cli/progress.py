"""Show on stderr how far a long command is: a line that rewrites itself at a terminal, one line per ten seconds elsewhere."""

from __future__ import annotations

from typing import TextIO

from milepost.cli.text import duration, size
from milepost.clock import Clock

_TERMINAL_NS = 100_000_000
_LOG_NS = 10_000_000_000
_CELLS = 20


class Progress:
    """Count bytes done out of ``total_bytes``. `done` clears the line."""

    def __init__(self, what: str, total_bytes: int, clock: Clock, stream: TextIO) -> None:
        self._what, self._total_bytes = what, total_bytes
        self._clock, self._stream = clock, stream
        self._tty = stream.isatty()
        self._bytes = 0
        self._started_ns = self._said_ns = clock.monotonic_ns()
        self._wide = 0

    def advance(self, count_bytes: int) -> None:
        """Note that ``count_bytes`` more are done, and say so if it is time to."""
        self._bytes += count_bytes
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._said_ns >= (_TERMINAL_NS if self._tty else _LOG_NS):
            self._said_ns = now_ns
            self._say(now_ns)

    def done(self) -> None:
        """Leave the terminal as it was."""
        if self._wide:
            self._stream.write("\r" + " " * self._wide + "\r")
            self._stream.flush()

    def _say(self, now_ns: int) -> None:
        line = self._line((now_ns - self._started_ns) / 1e9)
        if self._tty:
            self._stream.write("\r" + line.ljust(self._wide))
            self._wide = max(self._wide, len(line))
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def _line(self, seconds: float) -> str:
        part = min(self._bytes / self._total_bytes, 1.0) if self._total_bytes else 1.0
        bar = "#" * int(part * _CELLS)
        speed = self._bytes / seconds
        left = f"  eta {duration((self._total_bytes - self._bytes) / speed)}" if 0 < self._bytes < self._total_bytes else ""
        return f"{self._what}  [{bar:-<{_CELLS}}] {part:4.0%}  {size(self._bytes)}  {size(round(speed))}/s{left}"
