"""Pass on what a command says on its stderr, and keep its end; never keep anyone waiting but the command itself."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import Protocol

from milepost.supervise.symptoms import readable

TAIL_BYTES = 64 << 10
_AT_ONCE = select.PIPE_BUF
_BACKLOG = 1000


class Console:
    """Write to the stderr of this process, from any thread, whole lines among what a command writes.

    A reader that has gone is no reason to stop. One that does not read (a terminal that is held, a full pipe) keeps the command
    waiting, as it would without us, but not us: a line of our own waits, while signals go on being heard.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ahead: deque[bytes] = deque(maxlen=_BACKLOG)
        self._mid_line = False
        self._gone = sys.stderr is None
        self._descriptor = -1
        # Somebody may have put an object in its place, in a test say, which has no file.
        with suppress(OSError, AttributeError, ValueError):
            self._descriptor = sys.stderr.fileno()

    def say(self, line: str) -> None:
        """Write a line, now or when it is possible."""
        self._ahead.append(f"{line}\n".encode(errors="backslashreplace"))
        self.flush(0.0)

    def flush(self, within_s: float) -> None:
        """Write what waits, if that is possible within so long."""
        while self._ahead and self._ready(within_s) and self._lock.acquire(timeout=within_s + 0.1):
            try:
                if self._ahead:
                    self._put((b"\n" if self._mid_line else b"") + self._ahead.popleft())
            finally:
                self._lock.release()

    def pass_on(self, data: bytes) -> None:
        """Write what a command has written, as it is, and wait for as long as that takes."""
        for at in range(0, len(data), _AT_ONCE):
            while not self._ready(1.0):
                pass
            with self._lock:
                self._put(data[at : at + _AT_ONCE])
            self.flush(0.0)

    def _ready(self, within_s: float) -> bool:
        if self._gone or self._descriptor < 0:
            return True
        ready = select.poll()
        ready.register(self._descriptor, select.POLLOUT)
        return bool(ready.poll(within_s * 1e3))

    def _put(self, data: bytes) -> None:
        self._mid_line = not data.endswith(b"\n")
        if self._gone:
            return
        try:
            if self._descriptor < 0:
                sys.stderr.write(data.decode(errors="replace"))
                sys.stderr.flush()
                return
            while data:
                data = data[os.write(self._descriptor, data) :]
        except (OSError, ValueError):
            self._gone = True


class Output(Protocol):
    """Take what a command writes."""

    def pass_on(self, data: bytes) -> None:
        """Pass it on, and wait for as long as that takes."""


class Labelled:
    """Put a name before each line of one command among several, and pass on whole lines only."""

    def __init__(self, console: Console, name: str) -> None:
        self._console, self._label = console, f"[{name}] ".encode()
        self._rest = b""

    def pass_on(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > _AT_ONCE:
            lines.append(self._rest[:_AT_ONCE])
            self._rest = self._rest[_AT_ONCE:]
        together = b""  # a write for each line would keep a command that says much waiting, and its end, too
        for line in lines:
            # Of a bar that draws itself again and again, the last state: others write between.
            whole = self._label + line.rstrip(b"\r").rpartition(b"\r")[2] + b"\n"
            if together and len(together) + len(whole) > _AT_ONCE:
                self._console.pass_on(together)
                together = b""
            together += whole
        if together:
            self._console.pass_on(together)

    def end(self) -> None:
        """Pass on what was no whole line."""
        if self._rest:
            self.pass_on(b"\n")


class Tee:
    """Read a pipe to its end in a thread of its own (``milepost-stderr``), pass it on, and keep its tail."""

    def __init__(self, descriptor: int, console: Output) -> None:
        self._descriptor = descriptor
        self._console = console
        self._tail: deque[bytes] = deque()
        self._kept = self.passed_on = 0
        """The second: how many bytes were, so far."""
        self._thread = threading.Thread(target=self._read, name="milepost-stderr", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError):
            while data := os.read(self._descriptor, 1 << 16):
                self._keep(data)
                self._console.pass_on(data)
                self.passed_on += len(data)
        os.close(self._descriptor)

    def _keep(self, data: bytes) -> None:
        self._tail.append(data)
        self._kept += len(data)
        while self._kept - len(self._tail[0]) >= TAIL_BYTES:
            self._kept -= len(self._tail.popleft())

    @property
    def is_over(self) -> bool:
        """Say whether all was passed on."""
        return not self._thread.is_alive()

    @property
    def tail(self) -> str:
        """Return the last of it as text, whatever bytes it was."""
        return readable(b"".join([*self._tail])[-TAIL_BYTES:])
