"""Start commands as `milepost run` does, and wait for what they do by gates: files that they make."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from milepost.clock import SystemClock
from milepost.supervise.attempt import Attempt, Order
from milepost.supervise.causes import End
from milepost.supervise.environment import Way, environment_of
from milepost.supervise.group import adopting, process
from milepost.supervise.printing import Console

FAILS_AFTER_S = 120.0


def until(seen: Callable[[], Any], also: Callable[[], object] = lambda: None) -> Any:
    """Wait for something to be so, however long a busy machine takes."""
    pause = Event()
    for _ in range(round(FAILS_AFTER_S / 0.02)):
        if found := seen():
            return found
        also()
        pause.wait(0.02)
    raise AssertionError("it never came")


def is_there(path: Path) -> Callable[[], bool]:
    return lambda: path.exists() and path.read_text() != ""


class Told:
    """Remember what was told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.lines: list[str] = []
        self.facts: list[dict[str, object]] = []

    def __call__(self, event: str, text: str, /, **facts: object) -> None:
        self.events.append(event)
        self.lines.append(text)
        self.facts.append(facts)


PRELUDE = """
import os, signal, subprocess, sys, threading
from pathlib import Path

def made(name, text=None):
    # Whole or not at all: a test that waits for it reads it at once.
    Path(name + ".new").write_text(str(os.getpid()) if text is None else text)
    os.replace(name + ".new", name)

def wait_for_ever():
    threading.Event().wait()
"""


def order_of(tmp_path: Path, script: str, **settings: Any) -> Order:
    environment = environment_of({**os.environ, "PYTHONUNBUFFERED": "1"}, number=1, grace_s=30.0, way=Way())
    settings = {"cwd": tmp_path, "folder": tmp_path / "supervised" / "attempt-1", "environment": environment} | settings
    return Order((sys.executable, "-c", PRELUDE + script), **settings)


@contextmanager
def started(order: Order, **more: Any) -> Iterator[Attempt]:
    """Start it, and leave nothing of it behind, whatever the test does."""
    with adopting():
        attempt = Attempt(order, SystemClock(), more.pop("tell", Told()), more.pop("console", Console()), **more)
        try:
            yield attempt
        finally:
            attempt.kill()
            over(attempt)


def over(attempt: Attempt) -> End:
    end: End = until(attempt.poll)
    return end


def is_alive(pid: int) -> bool:
    there = process(pid)
    return there is not None and not there.has_ended
