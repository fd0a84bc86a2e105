"""Know processes of this machine for good: by PID, start time and boot. A PID alone is given to another one day."""

from __future__ import annotations

import os
import select
import signal
from dataclasses import dataclass

TITLE = "milepost-writer"
"""What `ps` calls a `Writer`; the kernel takes fifteen letters."""


def host_name() -> str:
    """Return the name of this machine or container."""
    return os.uname().nodename


def boot_id() -> str:
    """Return what changes with each start of this machine; empty where the system does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def process_start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot: with its PID it names a process for good.

    None if there is no such process (any more: one that has ended and was not waited for yet is none), or the system does
    not say.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # from field 3 on; the command in field 2 may hold spaces and brackets
    return None if fields[0] in ("Z", "X") else int(fields[19])


@dataclass(frozen=True, slots=True)
class Writer:
    """Name the process that writes for a trainer (``writer="process"``), holds its lock with it, and may outlive it."""

    pid: int
    start_time: int
    deadline_ms: int
    """How long it may go on once its trainer is gone."""
    step: int | None = None
    """The step that it publishes since its trainer is gone; None before."""

    @property
    def is_alive(self) -> bool:
        """Say whether that very process still exists. Only for the record of a process of this machine, since this boot."""
        return process_start_time(self.pid) == self.start_time

    def kill(self, wait_s: float) -> bool:
        """Kill that very process and no other, and wait so long for its end; return whether it has ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        try:
            # Looked at once more *behind* the descriptor: between a look and a kill by number another process could get the
            # number. What this descriptor stands for had the number when it was opened; if the start time still fits, it is it.
            if not self.is_alive:
                return True
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            return has_ended(descriptor, wait_s)
        except ProcessLookupError:
            return True
        except OSError:
            return False  # another user's
        finally:
            os.close(descriptor)


def has_ended(pidfd: int, wait_s: float) -> bool:
    """Wait so long for the end of a process, and return whether it has come."""
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    return bool(ended.poll(round(wait_s * 1e3)))
