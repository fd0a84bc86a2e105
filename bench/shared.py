"""Save a state of which a tenth has changed, and count the bytes that are written."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import count

from bench.floors import Counting
from bench.goals import SYNCED
from bench.machine import files_below
from bench.measure import Contender, Outcome, Setting, interleave
from bench.savers import chosen, closing, milepost, peers
from bench.states import arrays

ARRAYS = 200
CHANGED = ARRAYS // 10
FLOOR = "the changed arrays"


def measure(setting: Setting) -> Outcome:
    """Change 20 of 200 arrays between two saves, others each time."""
    size = setting.scaled(1_000_000_000, 100_000_000)
    words = f"{size / 1e6:.0f} MB fp32 in {ARRAYS} arrays, {CHANGED} of them changed since the save before"
    workload = arrays(ARRAYS, size, words)
    counting = Counting()
    ours = milepost(workload, setting.place, posix=counting, whole=False)
    [theirs] = chosen(peers(workload, setting.place), SYNCED)
    turn = count()

    def save() -> Mapping[str, float]:
        start = next(turn) * CHANGED % ARRAYS
        workload.change(slice(start, start + CHANGED))
        counting.take()
        started = time.perf_counter()
        ours.start()()
        return {"durable": time.perf_counter() - started, "written": float(counting.take())}

    def save_all() -> Mapping[str, float]:
        started = time.perf_counter()
        theirs.start()()
        durable = time.perf_counter() - started
        written = sum(path.stat().st_size for path in files_below(setting.place / "peer.file"))
        theirs.clean()
        return {"durable": durable, "written": float(written)}

    changed = float(sum(len(view) for view in workload.views[:CHANGED]))
    with closing([ours, theirs]):
        contenders = [
            Contender(FLOOR, "floor", lambda: {"written": changed}),
            Contender("milepost", "milepost", save),
            Contender(SYNCED, "peer", save_all),
        ]
        # Two turns around the state: a blob of which less than half is in use is written anew, and that is to be seen.
        rows = interleave(contenders, setting, rounds=20, budget_s=setting.scaled(40, 5), units={"written": "bytes"})
    written = next(row for row in rows if (row.contender, row.quantity) == ("milepost", "written"))
    mean = sum(written.values) / len(written.values) / changed
    note = f"milepost, on average: {mean:.3g} × the changed bytes; a blob of which less than half is in use is rewritten"
    return Outcome("shared", words, rows, (note,))
