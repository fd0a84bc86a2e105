"""Give back the memory that the services of a module's tests have left, and find what still runs for them.

Versions outlive their service in ``/dev/shm``, for the next one. Of a test's root there is none, and another test would begin
with what is left, or with too little room.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Set
from contextlib import suppress
from pathlib import Path
from select import select

import pytest

from milepost.service.transports.host import HOST, SHARED
from milepost.service.transports.host_cache import HostCache
from milepost.store.lock import FileLock
from milepost.store.posix import Posix

_LOOKS, _LOOK_S = 600, 0.05


@pytest.fixture(autouse=True, scope="module")
def nothing_outlives_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail a module that leaves processes, and give back the memory of its roots and of what its readers have fetched."""
    below, named = tmp_path_factory.getbasetemp().resolve(), os.environ.get(HOST)
    # What readers of other tests on this machine fetch at the same time is not to be found by these, nor the other way round.
    os.environ[HOST] = f"the tests of {os.getpid()}"
    before = {*processes_below(below)}  # of other modules: a server of forks stays for the next that needs it
    try:
        yield
        still = lasting(below, before)
        held = give_back(below)
        shutil.rmtree(HostCache().directory, ignore_errors=True)
    finally:
        os.environ.pop(HOST)
        if named is not None:
            os.environ[HOST] = named
    assert not still, f"the tests left processes running: {still}"
    assert not held, f"the tests left services running, whose memory this is: {held}"


def lasting(below: Path, before: Set[int] = frozenset()) -> list[str]:
    """Return the processes that do not end within half a minute: one that was just killed may still be about to."""
    for _ in range(_LOOKS):
        found = [command for process, command in processes_below(below).items() if process not in before]
        if not found:
            break
        select([], [], [], _LOOK_S)
    return found


def give_back(below: Path) -> list[str]:
    """Remove what services of roots below a directory have left in memory; return what belongs to one that still runs."""
    held = []
    for owner in Path(SHARED).glob("milepost-*/owner.json"):
        with suppress(FileNotFoundError, ValueError):  # another's, who removes it meanwhile, or has not said yet whose it is
            if not Path(json.loads(owner.read_bytes())["root"]).is_relative_to(below):
                continue
            lock = FileLock(str(owner), Posix())
            if lock.try_lock():
                shutil.rmtree(owner.parent)
                lock.unlock()
            else:
                held.append(str(owner.parent))
    return held


def processes_below(directory: Path) -> dict[int, str]:
    """Return all other processes that name a path below a directory, or are there, with their commands."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is not ours to look at
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            is_there = Path(os.readlink(process / "cwd")).is_relative_to(directory)
            if process.name != str(os.getpid()) and (is_there or f"{directory}/" in command):
                found[int(process.name)] = command
    return found
