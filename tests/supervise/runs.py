"""Start `milepost run` as a program, beside the test, and wait for what its command does by the files that it makes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.supervise.attempts import FAILS_AFTER_S, PRELUDE, until

MILEPOST = [sys.executable, "-c", "from milepost.cli.main import main; main(prog_name='milepost')"]
QUICK = ("--backoff", "0.01s..0.02s")

LOOP = (
    PRELUDE
    + """
import numpy as np
import milepost
from milepost import every

attempt = int(os.environ.get("MILEPOST_ATTEMPT", "0"))
np.random.seed(1)
weights, counters = np.zeros(4), {"step": 0}
state = {"policy": {"weights": weights}, "rng": milepost.Rng(), "counters": counters}
with milepost.CheckpointEngine("runs/mine", state=state, when=every(steps=10)) as engine:
    engine.resume()
    while counters["step"] < 40:
        weights += np.random.normal(size=4)
        counters["step"] += 1
        if engine.save_if_due(counters["step"]):
            engine.wait()
        at(counters["step"])
    engine.save(counters["step"])
"""
)
"""Trains; ``at`` is called after each step."""


@dataclass
class Started:
    """Be one `milepost run`."""

    process: subprocess.Popen[bytes]
    folder: Path

    def gate(self, name: str) -> str:
        """Wait until the command has made a file, and return what is in it."""
        path = self.folder / name

        def seen() -> str:
            assert path.exists() or self.process.poll() is None, self.said()
            return path.read_text() if path.exists() else ""

        text: str = until(seen)
        return text

    def hears(self, *words: str) -> None:
        """Wait until it has said all of this."""
        until(lambda: all(word in self.said() for word in words))

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def said(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")

    def out(self) -> str:
        return (self.folder / "stdout").read_text(errors="replace")

    def ends(self) -> int:
        """Wait for its end, and return its exit code."""
        return self.process.wait(FAILS_AFTER_S)

    def events(self) -> list[dict[str, Any]]:
        """Return what it wrote to its log."""
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]


@contextmanager
def running(folder: Path, script: str, *options: str, before: tuple[str, ...] = (), **more: Any) -> Iterator[Started]:
    """Start it in ``folder``; ``before`` are words in front of it. It is ended with the test, and all that it has started."""
    (folder / "train.py").write_text(script)
    words = [*before, *MILEPOST, "run", "--log", "log", *options, "--", sys.executable, "train.py"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MILEPOST_")}
    environment |= {"TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"} | more.pop("env", {})
    with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err} | more
        process = subprocess.Popen(words, cwd=folder, env=environment, **streams)
    started = Started(process, folder)
    try:
        yield started
    finally:
        for number in (signal.SIGCONT, signal.SIGTERM, *[signal.SIGINT] * 20, signal.SIGKILL):
            # One signal and another a second later kill all of it; what stands before it may hear none of them.
            if process.poll() is None:
                process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
        process.wait()


def ran(folder: Path, script: str, *options: str, **more: Any) -> Started:
    """Run it to its end."""
    with running(folder, script, *options, **more) as started:
        started.ends()
        return started
