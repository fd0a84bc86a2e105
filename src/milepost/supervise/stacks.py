"""Have a command that hangs say where each of its threads stands, before it is ended: afterwards nobody can know."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from milepost.engine.supervised import open_left
from milepost.store.process import process_start_time
from milepost.supervise.group import process
from milepost.supervise.listening_record import ListeningRecord, read_listening

WITHIN_S = 20.0
_POLL_S = 0.05
_MOST_BYTES = 256 << 10


class Stacks:
    """Ask every process of an attempt that listens, else py-spy about its first, in a thread of its own (``milepost-stacks``)."""

    def __init__(self, folder: Path, leader: int) -> None:
        self._folder, self._leader = folder, leader
        self._texts: list[str] = []
        self._thread = threading.Thread(target=self._ask, name="milepost-stacks", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Say whether there is no more to come."""
        return not self._thread.is_alive()

    @property
    def text(self) -> str:
        """Return what was said; empty where nothing could be had."""
        return "\n".join(self._texts)

    def _ask(self) -> None:
        for each in read_listening(self._folder):
            there = process(each.pid)
            if there is not None and there.started == each.start_time and there.state in "Tt":
                # A rank, say, for which all others wait. It would answer once it goes on.
                self._texts.append(f"pid {each.pid}: somebody has stopped it (SIGSTOP, or a debugger)")
            elif text := _dumped(each):
                self._texts.append(f"pid {each.pid}:\n{text}")
        if not self._texts and (program := shutil.which("py-spy")):
            with suppress(OSError, subprocess.SubprocessError):
                done = subprocess.run(  # noqa: S603 - found on PATH by its name
                    [program, "dump", "--pid", str(self._leader)], capture_output=True, timeout=WITHIN_S, check=True
                )
                self._texts.append(f"pid {self._leader}:\n{done.stdout.decode(errors='replace')}")


def _dumped(each: ListeningRecord) -> str:
    """Send its signal to that very process, and return what it then writes."""
    if not each.stack_signal or not each.stacks:
        return ""
    path = Path(each.stacks)
    before = _size(path)
    try:
        descriptor = os.pidfd_open(each.pid)
    except OSError:
        return ""
    try:
        if process_start_time(each.pid) != each.start_time:
            return ""
        signal.pidfd_send_signal(descriptor, each.stack_signal)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return _written(path, before)


def _written(path: Path, before: int) -> str:
    """Wait for what is written, and for no more to come: a dump of many threads takes several calls."""
    pause, seen = threading.Event(), before
    for _ in range(round(WITHIN_S / 2 / _POLL_S)):
        pause.wait(_POLL_S)
        size = _size(path)
        if size > before and size == seen:
            break
        seen = size
    with suppress(OSError), open(open_left(path), "rb") as file:
        file.seek(before)
        return file.read(_MOST_BYTES).decode(errors="replace")
    return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
