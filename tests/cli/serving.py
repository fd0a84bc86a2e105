"""Run ``milepost serve`` as a process of its own, and whatever else of the command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from milepost.clock import SystemClock
from milepost.errors import MilepostError
from milepost.service.resting import read_rest
from milepost.service.transports.host import HOST

MAIN = (sys.executable, "-c", "from milepost.cli.main import main; main(prog_name='milepost')")
FAILS_AFTER_S = 120.0


def environment() -> dict[str, str]:
    """Return what a child needs to find this code, and nothing of a service that somebody's shell names."""
    kept = {name: value for name, value in os.environ.items() if name == HOST or not name.startswith("MILEPOST_")}
    return kept | {"PYTHONPATH": os.pathsep.join(sys.path)}


class Serving:
    """Be a service in a process, ready."""

    def __init__(self, root: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [*MAIN, "serve", str(root), *options], stderr=subprocess.PIPE, text=True, env=environment()
        )
        self.lines: list[str] = []
        self.line_with("serves at")

    def line_with(self, text: str) -> str:
        """Wait for a line of the log."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if text in line:
                return self.lines[-1]
        raise AssertionError(f"it ended without a line with {text!r}: {self.lines}")

    def end(self) -> int:
        """Tell it to end, read what it still says, and return the exit code."""
        self.process.terminate()
        assert self.process.stderr is not None
        self.lines += [line.rstrip("\n") for line in self.process.stderr]  # communicate() would pass over what was read ahead
        return self.process.wait(timeout=FAILS_AFTER_S)

    def kill(self) -> None:
        """Kill it, if it is there."""
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextmanager
def serving(root: Path, *options: str) -> Iterator[Serving]:
    """Run a service until the end of the block."""
    served = Serving(root, *options)
    try:
        yield served
    finally:
        served.kill()


def forget(root: Path) -> None:
    """Give back the memory in which versions of a root lie, which outlives the service."""
    with suppress(MilepostError):
        shutil.rmtree(read_rest(str(root), SystemClock()).memory.directory, ignore_errors=True)
