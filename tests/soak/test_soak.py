"""The soak in its short form; `make soak` is the long one, with another seed each time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from milepost.testing.power import scratch
from tests.soak.siege import Counts, siege
from tests.soak.tally import Tally

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a directory in memory where there is one, as `make soak` has it: nothing here depends on the medium."""
    with scratch() as made:
        yield made


def test_a_short_siege_loses_nothing(place: Path) -> None:
    counts = Counts(kills=60, cuts=150, faults=40, flips=300, deaths=6, strikes=0)
    total = siege(place, counts, 20261130, print)
    assert total.lost == []
    assert counts.missing(total) == ""
    assert total.acknowledged > 50


def test_what_was_tried_too_little_is_told() -> None:
    assert (
        Counts(10, 10, 10, 10, 10, 10).missing(Tally(crash_points=9, power_cuts=10, faults=11, flips=1, deaths=10, strikes=9))
        == "kills 9 of 10, flips 1 of 10, strikes 9 of 10"
    )
