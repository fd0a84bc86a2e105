"""Find the processes that a command has started, and kill one of them, or all at once. Used by `trainer_demo.py`."""

from __future__ import annotations

import os
import select
import signal
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

DEAD_WITHIN_MS = 30_000


@dataclass(frozen=True, slots=True)
class Found:
    """Name one process, and what it is called with."""

    pid: int
    command: str


def below(pid: int) -> list[Found]:
    """Return all that a process has started, and what these have started, parents first."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            # The name, in brackets, may hold anything; behind it are the state and the parent.
            state, parent = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(entry))
    found, waiting = [], [*children.get(pid, [])]
    while waiting:
        waiting += children.get(waiting[0], [])
        found.append(Found(waiting[0], _command(waiting.pop(0))))
    return found


def rank_of(pid: int) -> int | None:
    """Return which rank of torchrun's a process is; None if it is none."""
    with suppress(OSError):
        for variable in Path("/proc", str(pid), "environ").read_bytes().split(b"\0"):
            if variable.startswith(b"RANK="):
                return int(variable[5:])
    return None


def kill(pid: int, under: int) -> bool:
    """Kill a process below ``under`` with SIGKILL; return False if it had ended before."""
    with ExitStack() as held:
        descriptor = _hold(pid, under, held)
        return descriptor is not None and _kill_all([descriptor])


def kill_with_all_below(pid: int) -> bool:
    """Kill a child of this process and all that it has started, as a machine that goes: none of them sees another die."""
    with ExitStack() as held:
        descriptors: dict[int, int | None] = {}
        while new := [each for each in (pid, *(found.pid for found in below(pid))) if each not in descriptors]:
            for each in new:
                # One that is stopped starts nothing more, so that this ends.
                descriptors[each] = descriptor = _hold(each, os.getpid(), held)
                if descriptor is not None:
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
        return _kill_all([descriptor for descriptor in descriptors.values() if descriptor is not None])


def _hold(pid: int, under: int, held: ExitStack) -> int | None:
    """Return a descriptor of a process, which no other can come to have; None if it is gone, and its number perhaps another's."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    held.callback(os.close, descriptor)
    return descriptor if any(found.pid == pid for found in below(under)) else None


def _kill_all(descriptors: list[int]) -> bool:
    """Send SIGKILL to all, and wait until they are dead. Descriptors, not numbers: these may be another's by now."""
    alive = [descriptor for descriptor in descriptors if not _is_dead(descriptor, 0)]
    for descriptor in alive:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    return bool(alive) and all(_is_dead(descriptor, DEAD_WITHIN_MS) for descriptor in alive)


def _is_dead(descriptor: int, within_ms: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(within_ms))


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""
