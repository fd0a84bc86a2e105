"""Strike a process of the service, or one of its clients, at a point with a name: SIGKILL before it or after it, the nth time.

The points lie where the product crosses a border: what it calls there is wrapped, in the process that is to die and in no other.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from select import select
from typing import Any

SERVER = (
    *(f"append:{entry}" for entry in ("Began", "Joined", "Committed", "Stored", "Dropped", "Held", "Resumed")),
    *(f"{what}:{tier}" for what in ("index", "blob", "write", "finish", "erase") for tier in ("memory", "disk")),
    *(f"reply:{answer}" for answer in ("Welcome", "Bring", "Accepted", "Done", "Take")),
    *("arrived", "spill", "snapshot", "endpoint"),
)
CLIENT = ("call:Hello", "call:Begin", "call:Arrived", "call:Finish", "call:Hold", "call:Resume", "room", "fill")
ROLLBACK = "append:RolledBack"
WHEN = ("before", "after")
LINGERS_TICKS = 15


@dataclass(frozen=True, slots=True)
class Strike:
    """Say where a process dies."""

    point: str
    when: str
    nth: int = 1
    lingers: bool = False
    """Whether a little time is left before it for others to be told what should not be told yet."""

    def __str__(self) -> str:
        return f"{self.when} {self.point} #{self.nth}"


class _Striking:
    """Count what passes a point, and strike."""

    def __init__(self, strike: Strike | None, told: Callable[[], int] = lambda: 0) -> None:
        self.strike = strike
        self.told = told
        self.seen: Counter[tuple[str, str]] = Counter()

    def passes(self, point: str, when: str) -> None:
        if self.strike is None or (point, when) != (self.strike.point, self.strike.when):
            return
        self.seen[point, when] += 1
        if self.seen[point, when] == self.strike.nth:
            before = self.told()
            for _ in range(LINGERS_TICKS if self.strike.lingers else 0):
                if self.told() > before + 2:
                    break
                select([], [], [], 0.02)
            os.kill(os.getpid(), signal.SIGKILL)

    def wrap(self, owner: Any, name: str, point: Callable[..., str]) -> None:
        """Let a function or method pass a point whenever it is called. ``point`` gets its arguments."""
        inner = getattr(owner, name)

        @wraps(inner)
        def passing(*args: Any, **kwargs: Any) -> Any:
            here = point(*args, **kwargs)
            self.passes(here, "before")
            result = inner(*args, **kwargs)
            self.passes(here, "after")
            return result

        setattr(owner, name, passing)

    def wrap_async(self, owner: Any, name: str, point: str) -> None:
        inner = getattr(owner, name)

        @wraps(inner)
        async def passing(*args: Any, **kwargs: Any) -> Any:
            self.passes(point, "before")
            result = await inner(*args, **kwargs)
            self.passes(point, "after")
            return result

        setattr(owner, name, passing)


def arm_server(strike: Strike | None, told: Callable[[], int]) -> None:
    """Let this process, which is to serve, die so. ``told`` says how much was acknowledged."""
    from milepost.service.journal import Journal
    from milepost.service.server import calls, running
    from milepost.service.server.shell import Shell
    from milepost.service.server.storage import Storage
    from milepost.service.snapshots import Snapshot
    from milepost.service.tiers.disk import DiskTier
    from milepost.service.tiers.memory import MemoryTier

    striking = _Striking(strike, told)
    striking.wrap(Journal, "append", lambda _, entries: f"append:{type(entries[0]).__name__}")
    for tier, name in ((MemoryTier, "memory"), (DiskTier, "disk")):
        for method, what in (("write_index", "index"), ("new_blob", "blob"), ("write", "write"), ("finish", "finish")):
            striking.wrap(tier, method, lambda *_, point=f"{what}:{name}": point)
        striking.wrap(tier, "erase", lambda *_, point=f"erase:{name}": point)
    striking.wrap(Shell, "_reply", lambda _self, _request, answer: f"reply:{type(answer).__name__}")
    striking.wrap(Storage, "spill", lambda *_: "spill")
    striking.wrap(Snapshot, "keep", lambda *_: "snapshot")
    striking.wrap(running, "write_endpoint", lambda *_: "endpoint")
    striking.wrap_async(calls, "arrive", "arrived")


def arm_client(strike: Strike | None) -> None:
    """Let this process, which is to train, die so."""
    from milepost.service.client import committing
    from milepost.service.client.line import Line
    from milepost.service.client.ways import Ways

    striking = _Striking(strike)
    striking.wrap(Line, "call", lambda _self, method, *_: f"call:{method}")
    striking.wrap(Ways, "room", lambda *_: "room")
    striking.wrap(committing, "fill", lambda *_: "fill")
