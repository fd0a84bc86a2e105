"""Stop a real process (SIGSTOP) before one of its calls on a file, let others work meanwhile, and let it go on.

A process that is stopped knows nothing of it: it holds its locks, its clock goes on, and it wakes in the middle of whatever
it was about to do. So does one whose machine was suspended, or that waited for a network file system.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import TracebackType
from typing import ParamSpec, TypeVar

from milepost.store.posix import CHANGES, Posix

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Point:
    """Be one call that changes files: its number among them (from 0), the call, and the path that it changes."""

    number: int
    operation: str
    path: str

    def __str__(self) -> str:
        return f"operation {self.number}: {self.operation} {self.path}"


class StopAt(Posix):
    """Stop the process before the first change for which ``here`` says so, once; ``stopping`` is told of it just before."""

    def __init__(self, here: Callable[[Point], bool], stopping: Callable[[Point], object] | None = None) -> None:
        self._here = here
        self._stopping = stopping
        self._number = 0
        self._paths: dict[int, str] = {}
        self._stopped = False

    def perform(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if name in CHANGES:
            point = Point(self._number, name, changed_path(args, self._paths))
            self._number += 1
            if not self._stopped and self._here(point):
                self._stopped = True
                if self._stopping is not None:
                    self._stopping(point)
                os.kill(os.getpid(), signal.SIGSTOP)
        answer = function(*args, **kwargs)
        if name.startswith("open_") and isinstance(answer, int):
            self._paths[answer] = str(args[0])
        return answer


def changed_path(args: tuple[object, ...], paths: Mapping[int, str]) -> str:
    """Return which file a call changes: the second path of one that has two, since that is the name it makes.

    ``paths`` are those of open files, by descriptor.
    """
    first, second = (*args, None, None)[:2]
    if isinstance(second, str):
        return second
    return paths.get(first, str(first)) if isinstance(first, int) else str(first)


def at_operation(operation: str, pattern: str = "*", nth: int = 1) -> Callable[[Point], bool]:
    """Say of the ``nth`` change that is this operation on a path of this shell pattern: here."""
    seen = 0

    def here(point: Point) -> bool:
        nonlocal seen
        if point.operation != operation or not fnmatchcase(point.path, pattern):
            return False
        seen += 1
        return seen == nth

    return here


class Child:
    """Run ``action`` in a forked child, beside the caller. Leaving the context kills it if it has not ended.

    with Child(lambda: train(root, StopAt(here))) as writer:
        if writer.stops():
            take_over(root)
        assert writer.ends() == 0
    """

    def __init__(self, action: Callable[[], object]) -> None:
        self.pid = _fork(action)
        self._ended: int | None = None

    def stops(self) -> bool:
        """Wait until it stops itself, and return True; or False, if it ends without."""
        return self._wait(os.WUNTRACED) is None

    def ends(self) -> int:
        """Let it run to its end, if it is stopped, and return its exit status."""
        if self._ended is None:
            os.kill(self.pid, signal.SIGCONT)
        status = self._wait(0)
        assert status is not None
        return status

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._ended is None:
            os.kill(self.pid, signal.SIGKILL)
            self._wait(0)

    def _wait(self, options: int) -> int | None:
        if self._ended is None:
            status = os.waitpid(self.pid, options)[1]
            self._ended = None if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
        return self._ended


def _fork(action: Callable[[], object]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        action()
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it is, it must not unwind into the parent's code
        traceback.print_exc()
    finally:
        os._exit(status)  # no atexit, no test runner: this process is the parent's image
