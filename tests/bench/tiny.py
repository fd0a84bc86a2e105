"""A benchmark that takes no time: what it measures is made up."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from bench.measure import Contender, Outcome, Setting, interleave
from bench.ranks import CLOSE, Place


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


def trainings(place: Place, total_bytes: int) -> dict[str, Callable[[], Mapping[str, Any]]]:
    """Return all that the benchmarks of trainers do on a rank, and what fails on one of them."""
    from bench import sharded, trainings

    gc.freeze()  # of all that torch has loaded, each collection takes a tenth of a second
    made = {
        "saving": sharded.saving,
        "loading": sharded.loading,
        "recovering": trainings.recovering,
        "exporting": trainings.exporting,
        "remembering": trainings.remembering,
    }
    deeds: dict[str, Callable[[], Mapping[str, Any]]] = {}
    for name, make in made.items():
        (place.path / name).mkdir(exist_ok=True)
        found = make(replace(place, path=place.path / name), total_bytes)
        deeds |= {f"{name}: {deed}": act for deed, act in found.items()}
    return {**deeds, CLOSE: dict, "fail": lambda: {"stall": 1 / place.rank if place.rank == 0 else 0.0}}
