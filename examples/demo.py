"""Kill real training runs again and again, and show that they end bit for bit like the runs that were left alone.

    python examples/demo.py            # or: make demo

Trains PPO (Stable-Baselines3) and DQN (its own loop) on CartPole: each once left alone, then under a killer that sends
SIGKILL at random instants, in mid-run and in start-up, and starts the script again. Writes ``learning_curves.png``.
Exits with 1 if a hash or an episode differs, if a generation that was seen published is lost, or if too few kills landed.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

EXAMPLES = Path(__file__).resolve().parent
STALL_S = 120.0
"""A script that says nothing for so long hangs, and the demo fails instead of hanging with it."""
Plan = Literal["training", "start-up"]
Episodes = list[tuple[int, float]]

_started_s = time.monotonic()


class DemoFailed(Exception):
    """Say what the demo could not show."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Name one script to kill."""

    name: str
    title: str
    script: str
    steps: int

    def command(self, root: Path) -> list[str]:
        return [sys.executable, str(EXAMPLES / self.script), "--root", str(root), "--steps", str(self.steps)]


@dataclass(frozen=True, slots=True)
class Life:
    """Tell of one process, from its start to its end."""

    killed: bool
    alive_s: float
    start_up_s: float | None = None
    """From its start to its first step; None if it was killed before that."""
    first: int = 0
    reached: int = 0
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Return:
    """Tell of one resume, as the run's own event log does."""

    generation: int
    step: int
    milliseconds: float


@dataclass(slots=True)
class Tale:
    """Collect what became of one run."""

    root: Path
    lives: list[Life] = field(default_factory=list)
    returns: list[Return] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)
    """Steps that had to be made again, one number a resume."""
    kills: list[int] = field(default_factory=list)
    """The step at which training stood at each kill."""

    @property
    def sha256(self) -> str:
        return self.lives[-1].sha256


def say(text: str) -> None:
    print(f"[{time.monotonic() - _started_s:6.1f} s] {text}", file=sys.stderr, flush=True)


# --- one process ---------------------------------------------------------------------------------------------------


class Process:
    """Run a script in a process group of its own, read what it says, and kill it: the group, and nothing else."""

    def __init__(self, command: list[str], log: Path, stop: threading.Event) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with log.open("a", encoding="utf-8") as errors:
            self._popen = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, start_new_session=True
            )
        self.started_s = time.monotonic()
        self._log = log
        self._stop = stop
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._pump = threading.Thread(target=self._read, name="demo-reader", daemon=True)
        self._pump.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def line(self, deadline_s: float) -> str | None:
        """Return the next line, or None at the end of the output. Raises `queue.Empty` when the deadline has passed."""
        quiet_since_s = time.monotonic()
        while True:
            now_s = time.monotonic()
            if self._stop.is_set() or now_s - quiet_since_s > STALL_S:
                raise DemoFailed("stopped" if self._stop.is_set() else f"nothing was heard for {STALL_S:.0f} s, see {self._log}")
            try:
                return self._lines.get(timeout=max(0.0, min(0.5, deadline_s - now_s)))
            except queue.Empty:
                if time.monotonic() >= deadline_s:
                    raise

    def rest(self) -> Iterator[str]:
        """Yield what the dead process had said before it died."""
        while (line := self._lines.get(timeout=STALL_S)) is not None:
            yield line

    def kill(self) -> None:
        # Not reaped yet, so the number still belongs to this very process and its group.
        if self._popen.returncode is None:
            os.killpg(self._popen.pid, signal.SIGKILL)

    def end(self) -> int:
        """Wait for the end and return the exit status. Raises `DemoFailed` if the script failed by itself."""
        status = self._popen.wait()
        self._pump.join()
        if status not in (0, -signal.SIGKILL):
            tail = "".join(self._log.read_text(encoding="utf-8").splitlines(keepends=True)[-15:])
            raise DemoFailed(f"the script failed with status {status}; the end of {self._log}:\n{tail}")
        return status

    def close(self) -> None:
        self.kill()
        self._popen.wait()
        self._pump.join()
        assert self._popen.stdout is not None
        self._popen.stdout.close()


@dataclass(frozen=True, slots=True)
class Aim:
    """Say when to kill: ``after_s`` from the start, or once training has made ``share`` of what is left, and ``then_s`` later."""

    after_s: float = float("inf")
    share: float = float("inf")
    then_s: float = 0.0


NEVER = Aim()


def live(subject: Subject, root: Path, aim: Aim, stop: threading.Event) -> Life:
    """Start the script and let it run until it ends, or is killed as aimed."""
    process = Process(subject.command(root), root.with_suffix(".log"), stop)
    steps: list[int] = []
    start_up_s, sha256 = None, ""
    deadline_s = process.started_s + aim.after_s
    try:
        while True:
            try:
                line = process.line(deadline_s)
            except queue.Empty:
                process.kill()
                break
            if line is None:
                break
            if line.startswith("step "):
                steps.append(int(line.split()[1]))
                start_up_s = start_up_s or time.monotonic() - process.started_s
                if steps[-1] - steps[0] >= aim.share * (subject.steps - steps[0]):
                    deadline_s = min(deadline_s, time.monotonic() + aim.then_s)
            sha256 = line.split()[2] if line.startswith("final sha256") else sha256
        steps += [int(line.split()[1]) for line in process.rest() if line.startswith("step ")] if line is not None else []
        killed = process.end() != 0
    finally:
        process.close()
    alive_s = time.monotonic() - process.started_s
    return Life(killed, alive_s, start_up_s, steps[0] if steps else 0, steps[-1] if steps else 0, "" if killed else sha256)
