"""What milepost must reach, as data, and whether it did.

A goal compares the median of one quantity of milepost's with a bound, or with the median of a floor or a peer that was
measured in the same run on the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.measure import Outcome

Test = Literal["at most", "times less", "below"]
"""``at most``: milepost's is at most ``bound`` times the other's. ``times less``: the other's is at least ``bound`` times
milepost's. ``below``: milepost's is at most ``bound``, in the quantity's own unit."""
Verdict = Literal["met", "MISSED", "not built yet", "not run"]


@dataclass(frozen=True, slots=True)
class Goal:
    """Ask for one figure."""

    operation: str
    benchmark: str
    quantity: str
    test: Test
    bound: float
    against: str = ""
    """The floor's or the peer's name; empty for a bound of its own."""
    needs: str = ""
    """What has to be built before this counts. A figure that can be measured all the same is shown."""
    of: str = "milepost"

    @property
    def words(self) -> str:
        """Return the goal as a person would say it."""
        if self.test == "times less":
            return f"≥ {self.bound:g} × less"
        if self.test == "at most":
            return f"≤ {self.bound:.3g} ×"
        return f"≤ {self.bound * 1e3:g} ms"

    def worded(self, reached: float | None) -> str:
        """Return a figure in the goal's own terms as a person would say it."""
        if reached is None:
            return ""
        return f"{reached * 1e3:.4g} ms" if self.test == "below" else f"{reached:.3g} ×"


@dataclass(frozen=True, slots=True)
class Judged:
    """Hold what became of a goal."""

    goal: Goal
    verdict: Verdict
    reached: float | None
    """In the goal's own terms; None if it was not measured."""

    @property
    def words(self) -> str:
        """Return what was reached as a person would say it."""
        return self.goal.worded(self.reached)

    @property
    def excess(self) -> float | None:
        """Return how far off the bound it is: 1 is just met, 2 twice as bad."""
        if self.reached is None:
            return None
        return self.goal.bound / self.reached if self.goal.test == "times less" else self.reached / self.goal.bound


MEMCPY = "memcpy + 10 µs an array"
DIRECT = "stage + O_DIRECT write"
READ = "read + digest"
SAVE, SYNCED = "torch.save", "torch.save + fsync"
SAFETENSORS, DCP_SAVE, CLONE = "safetensors + fsync", "dcp.save", "clone, torch.save in a thread"
DCP, DCP_REUSED, DCP_PROCESS = "dcp.async_save", "dcp.async_save, reused stager", "dcp.async_save, process"
ORBAX, ORBAX_ASYNC = "Orbax", "Orbax, async"
PROCESS_WRITER = "milepost, process"
SB3_SAVE = "model.save + save_replay_buffer"
DCP_OWN, DCP_OWN_REUSED = "DCP's own", "DCP's own, reused stager"
DCP_OWN_PROCESS, DCP_OWN_UNSYNCED = "DCP's own, process", "DCP's own, sync_files=False"
DIGEST = "digest"
DCP_HF = "DCP's HuggingFaceStorageWriter + fsync"
PLAN_DIRECT, PLAN_DIGEST, PLAN_READ = "DCP's plan + O_DIRECT write", "DCP's plan + digest", "DCP's plan, read + digest"
IN_USE = "files in use"
BARE = "the same file operations, bare"
MEMCPY_BARE, RAW_TCP = "memcpy", "raw TCP loop"
SHM, BULK = "milepost, shm", "milepost, bulk"

GATHER = "gather every tensor"
STALL, DURABLE = "stall of an async save", "durable, end to end"
SYNC, COLD, WARM = "a save while training waits", "load, cold", "load, warm"
UNCHANGED = "a frozen model's second save"
GOALS: tuple[Goal, ...] = (
    Goal(STALL, "save-1gb", "stall", "at most", 1.3, MEMCPY),
    Goal(STALL, "save-adam", "stall", "at most", 1.3, MEMCPY),
    Goal(STALL, "save-100k", "stall", "at most", 1.3, MEMCPY),
    # Of a save that is as durable when it returns. The call as it comes, which leaves the bytes to the kernel, is in the table.
    Goal(STALL, "save-1gb", "stall", "times less", 7, SYNCED),
    Goal(STALL, "save-1gb", "stall", "times less", 4, DCP),
    Goal(STALL, "save-1gb", "stall", "at most", 1.1, DCP_REUSED),
    Goal(STALL, "sb3-replay", "stall", "times less", 50, SB3_SAVE),
    Goal(DURABLE, "save-1gb", "durable", "at most", 1.25, DIRECT),
    Goal("training time lost in the background, a GB: a thread", "background", "lost", "below", 0.150),
    Goal("training time lost in the background, a GB: a process", "background", "lost", "below", 0.040, of=PROCESS_WRITER),
    Goal("replay save after 1% new rows, 4 GB: time", "replay-rows", "durable", "at most", 0.03, "full save"),
    Goal("replay save after 1% new rows, 4 GB: bytes", "replay-rows", "written", "at most", 0.015, "full save"),
    Goal("replay save, slope against capacity", "replay-rows", "slope", "at most", 0.03, "full save"),
    Goal("resume, cold", "resume", "cold", "at most", 1.3, READ),
    Goal("resume, warm", "resume", "warm", "at most", 1.3, READ),
    Goal("extra memory", "memory", "extra", "at most", 1.05, "dense state"),
    Goal("page cache left behind by a save of 6 GB", "page-cache", "left behind", "at most", 0.01, SYNCED),
    Goal("2 GB of files in use beside it", "page-cache", "still resident", "at most", 1.01, "milepost", of=IN_USE),
    *(
        goal
        for name in ("dcp-save", "dcp-save-2")
        for goal in (
            Goal(STALL, name, "stall", "at most", 1.1, DCP_OWN_REUSED),
            Goal(DURABLE, name, "durable", "at most", 1.25, PLAN_DIRECT),
            Goal(DURABLE, name, "durable", "at most", 1, DCP_OWN_REUSED),
            Goal(SYNC, name, "sync", "at most", 1.25, PLAN_DIRECT),
            Goal(SYNC, name, "sync", "at most", 1, DCP_OWN),
            Goal(UNCHANGED, name, "unchanged", "at most", 1.5, PLAN_DIGEST),
            Goal(UNCHANGED, name, "unchanged", "times less", 2, DCP_OWN),
        )
    ),
    Goal(DURABLE, "dcp-save", "durable", "at most", 1, DCP_OWN_PROCESS, of=PROCESS_WRITER),
    *(
        goal
        for name in ("dcp-load", "dcp-load-2")
        for quantity, words in (("cold", COLD), ("warm", WARM))
        for goal in (
            Goal(words, name, quantity, "at most", 1.3, PLAN_READ),
            Goal(words, name, quantity, "at most", 1, DCP_OWN),
        )
    ),
    Goal("extra memory, async saves", "dcp-memory", "extra", "at most", 1.05, "dense state"),
    Goal("extra memory, async saves, 2 ranks", "dcp-memory", "extra, 2 ranks", "at most", 1.1, "dense state"),
    Goal(STALL, "recover", "stall", "at most", 1.3, MEMCPY),
    Goal(STALL, "recover", "stall", "at most", 1.1, DCP_OWN_REUSED),
    Goal(DURABLE, "recover", "durable", "at most", 1.25, PLAN_DIRECT),
    Goal(SYNC, "recover", "sync", "at most", 1.25, PLAN_DIRECT),
    Goal(SYNC, "recover", "sync", "at most", 1, DCP_OWN),
    Goal("stall of an async export", "export", "stall", "at most", 1.3, MEMCPY),
    Goal("stall of an async export", "export-2", "stall", "at most", 1.3, GATHER),
    Goal("export, durable", "export", "durable", "at most", 1.25, DIRECT),
    Goal("export, training waits", "export", "sync", "at most", 1, SAFETENSORS),
    Goal("export, training waits", "export", "sync", "at most", 1, DCP_HF),
    Goal("export, training waits", "export-2", "sync", "at most", 1, SAFETENSORS),
    Goal("export, training waits", "export-2", "sync", "at most", 1, DCP_HF),
    Goal("same-host fetch, zero copy", "fetch", "fetch", "below", 0.001, of=SHM),
    *(
        Goal(f"same-host fetch, zero copy, {size}", "fetch-sizes", "fetch", "below", 0.001, of=f"{SHM}, {size}")
        for size in ("1 MB", "16 MB", "256 MB")
    ),
    Goal("bulk-port fetch over loopback", "fetch", "fetch", "at most", 1 / 0.85, RAW_TCP, of=BULK),
    Goal("delta at 1.8% changed bf16", "delta", "bytes", "times less", 70, "full bytes"),
    Goal("delta at 1.8% changed bf16", "delta", "bytes", "times less", 1.6, "XOR + zstd"),
    Goal("delta at 1.8% changed bf16: encode, a GB", "delta", "encode", "below", 1.0),
    Goal("20 kB state in 20 arrays, stall", "small-state", "stall", "below", 0.0005),
    Goal("20 kB state in 20 arrays, published", "small-state", "durable", "at most", 1.5, BARE),
    Goal("import milepost", "import", "process", "at most", 1.5, "import numpy, msgspec, xxhash"),
    Goal("milepost ls, 1,000 generations", "ls", "process", "at most", 2, "import click, msgspec + read the manifests"),
)


def judge(goals: Sequence[Goal], outcomes: Mapping[str, Outcome]) -> tuple[Judged, ...]:
    """Return what became of every goal. One whose benchmark ran without its quantity is missed: nobody is to lose a goal."""
    return tuple(_judge(goal, outcomes.get(goal.benchmark)) for goal in goals)


def missed(judged: Sequence[Judged]) -> bool:
    """Return whether any goal that counts was missed."""
    return any(one.verdict == "MISSED" for one in judged)


def _judge(goal: Goal, outcome: Outcome | None) -> Judged:
    reached = _reached(goal, outcome) if outcome else None
    if goal.needs:
        return Judged(goal, "not built yet", reached)
    if outcome is None:
        return Judged(goal, "not run", None)
    if reached is None:
        return Judged(goal, "MISSED", None)
    met = reached >= goal.bound if goal.test == "times less" else reached <= goal.bound
    return Judged(goal, "met" if met else "MISSED", reached)


def _reached(goal: Goal, outcome: Outcome) -> float | None:
    ours = outcome.row(goal.of, goal.quantity)
    if ours is None or goal.test == "below":
        return ours.median if ours else None
    other = outcome.row(goal.against, goal.quantity)
    if other is None or not other.median or not ours.median:
        return None
    return other.median / ours.median if goal.test == "times less" else ours.median / other.median
