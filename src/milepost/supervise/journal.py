"""Tell people and programs what `milepost run`, or `milepost up`, does: lines on stderr, JSON lines in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from milepost.clock import Clock, utc_text
from milepost.errors import UsageError
from milepost.supervise.printing import Console
from milepost.text import plain

SCHEMA_VERSION = 1


class Journal:
    """Write each event down. Nothing that goes wrong here stops anybody.

    ``attempt`` is told with each: which of them is running, or was the last to.
    """

    def __init__(
        self, console: Console, clock: Clock, log: Path | None, *, as_json: bool = False, quiet: bool = False, name: str = "run"
    ) -> None:
        """Open the log, which is only added to. Raises `UsageError` (kind ``bad-log``) if that cannot be."""
        self._console, self._clock, self._as_json, self._quiet = console, clock, as_json, quiet
        self._name = name
        self._log, self._is_cut, self._failed = -1 if log is None else _opened(log), False, False
        self.attempt = 0

    def __call__(self, event: str, text: str, /, **facts: object) -> None:
        self._tell(event, text, facts)

    def note(self, event: str, text: str, /, **facts: object) -> None:
        """Write down what comes too often to be read by people: not on the console, unless that is for a program."""
        self._tell(event, text, facts, is_read=False)

    def remark(self, text: str) -> None:
        """Say something to people that sums up what is written down already."""
        if not self._as_json and not self._quiet:
            self._say(text)

    def _tell(self, event: str, text: str, facts: Mapping[str, object], *, is_read: bool = True) -> None:
        head = {"message_type": f"{self._name}_event", "schema_version": SCHEMA_VERSION, "at": utc_text(self._clock.wall_ns())}
        line = json.dumps({**head, "event": event, "attempt": self.attempt, "text": text, **facts}, default=str)
        if self._as_json:
            self._console.say(line)
        elif is_read and not self._quiet:
            self._say(text)
        if self._log >= 0:
            self._append(line)

    def _say(self, text: str) -> None:
        for each in text.splitlines():
            self._console.say(f"[{self._name}] {plain(each)}")

    def _append(self, line: str) -> None:
        data = (("\n" if self._is_cut else "") + line + "\n").encode()
        try:
            written = os.write(self._log, data)
        except OSError as error:
            self._complain(error.strerror or str(error))
        else:
            self._is_cut = written < len(data) and not (self._is_cut and written == 0)
            if written < len(data):
                self._complain("the disk is full")
            else:
                self._failed = False

    def _complain(self, why: str) -> None:
        if not self._failed:
            self._failed = True
            self._console.say(f"[{self._name}] the log cannot be written ({why}); the command goes on")

    def close(self, within_s: float = 1.0) -> None:
        """Say what could not be said yet, if somebody reads it within so long, and close the log."""
        self._console.flush(within_s)
        if self._log >= 0:
            os.close(self._log)
            self._log = -1


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise UsageError(
            f"the log cannot be written: {error.strerror}",
            kind="bad-log",
            hint="name a file in a directory that is there",
            log=path,
        ) from error
