"""Count what a large save leaves in the page cache, and what it pushes out of it, by asking the kernel page by page (mincore)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from bench.goals import IN_USE, SAFETENSORS, SYNCED
from bench.machine import drop_cached, files_below
from bench.measure import Contender, Outcome, Setting, interleave
from bench.savers import Saver, chosen, closing, milepost, peers
from bench.states import Workload, arrays
from milepost.store.syscalls import cached_bytes

_FILES = 20


def measure(setting: Setting) -> Outcome:
    """Save 6 GB beside 2 GB of files that are in use."""
    size, used = setting.scaled(6_000_000_000, 200_000_000), setting.scaled(2_000_000_000, 100_000_000)
    workload = arrays(60, size, f"{size / 1e6:.0f} MB fp32 in 60 arrays")
    in_use, saved = setting.place / "in use", setting.place / "saved"
    _make(in_use, used)
    saved.mkdir()
    savers = [milepost(workload, saved), *chosen(peers(workload, saved, warm=False), SYNCED, SAFETENSORS)]
    with closing(savers):
        contenders = [
            Contender(IN_USE, "floor", lambda: {"still resident": float(used)}),
            *(Contender(saver.name, saver.kind, partial(_sample, saver, workload, in_use, saved)) for saver in savers),
        ]
        units = {"still resident": "bytes", "left behind": "bytes"}
        rows = interleave(contenders, setting, rounds=3, budget_s=setting.scaled(90, 5), units=units)  # type: ignore[arg-type]
    notes = (f"still resident: of {used / 1e6:.0f} MB of files that were read just before; left behind: pages of what was saved",)
    return Outcome("page-cache", workload.words, rows, notes)


def _sample(saver: Saver, workload: Workload, in_use: Path, saved: Path) -> Mapping[str, float]:
    drop_cached(saved)
    for path in files_below(in_use):
        path.read_bytes()
    workload.change()
    saver.start()()
    figures = {"still resident": _resident(files_below(in_use)), "left behind": _resident(files_below(saved))}
    saver.clean()
    return figures


def _make(place: Path, total_bytes: int) -> None:
    place.mkdir()
    for number in range(_FILES):
        with (place / str(number)).open("wb") as file:
            for _ in range(total_bytes // _FILES // 1_000_000):
                file.write(os.urandom(1_000_000))
    drop_cached(place)


def _resident(paths: Iterable[Path]) -> float:
    found = 0
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            found += cached_bytes(descriptor)
        finally:
            os.close(descriptor)
    return float(found)
