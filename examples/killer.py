"""Run a training script as a process of its own, listen to it, and kill it at a chosen moment. Used by `demo.py`.

`trainer_demo.py` uses its `Process`.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

STALL_S = 120.0
"""A script that says nothing for so long hangs, and is given up."""

CALLED_OFF = "called off"


class ScriptFailed(Exception):
    """Say that a script ended by itself with an error, hangs, or was called off."""


@dataclass(frozen=True, slots=True)
class Aim:
    """Say when to kill: ``after_s`` from the start, or ``then_s`` after the script has said that it is at ``at_step``."""

    after_s: float = float("inf")
    at_step: float = float("inf")
    then_s: float = 0.0


NEVER = Aim()


@dataclass(frozen=True, slots=True)
class Life:
    """Tell of one process from its start to its end."""

    killed: bool
    lines: tuple[str, ...]
    start_up_s: float | None
    """From its start to its first step; None if it never came so far."""

    @property
    def steps(self) -> list[int]:
        """Return the steps at which it said it was; the first is where it began."""
        return [int(line.split()[1]) for line in self.lines if line.startswith("step ")]

    @property
    def sha256(self) -> str:
        """Return the hash of its final parameters, or "" if it did not come to the end."""
        return next((line.split()[2] for line in self.lines if line.startswith("final sha256")), "")


def live(command: list[str], log: Path, aim: Aim = NEVER, stop: threading.Event | None = None) -> Life:
    """Start ``command`` and let it run until it ends or is killed as aimed; what it complains about is added to ``log``.

    Raises `ScriptFailed` if it fails by itself, says nothing for `STALL_S`, or ``stop`` is set.
    """
    process = Process(command, log)
    try:
        return _listen(process, aim, stop or threading.Event())
    finally:
        process.close()


def _listen(process: Process, aim: Aim, stop: threading.Event) -> Life:
    lines: list[str] = []
    started_s = heard_s = time.monotonic()
    deadline_s = started_s + aim.after_s
    start_up_s = None
    while (now_s := time.monotonic()) < deadline_s:
        if stop.is_set() or now_s - heard_s > STALL_S:
            raise ScriptFailed(CALLED_OFF if stop.is_set() else f"nothing was heard for {STALL_S:.0f} s, see {process.log}")
        try:
            line = process.lines.get(timeout=min(0.5, deadline_s - now_s))
        except queue.Empty:
            continue
        heard_s = time.monotonic()
        if line is None:
            break
        lines.append(line)
        if line.startswith("step "):
            start_up_s = start_up_s or heard_s - started_s
            if int(line.split()[1]) >= aim.at_step:
                deadline_s = min(deadline_s, heard_s + aim.then_s)
    else:
        process.kill()
        # What it said before it died is still in the pipe, and tells how far it came.
        lines += iter(process.lines.get, None)
    return Life(process.wait() == -signal.SIGKILL, tuple(lines), start_up_s)


class Process:
    """Be one child in a process group of its own: a kill takes its group with it, and nothing that was not started here."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with log.open("a", encoding="utf-8") as errors:
            self._child = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, start_new_session=True
            )
        self._reader = threading.Thread(target=self._read, name="killer-reader", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            # The last line of a killed process may be cut off anywhere.
            if line.endswith("\n"):
                self.lines.put(line)
        self.lines.put(None)

    @property
    def pid(self) -> int:
        return self._child.pid

    def kill(self) -> None:
        # It was not reaped yet, so the number still belongs to this very process and its group.
        if self._child.returncode is None:
            os.killpg(self._child.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Return the exit status: 0, or that of a kill. Raises `ScriptFailed` for any other."""
        status = self._child.wait()
        if status not in (0, -signal.SIGKILL):
            tail = "\n".join(self.log.read_text(encoding="utf-8").splitlines()[-15:])
            raise ScriptFailed(f"the script failed with status {status}; the end of {self.log}:\n{tail}")
        return status

    def close(self) -> None:
        self.kill()
        self._child.wait()
        self._reader.join()
        assert self._child.stdout is not None
        self._child.stdout.close()
