"""Be a process that does what it is told, line by line, and tells by its standard error what is logged: `Told`."""

from __future__ import annotations

import os
import queue
import re
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

CODE = "from tests.supervise.told import main; main()"
PATIENCE_S = 120.0
"""How long something is waited for that must come: only a test that fails takes so long."""

TRAINER = """
import numpy as np
from milepost import CheckpointEngine, Stop, every
weights = np.zeros(4)
def engine_at(root, **settings):
    engine = CheckpointEngine(root, state={"policy": {"weights": weights}}, **settings)
    engine.resume()
    return engine
"""


def main() -> None:
    """Run each line of standard input as Python, and answer with what is assigned to ``answer`` in it."""
    import logging

    # As a shell starts a program: whoever runs the tests may ignore a Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    names: dict[str, object] = {"__name__": "__main__", "os": os, "signal": signal, "sys": sys}
    for line in sys.stdin:
        names["answer"] = ""
        exec(compile(eval(line), "<told>", "exec"), names)
        print(repr(names["answer"]), flush=True)


class Told:
    """Start one, and tell it what to do."""

    def __init__(self, setup: str = TRAINER, *, environment: dict[str, str] | None = None, group: bool = False) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"} | (environment or {})
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE], stdin=-1, stdout=-1, stderr=-1, text=True, env=environment, start_new_session=group
        )
        self.lines: list[str] = []
        self._new: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="told", daemon=True)
        self._reader.start()
        self.do(setup)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._new.put(line.rstrip("\n"))
        self._new.put(None)

    def tell(self, code: str) -> None:
        """Have it do something, and do not wait for that."""
        assert self.process.stdin is not None
        print(repr(code), file=self.process.stdin, flush=True)

    def answer(self) -> object:
        """Wait until what it was told is done, and return what it says of it; None if it has ended instead."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE_S)[0], "no answer"
        line = self.process.stdout.readline()
        return eval(line) if line else None

    def do(self, code: str) -> object:
        """Have it do something, and return its answer."""
        self.tell(code)
        return self.answer()

    def ask(self, expression: str) -> object:
        """Return what an expression is there."""
        return self.do(f"answer = {expression}")

    def send(self, *signums: signal.Signals) -> None:
        """Send it signals."""
        for signum in signums:
            self.process.send_signal(signum)

    def logged(self, pattern: str) -> str:
        """Wait for a line on its standard error, and return that."""
        while True:
            for line in self.lines:
                if re.search(pattern, line):
                    return line
            line = self._new.get(timeout=PATIENCE_S)
            assert line is not None, f"it has ended without saying {pattern!r}: {self.lines}"
            self.lines.append(line)

    def ended(self) -> int:
        """Wait for its end, and return its exit status; what it said is in ``lines``."""
        status = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        while not self._new.empty():
            line = self._new.get()
            self.lines += [line] if line is not None else []
        return status

    @property
    def said(self) -> str:
        """Return all of its standard error that was looked at."""
        return "\n".join(self.lines)

    def __enter__(self) -> Told:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                continue
        self._reader.join(PATIENCE_S)
        assert self.process.stderr is not None
        self.process.stderr.close()


def steps_of(root: Path) -> list[int]:
    """Return the steps of the generations of a run."""
    from milepost.publish.manifest import decode_manifest

    folder = root / "generations"
    if not folder.exists():
        return []
    return [decode_manifest((folder / name).read_bytes(), name).step for name in sorted(os.listdir(folder))]
