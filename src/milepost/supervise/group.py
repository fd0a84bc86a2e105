"""Find every process that a command has started, wherever it hid, kill it, and reap it; and touch no other.

A process of the command is one below its first process, or one that this process has adopted since: a child whose parent is
gone comes here (`adopting`), whatever session it made for itself. Adopted ones are known from an earlier look, by the session,
by what they were started with (``MILEPOST_SUPERVISED``), or because nothing else was started here.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from milepost.clock import Clock
from milepost.engine.supervised import SUPERVISED
from milepost.store.process import TITLE, process_start_time

_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37
_WRITER = b"milepost.engine.writer_process"
_SHELLS = frozenset(("sh", "bash", "dash", "ash", "ksh", "zsh", "busybox"))
_TRACKER = b"multiprocessing.resource_tracker"


@contextmanager
def adopting() -> Iterator[None]:
    """Be the parent of all orphans below this process: without it a process that was daemonized is found by nobody.

    As PID 1 it is that anyway. Where the system cannot, what has left the session of the command is left alone.
    """
    before = _adopts()
    _adopt(True)
    try:
        yield
    finally:
        _adopt(before)


def _adopt(yes: bool) -> None:
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


def _adopts() -> bool:
    found = ctypes.c_int(0)
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0)
    return bool(found.value)


@dataclass(frozen=True, slots=True)
class Process:
    """Be one process at one look: with its start time it is named for good, which its number alone does not."""

    pid: int
    parent: int
    session: int
    started: int
    state: str
    name: str

    @property
    def has_ended(self) -> bool:
        """Say whether only its status is left, for its parent to fetch."""
        return self.state in "ZX"

    def send(self, number: int) -> None:
        """Send a signal to that very process and no other."""
        with suppress(OSError):
            descriptor = os.pidfd_open(self.pid)
            try:
                # Behind the descriptor the number cannot be given to another any more; if it was before, the time tells.
                if process_start_time(self.pid) == self.started:
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)


def process(pid: int) -> Process | None:
    """Return a process as it is now, one that has ended included; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    head, _, tail = text.rpartition(")")  # the name may hold spaces and brackets
    fields = tail.split()
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]), fields[0], head.partition("(")[2])


def processes() -> dict[int, Process]:
    """Return all of this machine, or of this container, by number; none if nothing can be seen, not even this process."""
    with suppress(OSError):
        found = (process(int(name)) for name in os.listdir("/proc") if name.isdigit())
        return {each.pid: each for each in found if each is not None}
    return {}


class Looks:
    """Look at all processes of this machine once for several commands: a look for each would cost each of them the same."""

    def __init__(self, clock: Clock, *, reaps: bool) -> None:
        """``reaps``: this process starts nothing but commands, so that whatever else ends here was left behind by one of them."""
        self._clock, self._reaps = clock, reaps
        self._there: dict[int, Process] = {}
        self._until_ns = 0

    def __call__(self) -> Mapping[int, Process]:
        """Return what was there at a look less than half a second ago."""
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._until_ns:
            self._until_ns = now_ns + 500_000_000
            self._there = processes()
            if self._reaps:
                _reap(self._there.values())
        return self._there


class Group:
    """Be all processes of one command but its first. One thread uses it."""

    def __init__(self, leader: int, folder: Path, *, is_alone: bool) -> None:
        """Belong to ``leader``, which was started with ``folder`` in `SUPERVISED` and is not reaped before `left` is empty.

        ``is_alone``: this process starts no other command, so whoever it adopts is of this one. Not so for PID 1, nor where it
        has children already: a shell's, which became `milepost run` by an ``exec``, and which may leave orphans of their own.
        """
        self._leader = leader
        self._tag = f"{SUPERVISED}={folder}".encode()
        here = os.getpid()
        others = (each for each in processes().values() if each.parent == here and each.pid not in {leader, *LEADERS})
        self._is_alone = is_alone and here != 1 and not any(others)
        self._known: dict[int, int] = {}
        self._told: dict[tuple[int, int], bool] = {}

    def left(self, there: Mapping[int, Process] | None = None) -> list[Process] | None:
        """Look, reap what has ended here, and return those that run. ``there``: what a look has found, lately.

        None: nothing could be seen, for this process has no descriptor free, say. It does not mean that nobody is left.
        """
        there = processes() if there is None else there
        if not there:
            return None
        members = self._members(there)
        self._known = {each.pid: each.started for each in members}
        # To PID 1 everybody comes in the end, strangers, too.
        _reap(members if os.getpid() != 1 else there.values())
        return [each for each in members if not each.has_ended]

    def _members(self, there: Mapping[int, Process]) -> list[Process]:
        below: dict[int, list[Process]] = {}
        for each in there.values():
            below.setdefault(each.parent, []).append(each)
        found: dict[int, Process] = {}
        ahead = [*below.get(self._leader, ()), *(each for each in there.values() if self._is_ours(each))]
        while ahead:
            each = ahead.pop()
            if each.pid not in found and each.pid != self._leader:
                found[each.pid] = each
                ahead.extend(below.get(each.pid, ()))
        return [*found.values()]

    def _is_ours(self, each: Process) -> bool:
        if self._known.get(each.pid) == each.started or each.session == self._leader:
            return True
        if each.parent != os.getpid() or each.pid in LEADERS:
            return False
        # Nobody joins a session of another; what was started from here for another purpose is in our own.
        return (self._is_alone and _is_foreign(each)) or self._was_started_with_the_tag(each)

    def _was_started_with_the_tag(self, each: Process) -> bool:
        key = each.pid, each.started
        if key not in self._told:
            self._told[key] = any(
                value == self._tag or value.startswith(self._tag + b"/") for value in _read(each.pid, "environ").split(b"\0")
            )
        return self._told[key]


LEADERS: set[int] = set()
"""The first processes of all commands that were started here and are not over: whose status is whose is known by it."""


def _reap(each_of: Iterable[Process]) -> None:
    """Fetch the status of those that were left to this process, and have ended."""
    for each in each_of:
        if each.has_ended and each.parent == os.getpid() and each.pid not in LEADERS and _is_foreign(each):
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, each.pid, os.WEXITED | os.WNOHANG)


def _is_foreign(each: Process) -> bool:
    """Say whether it is of another session than this process: not something that was started from here for another purpose."""
    return each.session != os.getsid(0)


def is_a_writer(each: Process) -> bool:
    """Say whether it publishes for a trainer (``writer="process"``): it outlives that by as long as it needs."""
    return each.name == TITLE or _WRITER in _read(each.pid, "cmdline")


def is_a_tracker(each: Process) -> bool:
    """Say whether it is Python's own, which gives shared memory back once all others are gone, and then ends."""
    return _TRACKER in _read(each.pid, "cmdline")


def started_with(name: str, below: Path) -> list[Process]:
    """Return whoever runs and was started with a variable that names something below a directory."""
    start = os.fsencode(f"{name}={below}/")
    return [
        each for each in processes().values() if any(value.startswith(start) for value in _read(each.pid, "environ").split(b"\0"))
    ]


def is_a_shell(each: Process) -> bool:
    """Say whether it keeps a signal to itself: it ends by it, or waits until what it has started has ended."""
    return each.name in _SHELLS


def kill(each_of: Iterable[Process]) -> None:
    """Kill them, and nobody who has got one of their numbers since."""
    for each in each_of:
        each.send(signal.SIGKILL)


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""
