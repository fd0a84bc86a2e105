"""Say where a supervisor looks that this process listens, and how to have it write down what all its threads are doing."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TextIO

from milepost.engine import supervised
from milepost.engine.supervised import leave_record, read_records
from milepost.store.process import process_start_time
from milepost.supervise.dispositions import caught_in_c
from milepost.supervise.group import Process

log = logging.getLogger("milepost")


@dataclass(frozen=True, slots=True)
class ListeningRecord:
    """Name a process that listens, and what for."""

    pid: int
    start_time: int
    """As `milepost.store.process.process_start_time` tells it: with the PID it names the process for good."""
    paths: tuple[str, ...] = ()
    """What it listens to: ``SIGTERM``, ``notice ec2``, ``limit 24h``."""
    stack_signal: int = 0
    """Sent to it, it has the stacks of all its threads written to ``stacks``, also while it hangs; 0: there is none."""
    stacks: str = ""


class StackDump:
    """Have the stacks of all threads written to a file of ``folder`` at a signal, by C code: one that hangs does it, too."""

    def __init__(self, folder: str) -> None:
        self.signal, self.path = 0, os.path.join(folder, f"stacks-{os.getpid()}.txt")
        self._file: TextIO | None = None
        try:
            self._file = open(self.path, "w", encoding="utf-8")  # noqa: SIM115 - open as long as the process may be asked
            self.signal = _free_signal()
            if self.signal:
                faulthandler.register(self.signal, file=self._file, all_threads=True, chain=False)
        except OSError as error:
            log.warning("no stacks can be written down where this run is supervised: %s", error)
            self.end()

    def end(self) -> None:
        """Listen to the signal no more: who sends it now ends the process."""
        if self.signal:
            faulthandler.unregister(self.signal)
        self.signal = 0
        if self._file is not None:
            self._file.close()


def leave_listening_record(folder: str, dump: StackDump, paths: tuple[str, ...]) -> None:
    """Write the record of this process, in the place of what was there."""
    pid = os.getpid()
    record = ListeningRecord(pid, process_start_time(pid) or 0, paths, dump.signal, dump.path if dump.signal else "")
    leave_record(folder, f"listening-{pid}", record)


def tell_an_outer_run() -> None:
    """Say to a `milepost run` around this one, if there is one, that this process hears signals: a shell may stand between."""
    pid, folder = os.getpid(), supervised.folder()
    if folder is not None:
        leave_record(folder, f"listening-{pid}", ListeningRecord(pid, process_start_time(pid) or 0, (), 0, ""))


def read_listening(folder: str | os.PathLike[str]) -> tuple[ListeningRecord, ...]:
    """Return the processes of an attempt that said that they listen. What cannot be read is passed over."""
    return tuple(read_records(folder, "listening", ListeningRecord))


def listening_among(folder: str | os.PathLike[str], there: Iterable[Process]) -> list[Process]:
    """Return those of some processes that said in ``folder`` that they listen."""
    said = {(each.pid, each.start_time) for each in read_listening(folder)}
    return [each for each in there if (each.pid, each.started) in said]


def _free_signal() -> int:
    """Return a real-time signal that nobody handles, the last ones first; 0 if there is none.

    Those that come first are taken by threading libraries.
    """
    taken = caught_in_c()
    return next(
        (
            signum
            for signum in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1)
            if signum not in taken and signal.getsignal(signum) == signal.SIG_DFL
        ),
        0,
    )
