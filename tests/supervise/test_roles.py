"""Who starts again, who goes first, and what the exit code is: tables, without any process."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.supervise.roles import Consequence, Place, Plan, Role, circle, decide, in_order, leaving_code, over


def role(name: str, **settings: object) -> Role:
    return Role(name, ("true",), Path("/"), **settings)  # type: ignore[arg-type]


PLAN = Plan(
    (
        role("service", until=("sampler",)),
        role("trainer", count=2, is_ranks=True, restart="trainer", depends_on=("service",)),
        role("sampler", count=3, depends_on=("service", "trainer"), until=("trainer",)),
    )
)
TRAINER = (Place("trainer", 0), Place("trainer", 1))
NONE: frozenset[Place] = frozenset()


def with_restart(restart: str) -> Plan:
    return Plan(tuple(role(each.name, count=each.count, restart=restart) for each in PLAN.roles))


@pytest.mark.parametrize(
    ("restart", "again"),
    [
        ("worker", {"sampler.1"}),
        ("trainer", {"sampler.0", "sampler.1", "sampler.2"}),
        ("all", {"service.0", "trainer.0", "trainer.1", "sampler.0", "sampler.1", "sampler.2"}),
    ],
)
def test_what_starts_again_is_as_large_as_the_role_says(restart: str, again: set[str]) -> None:
    found = decide(with_restart(restart), Place("sampler", 1), "restart", 1, NONE)
    assert (set(map(str, found.restart)), found.finish, found.leave) == (again, frozenset(), None)


def test_a_lost_rank_takes_its_group_along_and_nobody_else() -> None:
    assert decide(PLAN, TRAINER[1], "restart", 1, NONE).restart == frozenset(TRAINER)
    # Also where the rank before it is done: the others cannot find each other without it.
    assert decide(PLAN, TRAINER[1], "restart", 1, frozenset({TRAINER[0]})).restart == frozenset(TRAINER)


def test_all_leaves_what_is_done_alone() -> None:
    plan = Plan((role("prepare"), role("trainer", restart="all", count=2), role("other")))
    done = frozenset({Place("prepare", 0), Place("trainer", 0)})
    again = decide(plan, Place("trainer", 1), "restart", 1, done).restart
    assert set(map(str, again)) == {"trainer.0", "trainer.1", "other.0"}


@pytest.mark.parametrize("action", ["stop", "requeue"])
def test_a_budget_used_up_or_a_wish_to_be_queued_again_ends_everything(action: str) -> None:
    assert decide(PLAN, Place("sampler", 0), action, 75, NONE) == Consequence(leave=75)  # type: ignore[arg-type]


def test_a_role_is_done_with_its_last_process_and_ends_those_that_served_it() -> None:
    assert decide(PLAN, TRAINER[0], "done", 0, NONE) == over(PLAN, frozenset({TRAINER[0]})) == Consequence()
    assert over(PLAN, frozenset(TRAINER)) == Consequence(finish=frozenset({"sampler"}))


def test_whoever_serves_those_that_serve_goes_after_them_and_then_all_is_done() -> None:
    done = frozenset((*TRAINER, *PLAN["sampler"].places))
    assert over(PLAN, done) == Consequence(finish=frozenset({"service"}))
    assert over(PLAN, done | {Place("service", 0)}) == Consequence(leave=0)


def test_a_role_starts_when_all_it_depends_on_stands() -> None:
    assert PLAN.may_start("service", NONE)
    assert not PLAN.may_start("sampler", frozenset({Place("service", 0), TRAINER[0]}))
    assert PLAN.may_start("sampler", frozenset({Place("service", 0), *TRAINER}))


def test_a_role_goes_when_nobody_who_relies_on_it_is_left_even_by_way_of_one_that_is_gone() -> None:
    assert not PLAN.may_stop("service", [Place("service", 0), Place("sampler", 2)])
    assert PLAN.may_stop("sampler", PLAN.places)
    chain = Plan((role("a"), role("b", depends_on=("a",)), role("c", depends_on=("b",))))
    assert not chain.may_stop("a", [Place("a", 0), Place("c", 0)])


@pytest.mark.parametrize(
    ("asked", "codes", "code"),
    [
        (143, [0, 0], 0),
        (143, [0, 75], 75),
        (143, [143], 143),
        (143, [143, 75], 75),
        (143, [16, 75], 16),
        (143, [75, 137], 137),
        (130, [75, 0], 130),
        (130, [1], 130),
        (143, [], 0),
    ],
)
def test_the_exit_code_tells_a_failure_first_then_what_wants_to_go_on(asked: int, codes: list[int], code: int) -> None:
    assert leaving_code(asked, codes) == code


names = st.sampled_from("abcdef")


@given(st.dictionaries(names, st.lists(names, max_size=3, unique=True), max_size=6))
def test_roles_come_after_what_they_depend_on_or_a_circle_is_named(edges: dict[str, list[str]]) -> None:
    known = {name: tuple(other for other in others if other in edges and other != name) for name, others in edges.items()}
    ordered, stuck = in_order([role(name, depends_on=others) for name, others in known.items()])
    for at, each in enumerate(ordered):
        assert set(each.depends_on) <= {before.name for before in ordered[:at]}
    assert sorted([each.name for each in ordered] + list(stuck)) == sorted(known)
    found = circle(known)
    assert bool(found) == bool(stuck)
    for one, other in itertools.pairwise(found):
        assert other in known[one]
    assert not found or found[0] == found[-1]
