"""Start `milepost up` as its own program, and wait for what happens by gates: files that are made, lines that it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from milepost.supervise.control import ask
from milepost.supervise.orders import Look, Order

PROGRAM = (sys.executable, "-c", "from milepost.cli.main import main; main()")
WORKER = """#!/bin/sh
# Say that it is there, then do as its role was told.
me=$MILEPOST_ROLE.$MILEPOST_INDEX
echo "${RANK:-} ${WORLD_SIZE:-} ${MASTER_PORT:-}" > ranks.$me.$MILEPOST_ATTEMPT
on_term() { echo $me >> ended; exit ${CODE:-0}; }
trap on_term TERM
echo "$me is there" >&2
echo $$ > new.$me; mv new.$me there.$me.$MILEPOST_ATTEMPT
while [ ! -e go.$me ]; do sleep 0.05; done
exit $(cat go.$me)
"""
"""Ends with what a test writes into ``go.<process>``; at a SIGTERM with ``CODE``."""


def until(seen: Callable[[], Any], also: Callable[[], object] = lambda: None) -> Any:
    """Wait for something to be so. A pipeline is many starts, and a machine may be busy: only what never comes fails."""
    pause = Event()
    for _ in range(6000):
        if found := seen():
            return found
        also()
        pause.wait(0.02)
    raise AssertionError("it never came")


class Up:
    """Be one `milepost up`."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.control = folder, folder / "pipeline.toml.sock"
        with open(folder / "said", "ab") as said, open(folder / "stdout", "wb") as out:
            self.process = subprocess.Popen(
                [*PROGRAM, "up", "--backoff", "0s", "--log", "log", *options], cwd=folder, stdout=out, stderr=said
            )

    @property
    def said(self) -> str:
        return (self.folder / "said").read_text()

    def there(self, *names: str) -> list[int]:
        """Wait for starts, each as ``role.index.attempt``, and return their pids."""
        files = [self.folder / f"there.{name}" for name in names]
        return [int(until(lambda path=path: path.exists() and path.read_text(), also=self._lives)) for path in files]

    def _lives(self) -> None:
        assert self.process.poll() is None, self.said

    def hears(self, line: str, times: int = 1) -> None:
        until(lambda: self.said.count(line) >= times)

    def go(self, name: str, code: int = 0) -> None:
        """Let a process end."""
        (self.folder / f"new-go.{name}").write_text(str(code))
        os.replace(self.folder / f"new-go.{name}", self.folder / f"go.{name}")

    def order(self, order: Order, key: str = "") -> dict[str, Any]:
        return ask(self.control, order, key, 120.0)

    def pids(self) -> dict[str, int]:
        return {f"{each['role']}.{each['index']}": each["pid"] for each in self.order(Look())["standings"]}

    def ports(self, *names: str) -> list[str]:
        return [(self.folder / f"ranks.{name}").read_text().split()[-1] for name in names]

    def term(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        return self.process.wait(120)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]


@contextmanager
def up(folder: Path, text: str, *options: str) -> Iterator[Up]:
    """Start it, and leave nothing of it behind, whatever the test does."""
    (folder / "pipeline.toml").write_text(text.replace("WORKER", '["sh", "worker.sh"]'))
    (folder / "worker.sh").write_text(WORKER)
    with started(folder, *options) as there:
        yield there


@contextmanager
def started(folder: Path, *options: str) -> Iterator[Up]:
    there = Up(folder, *options)
    try:
        yield there
    finally:
        # Twice, a second apart, is meant at once: that leaves nothing behind, as a SIGKILL would.
        until(lambda: there.process.poll() is not None, also=lambda: there.process.poll() is None and there.term())
        there.process.wait()


def kind_of(answer: dict[str, Any]) -> str:
    return str(answer["error"]["kind"]) if not answer["ok"] else str(answer["outcome"])
