"""The power is cut at every moment of everything a run does to its root, and of the start after that. A10, A13, B6, B18

For each cut: what `wait()` or a `published` event told of loads, or a newer one; whatever is live is whole; pins hold, a
reset stays; the next claim, resume and save work; and `verify` finds no damage, before and after. `make soak` does more of it.
"""

from __future__ import annotations

import pytest

from tests.power.acts import AT_RANDOM, CASES
from tests.power.runs import replay_run, replay_run_twice

CUTS = 20
"""Of each case, chosen by its seed. All of them are some 1,500 a case."""

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("case", CASES)
def test_a_power_cut_anywhere_leaves_every_acknowledged_generation_and_the_next_start_goes_on(case: str, seed: int) -> None:
    tally = replay_run(case, seed, CUTS)
    assert tally.lost == 0, tally.failures[0]
    assert (tally.cuts, tally.operations > 35, tally.acknowledged > 0) == (CUTS, True, True)


@pytest.mark.parametrize("case", CASES)
def test_a_second_power_cut_while_the_first_is_recovered_from_loses_no_more(case: str) -> None:
    tally = replay_run_twice(case, seed=2, limit=1, again=8)
    assert tally.lost == 0, tally.failures[0]
    assert tally.cuts == 1 + 8


@pytest.mark.parametrize("seed", [3, 8])
def test_a_power_cut_anywhere_in_a_life_at_random_leaves_every_acknowledged_generation(seed: int) -> None:
    for tally in (replay_run(f"{AT_RANDOM}{seed}", seed, CUTS), replay_run_twice(f"{AT_RANDOM}{seed}", seed, limit=1, again=8)):
        assert tally.lost == 0, tally.failures[0]
        assert tally.acknowledged > 5
