"""A disk that is full, sick, read-only or gone, at each system call of all that a run does to its root. C14, A10, B8

``MILEPOST_SICK_CASES`` says how many calls are struck for each pair of act and fault (2); ``make soak`` plays thousands.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.sick.injections import ACTS, CASES, FAULTS, Bench, faults, run_case

pytestmark = pytest.mark.usefixtures("_logs")

PER_PAIR = int(os.environ.get("MILEPOST_SICK_CASES", "2"))


@pytest.mark.parametrize("act", ACTS)
def test_whatever_fails_the_last_generation_stays_the_error_is_clear_and_the_next_save_works(place: Path, act: str) -> None:
    bench, seed = Bench(place), random.randrange(10**9)
    print(f"seed {seed}")  # pytest shows it if the test fails
    chance, hits = random.Random(seed), 0
    for name in (fault for each, fault in CASES if each == act):
        fault = FAULTS[name]
        calls = bench.calls(ACTS[act], fault.calls)
        for at in sorted(chance.sample(range(calls), min(PER_PAIR, calls))):
            print(f"{name} at call {at}")
            hits += run_case(bench, ACTS[act], fault, at)[1]
    assert hits > 20, "the disk was sick"


def test_the_soak_counts_what_struck_and_loses_nothing(place: Path) -> None:
    tally = faults(random.randrange(10**9), 20, place)
    assert tally.lost == []
    assert tally.faults > 10
