"""Be a warm process that forks trainers: a new one needs no imports, and begins with no threads, handlers or files of another's.

An order comes as a line of JSON. The answer is the child's PID, then each change of its state as `waitpid` tells it. A child
leaves the loop, runs the trainer, and ends as any interpreter does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from select import select
from typing import Any

LONGEST_S = 120.0
"""After which a trainer hangs. It takes a hundredth of a second."""
_TELLS_S = 5.0
"""In which it writes down where its threads are."""


class Hang(AssertionError):
    """Say that a trainer did not end, and where its threads were."""


class Nursery:
    """Have trainers forked, one at a time. The process is there from the first one on."""

    def __init__(self, place: Path, module: str = "tests.siege.trainer") -> None:
        self.pid = 0
        self.output = place / "output"
        self._stacks = place / "stacks"
        self._module = module
        self._lives = False
        self._started: subprocess.Popen[bytes] | None = None

    @property
    def _process(self) -> subprocess.Popen[bytes]:
        if self._started is None:
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            command = [sys.executable, "-m", "tests.siege.nursery", self._module]
            with self.output.open("a") as output:
                self._started = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=output, env=environment)
        return self._started

    def start(self, order: dict[str, Any]) -> int:
        """Start a trainer and return its PID. With ``cold`` in the order it is an interpreter of its own."""
        assert self._process.stdin is not None
        self._process.stdin.write((json.dumps(order) + "\n").encode())
        self._process.stdin.flush()
        self._stacks = Path(order["place"]) / "stacks"
        self.pid = self._answer(LONGEST_S)
        self._lives = True
        return self.pid

    def changed(self, within_s: float = LONGEST_S) -> int:
        """Wait for the trainer to end or stop and return the status; `Hang` with its stacks if it does neither."""
        try:
            status = self._answer(within_s)
        except TimeoutError:
            raise self._hangs(within_s) from None
        self._lives = os.WIFSTOPPED(status)
        return status

    @property
    def lives(self) -> bool:
        """Say whether the trainer is there, as far as was heard."""
        return self._lives

    def heard(self, within_s: float) -> int | None:
        """Return the status of the trainer if it ends or stops within this time."""
        if not self._lives:
            return None
        try:
            status = self._answer(within_s)
        except TimeoutError:
            return None
        self._lives = os.WIFSTOPPED(status)
        return status

    def _hangs(self, within_s: float) -> Hang:
        for number, patience_s in ((signal.SIGCONT, 0.0), (signal.SIGQUIT, _TELLS_S), (signal.SIGKILL, LONGEST_S)):
            with suppress(TimeoutError):
                os.kill(self.pid, number)
                if not os.WIFSTOPPED(self._answer(patience_s)):
                    break
        self._lives = False
        stacks = self._stacks.read_text() if self._stacks.exists() else "it was not even there"
        return Hang(f"the trainer did not end within {within_s} s:\n{stacks}")

    def _answer(self, within_s: float) -> int:
        assert self._process.stdout is not None
        ready, _, _ = select([self._process.stdout.fileno()], [], [], within_s)
        if not ready:
            raise TimeoutError
        data = os.read(self._process.stdout.fileno(), 4)
        assert len(data) == 4, "the nursery ended"
        return int.from_bytes(data, "little")

    def close(self) -> None:
        if self._started is None:
            return
        if self._lives:  # somebody has given up before it ended; until then its PID is its own, and the nursery waits for it
            os.kill(self.pid, signal.SIGKILL)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def next_order() -> dict[str, Any] | None:
    """Return, in a fresh child, what it is to do; None, in the nursery, once there will be no more."""
    answers = os.dup(1)
    os.set_inheritable(answers, False)
    os.dup2(2, 1)
    while True:
        line = b""
        while not line.endswith(b"\n"):
            piece = os.read(0, 1)
            if not piece:
                return None
            line += piece
        order: dict[str, Any] = json.loads(line)
        pid = os.fork()
        if pid == 0:
            # By the child itself: a signal that strikes before Python has come back from its fork is forgotten by Python.
            os.write(answers, os.getpid().to_bytes(4, "little"))
            os.close(answers)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
            os.environ.update(order.get("environment", {}))
            return order
        while True:
            _, status = os.waitpid(pid, os.WUNTRACED)
            os.write(answers, status.to_bytes(4, "little"))
            if not os.WIFSTOPPED(status):
                break


if __name__ == "__main__":
    import importlib

    trainer = importlib.import_module(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        trainer.warm_up(scratch)
    order = next_order()
    if order is not None:
        if order.get("cold"):
            os.execv(sys.executable, [sys.executable, "-m", sys.argv[1], json.dumps(order)])
        trainer.main(order)
