"""What a call of learn() does is read off the newest generation's counters."""

from __future__ import annotations

import pytest

from milepost.adapters.sb3.start import Saved, Start, decide

NOTHING = None
INSIDE = Saved(step=500, learn=1, ended=False, total=1000)
ENDED = Saved(step=1008, learn=1, ended=True, total=1000)
STOPPED = Saved(step=420, learn=1, ended=True, total=1000)


@pytest.mark.parametrize(
    ("saved", "learn", "total", "start"),
    [
        (NOTHING, 0, 1000, Start.FRESH),
        (INSIDE, 1, 1000, Start.CONTINUE),
        (INSIDE, 1, 2000, Start.CONTINUE),
        (INSIDE, 1, 500, Start.FINISHED),
        (INSIDE, 0, 1000, Start.SKIPPED),
        (INSIDE, 2, 1000, Start.FRESH),
        (ENDED, 1, 1000, Start.FINISHED),
        (ENDED, 1, 1008, Start.FINISHED),
        (ENDED, 1, 1009, Start.EXTEND),
        (ENDED, 1, 10, Start.FINISHED),
        (ENDED, 2, 1000, Start.FRESH),
        (STOPPED, 1, 1000, Start.FINISHED),
        (STOPPED, 1, 700, Start.FINISHED),
        (STOPPED, 1, 1001, Start.EXTEND),
    ],
)
def test_a_call_starts_where_the_newest_generation_says(saved: Saved | None, learn: int, total: int, start: Start) -> None:
    assert decide(saved, learn=learn, total=total) is start
