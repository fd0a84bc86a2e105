"""Save large states: how long training waits, and how long until every byte is durable."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from bench.apart_orbax import MISSING, SAYS, Orbax, installed
from bench.floors import Touched, allowance_s
from bench.goals import CLONE, DCP, DCP_REUSED, DCP_SAVE, DIRECT, MEMCPY, SAFETENSORS, SAVE, SYNCED
from bench.measure import Contender, Outcome, Setting, interleave, timed
from bench.savers import chosen, closing, contender, milepost, peers, phases
from bench.states import Workload, adam, arrays


def one_gigabyte(setting: Setting) -> Outcome:
    """Save 1 GB of fp32 in 200 arrays."""
    size = setting.scaled(1_000_000_000, 100_000_000)
    return _measure("save-1gb", arrays(200, size, f"{size / 1e6:.0f} MB fp32 in 200 arrays"), setting, orbax=True)


def many_arrays(setting: Setting) -> Outcome:
    """Save 100,000 arrays of a kilobyte: what counts is the work per array, and not the bytes."""
    count = setting.scaled(100_000, 2_000)
    workload = arrays(count, count * 1024, f"{count:,} arrays of 1 KB")
    # The other ways of dcp take as long as this one: minutes a round.
    return _measure("save-100k", workload, setting, only=(SYNCED, SAFETENSORS, DCP_REUSED, CLONE))


def adam_state(setting: Setting) -> Outcome:
    """Save a network of 350 MB with its optimizer."""
    # All but the process of dcp, which takes seconds to start.
    names = (SAVE, SYNCED, SAFETENSORS, DCP_SAVE, DCP, DCP_REUSED, CLONE)
    return _measure("save-adam", adam(setting.scaled(350_000_000, 35_000_000)), setting, only=names)


def _measure(name: str, workload: Workload, setting: Setting, only: Sequence[str] = (), *, orbax: bool = False) -> Outcome:
    others = peers(workload, setting.place)
    savers = [milepost(workload, setting.place), *(chosen(others, *only) if only else others)]
    touched = Touched(workload.views)
    apart = Orbax(workload, setting.place) if orbax and installed() else None
    with closing(savers), apart or nullcontext():
        contenders = [
            *floors(workload, touched, setting.place / "floor"),
            *(contender(saver, workload) for saver in savers),
            *(apart.contenders() if apart else ()),
        ]
        rows = interleave(contenders, setting, rounds=setting.scaled(7, 3), budget_s=setting.scaled(90, 4))
    words = f"{workload.words}; every array changed since the save before"
    notes = (phases(setting.place / "milepost"), *((SAYS,) if apart else (MISSING,) if orbax else ()))
    return Outcome(name, words, rows, notes)


def floors(workload: Workload, touched: Touched, file: Path) -> list[Contender]:
    """Return the two floors of a save: what training waits for, and what the disk takes."""

    def memcpy() -> Mapping[str, float]:
        return {"stall": timed(touched.copy) + allowance_s(len(workload.views))}

    def direct() -> Mapping[str, float]:
        started = time.perf_counter()
        touched.copy()
        touched.write(file)
        durable = time.perf_counter() - started
        file.unlink()
        return {"durable": durable}

    return [Contender(MEMCPY, "floor", memcpy), Contender(DIRECT, "floor", direct)]
