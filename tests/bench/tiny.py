"""A benchmark that takes no time: what it measures is made up."""

from __future__ import annotations

from itertools import count

from bench.measure import Contender, Outcome, Setting, interleave


def measure(setting: Setting) -> Outcome:
    (setting.place / "a file of its own").write_bytes(b"1")
    ours, theirs = count(1), count(10, 10)
    contenders = [
        Contender("a floor", "floor", lambda: {"stall": next(ours) / 1000}),
        Contender("milepost", "milepost", lambda: {"stall": next(theirs) / 1000, "written": 5e6}),
    ]
    rows = interleave(contenders, setting, rounds=5, budget_s=60, units={"written": "bytes"}, settle=lambda: None)
    return Outcome("tiny", "nothing at all", rows, ("made up",))


def broken(setting: Setting) -> Outcome:
    raise ZeroDivisionError(setting.seed)
