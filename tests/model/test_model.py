"""The protocol holds with its rules, and needs each: without it the explorer finds the sequence that breaks."""

import pytest
from families import CASES, Case

STATES, SECONDS = 30_000, 120.0  # the states are the bound; the seconds are for a machine that is stuck
WORLDS = list({case.world: case for case in CASES}.values())


@pytest.mark.parametrize("case", [c for c in CASES if c.off], ids=lambda c: f"{c.family}: {c.name}")
def test_without_the_rule_something_breaks(case: Case) -> None:
    found, _ = case.explore(True, 200_000, SECONDS, until=case.breaks)
    assert any(name.startswith(case.breaks) for name in found), sorted(found)


@pytest.mark.parametrize("case", WORLDS, ids=lambda c: f"{c.family}: {c.name}")
def test_with_the_rules_nothing_breaks(case: Case) -> None:
    found, stats = case.explore(False, STATES, SECONDS)
    assert not found, "\n".join(["", *next(iter(found.values()))])
    assert stats["full"] or stats["states"] >= STATES
