"""As little is started again as can help, and more where that did not. C10"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.service.health.choosing import MOST_TRIES, Component, Decision, choose

TRAINER = Component("trainer", "trainer")
RANKS = tuple(Component(f"rank-{n}", "trainer", group="actor" if n < 2 else "critic") for n in range(4))
SAMPLERS = tuple(Component(f"sampler-{n}", "sampler") for n in range(3))
PAIR = (Component("actor", "trainer"), Component("critic", "trainer"))
PLAIN, RANKED = (TRAINER, *SAMPLERS), (*RANKS, *SAMPLERS)
ALL = tuple(sorted(each.name for each in PLAIN))


def sizes(decisions: tuple[Decision, ...]) -> list[tuple[str, tuple[str, ...]]]:
    return [(each.granularity, each.components) for each in decisions]


@pytest.mark.parametrize(
    ("components", "failed", "tries", "chosen"),
    [
        (PLAIN, set(), {}, []),
        (PLAIN, {"sampler-1"}, {}, [("worker", ("sampler-1",))]),
        (PLAIN, {"sampler-1"}, {"sampler-1": 99}, [("worker", ("sampler-1",))]),  # what it costs, its own budget says
        (PLAIN, {"sampler-2", "sampler-0"}, {}, [("worker", ("sampler-0",)), ("worker", ("sampler-2",))]),
        (PLAIN, {"trainer"}, {}, [("trainer", ("trainer",))]),
        (PLAIN, {"trainer", "sampler-0"}, {}, [("trainer", ("trainer",)), ("worker", ("sampler-0",))]),
        (PLAIN, {"trainer"}, {"trainer": 2 * MOST_TRIES - 1}, [("trainer", ("trainer",))]),
        (PLAIN, {"trainer"}, {"trainer": 2 * MOST_TRIES}, [("pipeline", ALL)]),
        (PLAIN, {*ALL}, {}, [("pipeline", ALL)]),
        ((TRAINER,), {"trainer"}, {}, [("trainer", ("trainer",))]),
        (RANKED, {"rank-1"}, {}, [("worker", ("rank-0", "rank-1"))]),
        (RANKED, {"rank-1"}, {"rank-1": MOST_TRIES}, [("trainer", ("rank-0", "rank-1", "rank-2", "rank-3"))]),
        (RANKED, {"rank-1", "rank-2"}, {}, [("trainer", ("rank-0", "rank-1", "rank-2", "rank-3"))]),
        (PAIR, {"actor"}, {}, [("trainer", ("actor", "critic"))]),
        (RANKED[:2], {"rank-0"}, {}, [("worker", ("rank-0", "rank-1"))]),
        ((*RANKED[:2], *SAMPLERS), {"rank-0", "rank-1"}, {}, [("trainer", ("rank-0", "rank-1"))]),
        (RANKED, {each.name for each in RANKS}, {}, [("trainer", ("rank-0", "rank-1", "rank-2", "rank-3"))]),
    ],
)
def test_how_much(
    components: tuple[Component, ...], failed: set[str], tries: dict[str, int], chosen: list[tuple[str, tuple[str, ...]]]
) -> None:
    assert sizes(choose(components, failed, tries)) == chosen


@given(st.sets(st.sampled_from([each.name for each in RANKED])), st.dictionaries(st.sampled_from(ALL), st.integers(0, 9)))
def test_whoever_has_failed_is_started_again_once_and_nobody_else_without_need(failed: set[str], tries: dict[str, int]) -> None:
    decisions = choose(RANKED, failed, tries)
    started = [name for each in decisions for name in each.components]
    assert len(started) == len({*started})
    assert {*failed} <= {*started}
    if all(each.granularity == "worker" for each in decisions):
        assert {name for name in started if name.startswith("sampler")} <= failed
    assert all(each.why for each in decisions)
