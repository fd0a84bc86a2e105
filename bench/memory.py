"""Count the memory that a save and a resume need beside the state, each in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from bench.apart import run_apart
from bench.goals import CLONE, DCP, DCP_PROCESS, DCP_REUSED, PROCESS_WRITER, SYNCED
from bench.measure import Contender, Outcome, Setting, interleave

SAVES = 3
_PEERS = (SYNCED, DCP, DCP_REUSED, DCP_PROCESS, CLONE)


def measure(setting: Setting) -> Outcome:
    """Save 1 GB of fp32 in 200 arrays, three times, and look at the most memory that was held."""
    size = setting.scaled(1_000_000_000, 100_000_000)

    def extra(name: str) -> Mapping[str, float]:
        with tempfile.TemporaryDirectory(dir=setting.place) as place:
            saved = run_apart("bench.memory:extra_of_saves", name=name, size_bytes=size, place=place)
            if name != "milepost":
                return saved
            return {**saved, **run_apart("bench.memory:extra_of_resume", size_bytes=size, place=place)}

    contenders = [
        Contender("dense state", "floor", lambda: {"extra": float(size)}),
        Contender("milepost", "milepost", partial(extra, "milepost")),
    ]
    if not setting.quick:
        contenders.append(Contender(PROCESS_WRITER, "milepost", partial(extra, PROCESS_WRITER)))
        contenders += [Contender(name, "peer", partial(extra, name)) for name in _PEERS]
    rows = interleave(
        contenders,
        setting,
        rounds=setting.scaled(2, 1),
        budget_s=setting.scaled(75, 5),
        units={"extra": "bytes", "extra, resume": "bytes"},
    )
    notes = (
        f"the most memory held at once in {SAVES} saves, beyond what the process held before the first",
        "of a process that writes for it, all it holds counts; what both share counts in each",
    )
    return Outcome("memory", f"{size / 1e6:.0f} MB fp32 in 200 arrays, a process of its own each", rows, notes)


def extra_of_saves(name: str, size_bytes: int, place: str) -> Mapping[str, float]:
    """Return how much more memory three saves need than the state alone."""
    from bench.machine import children_peak_bytes, forget_peak, peak_bytes, resident_bytes
    from bench.savers import chosen, milepost, peers
    from bench.states import arrays

    workload = arrays(200, size_bytes, "")
    before = resident_bytes()
    forget_peak()
    there = Path(place)
    if name in ("milepost", PROCESS_WRITER):
        saver = milepost(workload, there, writer="process" if name == PROCESS_WRITER else "thread")
    else:
        [saver] = chosen(peers(workload, there, warm=False), name)
    for _ in range(SAVES):
        workload.change()
        saver.start()()
        saver.clean()
    extra = peak_bytes() - before + children_peak_bytes()
    saver.close()
    return {"extra": float(extra)}


def extra_of_resume(size_bytes: int, place: str) -> Mapping[str, float]:
    """Return how much more memory a resume needs than the state alone."""
    from bench.machine import forget_peak, peak_bytes, resident_bytes
    from bench.states import arrays
    from milepost import CheckpointEngine

    workload = arrays(200, size_bytes, "")
    with CheckpointEngine(Path(place) / "milepost", state=workload.state) as engine:
        before = resident_bytes()
        forget_peak()
        engine.resume()
        return {"extra, resume": float(peak_bytes() - before)}
