"""Have a writer process stop, die or fail before one of its operations on files, as a file beside the run says.

``gate.json`` holds ``{"operation": name, "path": shell pattern, "nth": from 1, "act": ..., "times": n}``. To act is to ``stop``
(SIGSTOP), to ``hang`` until it is told to go on, to be killed (``kill``) or to fail (``eio``). An operation of "*" is any.
Whoever gets there takes one of ``times``; once there is none left, it is open.
"""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import ParamSpec, TypeVar

from milepost.engine import writer_child
from milepost.store import local
from milepost.store.posix import CHANGES, Posix
from milepost.testing.stopping import changed_path

P = ParamSpec("P")
T = TypeVar("T")

START = "import sys; sys.path += sys.argv[2:]; from tests.engine.gated_writer import main; main(int(sys.argv[1]))"
PLACE = "MILEPOST_TEST_GATE"


def gate() -> None:
    """Have every writer that this process starts look at the gate; the environment says where it is."""
    writer_child.START = START  # type: ignore[misc]
    writer_child._NEEDED = (*writer_child._NEEDED, "tests")


def _write(place: Path, gate: dict[str, object]) -> None:
    """Write a gate whole: a writer may be looking at it at this very moment."""
    fresh = place / "gate.new"
    fresh.write_text(json.dumps(gate))
    fresh.replace(place / "gate.json")


class Gate:
    """Set a gate, and wait for a writer at it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for name in ("told", "go"):
            os.mkfifo(place / name)
        # Open at both ends: a writer that tells of itself does not wait for a reader, nor a reader for a writer.
        self._descriptor = os.open(place / "told", os.O_RDWR | os.O_CLOEXEC)
        self._go = os.open(place / "go", os.O_RDWR | os.O_CLOEXEC)

    def set(self, act: str, operation: str = "*", path: str = "*", nth: int = 1, times: int = 1) -> None:
        gate = {"operation": operation, "path": path, "nth": nth, "act": act, "times": times}
        _write(self.place, gate)

    def open(self) -> None:
        """Take it away."""
        (self.place / "gate.json").unlink(missing_ok=True)

    def go(self) -> None:
        """Let one that hangs go on."""
        os.write(self._go, b"!")

    def reached(self) -> int:
        """Wait until a writer is at the gate, about to stop or die, and return its PID."""
        return int.from_bytes(os.read(self._descriptor, 4), "little")

    def was_reached(self) -> bool:
        """Return whether one has been there that nobody has waited for yet."""
        os.set_blocking(self._descriptor, False)
        try:
            return bool(os.read(self._descriptor, 4))
        except BlockingIOError:
            return False
        finally:
            os.set_blocking(self._descriptor, True)

    def close(self) -> None:
        os.close(self._descriptor)
        os.close(self._go)


class GatedPosix(Posix):
    """Be a writer's file operations. The file is looked at before each, so that a gate can be set for a writer that runs."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._paths: dict[int, str] = {}

    def perform(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if name in CHANGES:
            self._pass(name, changed_path(args, self._paths))
        answer = function(*args, **kwargs)
        if name.startswith("open_") and isinstance(answer, int):
            self._paths[answer] = str(args[0])
        return answer

    def _pass(self, name: str, path: str) -> None:
        place = Path(os.environ[PLACE])
        with suppress(FileNotFoundError):
            text = (place / "gate.json").read_text()
            gate = json.loads(text)
            if gate["operation"] not in ("*", name) or not fnmatchcase(path, gate["path"]):
                return
            self._seen[text] = self._seen.get(text, 0) + 1
            if self._seen[text] != gate["nth"] or gate["times"] < 1:
                return
            _write(place, gate | {"times": gate["times"] - 1})
            self._act(gate["act"], place)

    def _act(self, act: str, place: Path) -> None:
        if act == "eio":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        descriptor = os.open(place / "told", os.O_WRONLY)
        os.write(descriptor, os.getpid().to_bytes(4, "little"))
        os.close(descriptor)
        if act == "hang":
            descriptor = os.open(place / "go", os.O_RDONLY)
            os.read(descriptor, 1)
            os.close(descriptor)
            return
        os.kill(os.getpid(), signal.SIGSTOP if act == "stop" else signal.SIGKILL)


def main(descriptor: int) -> None:
    """Be a writer."""
    local.Posix = GatedPosix  # type: ignore[misc]
    from milepost.engine.writer_process import main as run

    run(descriptor)
