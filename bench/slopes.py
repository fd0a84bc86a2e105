"""See how the stall grows with the size of the state: by what copying costs, and by nothing else."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from functools import partial

from bench.floors import Touched, allowance_s
from bench.goals import MEMCPY
from bench.measure import Contender, Outcome, Row, Setting, interleave, timed
from bench.savers import Saver, closing, milepost
from bench.states import Workload, arrays

SHARES = (0.1, 0.25, 0.5, 1.0)


def measure(setting: Setting) -> Outcome:
    """Save arrays of 5 MB, more and more of them."""
    size = setting.scaled(1_000_000_000, 100_000_000)
    workloads = [arrays(round(200 * share), round(size * share), "") for share in SHARES]
    savers = [milepost(workload, setting.place, name=f"milepost-{len(workload.views)}") for workload in workloads]
    floors = [Touched(workload.views) for workload in workloads]

    def ours() -> Mapping[str, float]:
        return {_stall(workload): _stalled(saver, workload) for saver, workload in zip(savers, workloads, strict=True)}

    def memcpy() -> Mapping[str, float]:
        pairs = zip(floors, workloads, strict=True)
        return {_stall(workload): timed(floor.copy) + allowance_s(len(workload.views)) for floor, workload in pairs}

    with closing(savers):
        contenders = [Contender(MEMCPY, "floor", memcpy), Contender("milepost", "milepost", ours)]
        rows = interleave(contenders, setting, rounds=setting.scaled(7, 3), budget_s=setting.scaled(45, 5))
    slopes = [_slope([row for row in rows if row.contender == one.name], workloads) for one in contenders]
    words = f"{workloads[0].size_bytes / 1e6:.0f} MB to {size / 1e6:.0f} MB fp32 in arrays of {size / 2e8:.1f} MB"
    return Outcome("slopes", words, (*rows, *slopes), ("slope: the straight line through a round's figures",))


def _stall(workload: Workload) -> str:
    return f"stall, {workload.size_bytes / 1e6:.0f} MB"


def _stalled(saver: Saver, workload: Workload) -> float:
    workload.change()
    started = time.perf_counter()
    finish = saver.start()
    stalled = time.perf_counter() - started
    finish()
    return stalled


def _slope(rows: list[Row], workloads: list[Workload]) -> Row:
    by_quantity = {row.quantity: row.values for row in rows}
    sizes = [workload.size_bytes / 1e9 for workload in workloads]
    rounds = zip(*(by_quantity[_stall(workload)] for workload in workloads), strict=True)
    fit = partial(statistics.linear_regression, sizes)
    return Row(rows[0].contender, rows[0].kind, "slope", tuple(fit(figures).slope for figures in rounds), "s/GB")
