"""The ranks that trainers' figures are taken on do together what they are told, and leave nothing of a peer's behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.goals import GOALS
from bench.ranks import Ranks, _as_one

WHAT = {
    "dcp-save-2": "saving",
    "dcp-load-2": "loading",
    "recover": "recovering",
    "export-2": "exporting",
}


def asked_for() -> dict[str, set[str]]:
    """Return which quantities goals ask for, by what is done."""
    asked: dict[str, set[str]] = {}
    for goal in (goal for goal in GOALS if goal.benchmark in WHAT):
        for name in (goal.of, goal.against):
            asked.setdefault(f"{WHAT[goal.benchmark]}: {name}", set()).add(goal.quantity)
    return asked


def all_and_then_fail(place: Path) -> None:
    with Ranks(2, "tests.bench.tiny:trainings", place, total_bytes=2_000_000) as together:
        for deed, quantities in asked_for().items():
            figures = together.do(deed)
            assert all(figures[quantity] > 0 for quantity in quantities), (deed, figures)
        assert together.do("remembering: milepost").keys() == {"extra", "extra, sync", "extra, load"}
        for name in WHAT.values():
            together.do(f"{name}: close")
        assert "export" not in [path.name for path in (place / "exporting").iterdir()]
        assert not (place / "saving" / "dcp").exists()
        together.do("fail")


def test_two_ranks_measure_all_that_goals_ask_for_and_say_which_of_them_failed(tmp_path: Path) -> None:
    """One launch for all of it: it takes seconds, since both processes import torch."""
    with pytest.raises(RuntimeError, match=r"(?s)rank 0 failed.*ZeroDivisionError"):
        all_and_then_fail(tmp_path)


def test_bytes_of_ranks_are_added_up_and_times_are_the_slowest_ranks() -> None:
    assert _as_one("extra, sync", [1.0, 2.0]) == 3.0
    assert _as_one("written", [1.0, 0.0]) == 1.0
    assert _as_one("stall", [1.0, 2.0]) == 2.0
