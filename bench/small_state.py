"""Save a small state: what counts is the number of system calls that wait for the disk, and what is around them."""

from __future__ import annotations

import shutil
from collections import Counter, deque
from collections.abc import Mapping

from bench.floors import Call, Recording, acknowledged, elsewhere
from bench.goals import BARE, SYNCED
from bench.measure import Contender, Outcome, Setting, interleave, timed
from bench.savers import chosen, closing, contender, milepost, peers, phases
from bench.states import arrays


def measure(setting: Setting) -> Outcome:
    """Save 20 kB in 20 arrays, and make the same system calls once more in a copy of the run root."""
    workload = arrays(20, 20_000, "20 kB fp32 in 20 arrays; every array changed")
    recording = Recording()
    ours = milepost(workload, setting.place, posix=recording)
    saved = contender(ours, workload)
    root, mirror = setting.place / "milepost", setting.place / "mirror"
    traces: deque[list[Call]] = deque()

    def save() -> Mapping[str, float]:
        figures = saved.sample()
        traces.append(recording.take())
        return figures

    recording.take()
    shutil.copytree(root, mirror)
    # One save ahead, since the bare loop may be first in a round: it follows one save behind, and misses none.
    save()
    counted = Counter(name for name, *_ in traces[0][: acknowledged(traces[0])])

    def bare() -> Mapping[str, float]:
        calls = traces.popleft()
        until = acknowledged(calls)
        durable = timed(elsewhere(calls[:until], str(root), str(mirror)))
        elsewhere(calls[until:], str(root), str(mirror))()
        return {"durable": durable}

    savers = [ours, *chosen(peers(workload, setting.place), SYNCED)]
    with closing(savers):
        contenders = [
            Contender(BARE, "floor", bare),
            Contender("milepost", "milepost", save),
            contender(savers[1], workload),
        ]
        rows = interleave(
            contenders, setting, rounds=setting.scaled(101, 25), budget_s=setting.scaled(30, 4), settle=lambda: None
        )
    calls = ", ".join(f"{count} {name}" for name, count in counted.most_common())
    return Outcome("small-state", workload.words, rows, (phases(root), f"one save, until it is acknowledged: {calls}"))
