"""Decide what comes after an end: a table of stories, and every sequence of ends that hypothesis thinks of."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from milepost.errors import UsageError
from milepost.supervise.causes import Cause, End, StoppedRecord, classify
from milepost.supervise.failure_record import FailureRecord
from milepost.supervise.kinds import KINDS
from milepost.supervise.policy import Decision, Limits, Policy

RUN = "a-run"
FAILED = End(1, None, step=100, resumed=((RUN, 17),))
KILLED = End(None, signal.SIGKILL, resumed=((RUN, 17),))
CRASHED = End(None, signal.SIGSEGV, resumed=((RUN, 17),))
PREEMPTED = End(75, None, stopped=StoppedRecord("SIGTERM", 75, 4, 100), published=True)
NEW = {"published": True}


def policy(draw: float = 1.0, **limits: Any) -> Policy:
    return Policy(Limits(**limits), lambda: draw)


def after(policy: Policy, end: End, *, asked: bool = False) -> Decision:
    return policy.decide(end, classify(end), asked_to_stop=asked)


def actions(policy: Policy, *ends: End) -> list[str]:
    return [after(policy, end).action for end in ends]


def traced(trace: str, at: int, **facts: Any) -> End:
    return replace(FAILED, failure=FailureRecord(1, 1, "ValueError", "bad", trace, step=at), **facts)


def of_kind(kind: str, **facts: Any) -> tuple[End, Cause]:
    row = KINDS[kind]
    return End(1, None, **facts), Cause(kind, row.fault, row.budget, "so")


# How often.


def test_a_failure_is_retried_as_often_as_the_budget_has_it_and_then_its_code_is_passed_on() -> None:
    one = policy()
    assert actions(one, *[replace(FAILED, exit_code=7)] * 3) == ["restart"] * 3
    assert one.standing == "retry 3/3"
    last = after(one, replace(FAILED, exit_code=7))
    assert (last.action, last.exit_code, last.why) == ("stop", 7, "retry 3/3 is spent, and no generation is new since")


@pytest.mark.parametrize(
    ("given", "wanted", "restarts"), [(None, None, 3), (None, 1, 1), (None, 0, 0), (None, 5, 5), (2, 5, 2), (0, 5, 0), (4, 1, 4)]
)
def test_the_command_says_how_many_failures_it_may_have_unless_whoever_started_it_does(
    given: int | None, wanted: int | None, restarts: int
) -> None:
    one = policy(failures=given)
    failed = replace(FAILED, resumed=())
    ends = [replace(failed, retries=wanted), *[failed] * 5]  # a later start may die before it can say so again
    assert actions(one, *ends[: restarts + 1]) == ["restart"] * restarts + ["stop"]


def test_a_new_generation_gives_every_budget_back() -> None:
    one = policy(failures=1)
    for _ in range(20):
        assert after(one, replace(FAILED, **NEW)).action == "restart"
    assert after(one, FAILED).action == "stop"


def test_budgets_are_counted_apart() -> None:
    one = policy(failures=1, infrastructure=2, backoff_s=(0, 0))
    refused = replace(FAILED, stderr="ConnectionRefusedError: no\n")
    assert actions(one, refused, FAILED, refused, PREEMPTED) == ["restart"] * 4
    assert actions(one, refused, refused, refused) == ["restart", "restart", "stop"]


def test_preemptions_have_no_limit_unless_one_is_given() -> None:
    idle = replace(PREEMPTED, published=False)
    assert set(actions(policy(), *[idle] * 200)) == {"restart"}
    assert actions(policy(preemptions=1), idle, idle) == ["restart", "stop"]
    assert actions(policy(failures=-1), *[replace(FAILED, resumed=())] * 200) == ["restart"] * 200


@pytest.mark.parametrize("kind", [kind for kind, row in KINDS.items() if row.retries is not None])
def test_what_starting_again_does_not_heal_is_not_tried_for_long(kind: str) -> None:
    one = policy(failures=50, infrastructure=50)
    decided = [one.decide(*of_kind(kind), asked_to_stop=False).action for _ in range((KINDS[kind].retries or 0) + 1)]
    assert decided == ["restart"] * (KINDS[kind].retries or 0) + ["stop"]


def test_what_is_hopeless_is_told_apart_from_what_was_tried() -> None:
    assert after(policy(), replace(FAILED, stderr="ImportError: no\n")).why == "starting it again would not heal that"
    full = replace(FAILED, stderr="MemoryError\n")
    assert [after(one, full).why for one in [policy()] for _ in range(2)][
        1
    ] == "that came 2 times without a new generation between"


def test_the_same_failure_at_the_same_step_stops() -> None:
    one = policy()
    assert after(one, traced("a", 100)).action == "restart"
    again = after(one, traced("a", 100))
    assert (again.action, again.exit_code) == ("stop", 1)
    assert "same failure" in again.why


def test_the_same_failure_elsewhere_and_another_at_the_same_step_are_retried() -> None:
    assert actions(policy(), traced("a", 100), traced("a", 101), traced("b", 100)) == ["restart"] * 3


def test_the_same_failure_at_the_same_step_stops_even_if_a_generation_is_new_between() -> None:
    """A save each second, and a bug at step 100: every attempt publishes something new on its way to it."""
    assert actions(policy(), traced("a", 100, **NEW), traced("a", 100, **NEW)) == ["restart", "stop"]


def test_a_failure_before_the_first_step_is_forgotten_once_a_generation_is_new() -> None:
    start = traced("a", -1, step=-1)
    assert actions(policy(), start, replace(FAILED, **NEW), start) == ["restart"] * 3
    assert actions(policy(), start, start) == ["restart", "stop"]


def test_a_step_that_the_exception_did_not_record_is_that_of_the_last_beat() -> None:
    assert actions(policy(), traced("a", -1, step=5), traced("a", -1, step=6)) == ["restart", "restart"]
    assert actions(policy(), traced("a", -1, step=5), traced("a", -1, step=5)) == ["restart", "stop"]


def test_the_network_may_fail_at_the_same_place_again() -> None:
    refused = replace(FAILED, failure=FailureRecord(1, 1, "ConnectionRefusedError", "", "a", step=3))
    assert actions(policy(), *[refused] * 10) == ["restart"] * 10


# How soon.


def test_waits_double_up_to_the_longest_and_are_drawn_below_that() -> None:
    one = policy(draw=0.999, infrastructure=9)
    refused = replace(FAILED, stderr="Connection reset by peer\n")
    waits = [after(one, refused).wait_s / 0.999 for _ in range(9)]
    assert waits == pytest.approx([5, 10, 20, 40, 80, 160, 300, 300, 300])
    assert after(policy(draw=0.0), refused).wait_s == 0.0


def test_a_preemption_that_saved_is_followed_at_once() -> None:
    one = policy()
    assert [after(one, PREEMPTED).wait_s for _ in range(9)] == [0.0] * 9


def test_preemptions_that_save_nothing_do_not_spin() -> None:
    one = policy()
    waits = [after(one, replace(PREEMPTED, published=False)).wait_s for _ in range(5)]
    assert waits == [0.0, 5.0, 10.0, 20.0, 40.0]
    assert after(one, PREEMPTED).wait_s == 0.0


def test_another_writer_is_not_hammered() -> None:
    held = replace(FAILED, failure=FailureRecord(1, 1, "ConflictError", "", "", kind="held", exit_code=11))
    assert after(policy(draw=0.0), held).wait_s == 150.0
    assert after(policy(draw=1.0), held).wait_s == 300.0


def test_a_writer_that_was_fenced_does_not_take_its_run_back() -> None:
    fenced = replace(FAILED, failure=FailureRecord(1, 1, "ConflictError", "", "", kind="fenced", exit_code=11))
    assert (after(policy(), fenced).action, after(policy(), fenced).exit_code) == ("stop", 11)


# From where.


def test_three_ends_without_a_new_generation_step_back_once_and_then_it_stops() -> None:
    one = policy(failures=9)
    first, second, third = (after(one, FAILED) for _ in range(3))
    assert (first.resume, second.resume, third.resume) == ((), (), ((RUN, 16),))
    assert "CRASH LOOP: 3 ends without a newer generation, stepping back from generation 17 to 16, once" in third.why
    fourth = after(one, replace(FAILED, resumed=((RUN, 16),)))
    assert fourth.action == "stop"
    assert fourth.why == "it ends so from generation 16 as well: the one after it is not what is wrong"


def test_a_step_back_stays_until_a_generation_is_new() -> None:
    one = policy(failures=9)
    for _ in range(3):
        after(one, FAILED)
    assert after(one, replace(PREEMPTED, published=False)).resume == ((RUN, 16),)
    assert after(one, PREEMPTED).resume == ()


def test_an_end_with_a_new_generation_does_not_speak_against_what_it_went_on_from() -> None:
    one = policy(failures=9)
    assert [after(one, end).resume for end in (replace(FAILED, **NEW), FAILED, FAILED, FAILED)][2:] == [(), ((RUN, 16),)]


@pytest.mark.parametrize(("end", "starts"), [(FAILED, 3), (CRASHED, 2)])
def test_the_last_start_of_a_budget_goes_back_also_if_the_first_end_came_with_a_new_generation(end: End, starts: int) -> None:
    one = policy()
    decided = [after(one, replace(end, published=number == 0)) for number in range(starts + 1)]
    assert [each.resume for each in decided] == [()] * (starts - 1) + [((RUN, 16),), ()]
    assert f"CRASH LOOP: {starts} ends without a newer generation" in decided[starts - 1].why
    assert decided[-1].action == "stop"


def test_one_end_is_never_enough_to_go_back() -> None:
    assert after(policy(failures=1), replace(FAILED, published=True)).resume == ()
    assert after(policy(failures=1), FAILED).resume == ()
    assert after(policy(infrastructure=1), CRASHED).resume == ()


def test_the_next_step_back_does_not_go_to_what_was_doubted_before() -> None:
    one = policy(failures=9)
    for _ in range(3):
        after(one, FAILED)
    after(one, replace(FAILED, resumed=((RUN, 16),), **NEW))  # it published 18, on 16; that of the first loop was 17
    later = replace(FAILED, resumed=((RUN, 18),))
    assert [after(one, later).resume for _ in range(3)] == [(), (), ((RUN, 16),)]


def test_it_steps_back_to_a_generation_that_is_there() -> None:
    one = policy(failures=9)
    end = replace(FAILED, older=((RUN, 9), (RUN, 12), ("another", 16)))
    assert [after(one, end).resume for _ in range(3)][-1] == ((RUN, 12),)


@pytest.mark.parametrize("facts", [{"resumed": ()}, {"resumed": ((RUN, 1),)}, {"older": ()}])
def test_where_there_is_nothing_to_step_back_to_the_budget_decides(facts: dict[str, Any]) -> None:
    one = policy(failures=9)
    decided = [after(one, replace(FAILED, **facts)) for _ in range(10)]
    assert [each.action for each in decided] == ["restart"] * 9 + ["stop"]
    assert {each.resume for each in decided} == {()}


def test_every_run_of_a_program_steps_back() -> None:
    one = policy(failures=9)
    end = replace(FAILED, resumed=(("actor", 5), ("critic", 1)))
    assert [after(one, end).resume for _ in range(3)][-1] == (("actor", 4),)


def test_a_native_crash_is_tried_once_again_and_then_from_the_generation_before() -> None:
    assert [after(one, CRASHED).resume for one in [policy()] for _ in range(2)] == [(), ((RUN, 16),)]


@pytest.mark.parametrize("last", ["Connection reset by peer", "NCCL error", "OSError: [Errno 116] Stale file handle", "Xid 79"])
def test_what_the_network_or_a_device_did_is_not_the_fault_of_a_generation(last: str) -> None:
    one = policy()
    assert {after(one, replace(FAILED, stderr=last + "\n")).resume for _ in range(10)} == {()}


@pytest.mark.parametrize("end", [CRASHED, replace(KILLED, hung=True), replace(FAILED, exit_code=139)])
def test_a_generation_that_crashed_or_hung_its_loader_twice_is_passed_over(end: End) -> None:
    one, loading = policy(), replace(end, loading=(RUN, 17), resumed=())
    first, second = after(one, loading), after(one, loading)
    assert (first.skip, second.skip, second.resume) == ((), ((RUN, 17),), ())
    assert "generation 17 has killed what loads it twice" in second.why


@pytest.mark.parametrize(
    "end",
    [KILLED, replace(KILLED, oom_kills=1), End(None, signal.SIGTERM), replace(FAILED, stderr="ValueError\n")],
)
def test_a_kill_from_outside_says_nothing_about_what_was_being_loaded(end: End) -> None:
    """Else two kills at a bad moment, or a machine that is too small, would put the newest generation aside for good."""
    one = policy(failures=9)
    assert {after(one, replace(end, loading=(RUN, 17))).skip for _ in range(4)} == {()}


def test_where_a_second_generation_kills_its_loader_no_more_are_marked() -> None:
    one = policy(infrastructure=50)
    hung = replace(KILLED, hung=True)
    assert actions(one, *[replace(hung, loading=(RUN, 17))] * 2) == ["restart", "restart"]
    last = after(one, replace(hung, loading=(RUN, 16)))
    assert (last.action, last.skip) == ("stop", ())
    assert "rather the code or the machine" in last.why


# Where milepost run itself is to end.


@pytest.mark.parametrize("end", [PREEMPTED, FAILED, CRASHED, replace(KILLED, killed_after_grace=True), End(75, None)])
def test_told_to_end_it_leaves_with_75_whatever_became_of_the_command(end: End) -> None:
    decided = after(policy(), end, asked=True)
    assert (decided.action, decided.exit_code, decided.wait_s) == ("requeue", 75, 0.0)


def test_told_to_end_it_does_not_ask_for_what_would_only_fail_again() -> None:
    assert after(policy(), replace(FAILED, stderr="ImportError: no\n"), asked=True).action == "stop"


def test_told_to_end_a_command_that_is_done_is_done() -> None:
    assert after(policy(), End(0, None), asked=True).action == "done"


@pytest.mark.parametrize("end", [End(130, None), FAILED, End(None, signal.SIGINT)])
def test_a_ctrl_c_ends_with_130(end: End) -> None:
    decided = after(policy(), replace(end, forwarded=(signal.SIGINT,)), asked=True)
    assert (decided.action, decided.exit_code) == ("stop", 130)


@pytest.mark.parametrize("path", ["notice /run/preempt", "limit 24h", "SLURM end time"])
def test_where_the_machine_or_its_time_ends_starting_again_is_left_to_the_platform(path: str) -> None:
    decided = after(policy(), replace(PREEMPTED, stopped=StoppedRecord(path, 75)))
    assert (decided.action, decided.exit_code) == ("requeue", 75)


@pytest.mark.parametrize(
    ("end", "code"), [(KILLED, 137), (CRASHED, 139), (replace(FAILED, exit_code=3), 3), (End(137, None), 137)]
)
def test_the_exit_code_is_that_of_the_command_or_128_and_its_signal(end: End, code: int) -> None:
    assert after(policy(failures=0, infrastructure=0), end).exit_code == code


def test_a_full_disk_is_told_to_a_scheduler_although_python_ends_with_1() -> None:
    full = replace(FAILED, failure=FailureRecord(1, 1, "SaveFailed", "", "", kind="disk-full", exit_code=1))
    assert (after(policy(), full).action, after(policy(), full).exit_code) == ("stop", 16)


@pytest.mark.parametrize(
    "limits",
    [
        {"failures": -2},
        {"preemptions": -5},
        {"backoff_s": (9.0, 1.0)},
        {"backoff_s": (-1.0, 1.0)},
        {"backoff_s": (0.0, float("inf"))},
    ],
)
def test_limits_that_cannot_be_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        Limits(**limits)
    assert caught.value.kind == "bad-setting"


# Every sequence.

BUDGETS = ("user", "infrastructure", "preemption")
ENDS = st.sampled_from([kind for kind, row in KINDS.items() if row.budget != "none"])


class Supervised(RuleBasedStateMachine):
    """A command that ends in any way, again and again, and what the policy may never do."""

    @initialize(
        failures=st.integers(0, 4),
        infrastructure=st.integers(0, 4),
        preemptions=st.integers(-1, 4),
        draw=st.floats(0, 1, exclude_max=True),
    )
    def begin(self, failures: int, infrastructure: int, preemptions: int, draw: float) -> None:
        self.limits = Limits(failures, infrastructure, preemptions, (1.0, 60.0))
        self.policy = Policy(self.limits, lambda: draw)
        self.restarts = dict.fromkeys(BUDGETS, 0)
        self.newest, self.from_ = 5, 5
        self.last: Decision | None = None
        self.step_backs: set[tuple[Any, ...]] = set()
        self.skips: set[tuple[Any, ...]] = set()
        self.was_loading: set[tuple[str, int]] = set()

    @precondition(lambda self: self.last is None or self.last.action == "restart")
    @rule(
        kind=ENDS,
        new=st.booleans(),
        number=st.sampled_from([None, 11, 9, 6]),
        hung=st.booleans(),
        loads=st.booleans(),
        trace=st.sampled_from("ab"),
    )
    def end(self, kind: str, new: bool, number: int | None, hung: bool, loads: bool, trace: str) -> None:
        row, generation = KINDS[kind], (RUN, self.from_)
        new = new and not loads
        failure = FailureRecord(1, 1, "E", "", trace, step=self.newest) if row.budget == "user" else None
        end = End(
            None if number else 1,
            number,
            hung=hung,
            published=new,
            loading=generation if loads else None,
            resumed=() if loads else (generation,),
            failure=failure,
            stopped=StoppedRecord("SIGTERM", 75) if kind == "preempted" else None,
        )
        if new:
            self.newest += 1
            self.from_ = self.newest
            self.restarts = dict.fromkeys(BUDGETS, 0)
            self.step_backs, self.skips = set(), set()
        if loads:
            self.was_loading.add(generation)
        self.last = decision = self.policy.decide(end, Cause(kind, row.fault, row.budget, "so"), asked_to_stop=False)
        if kind == "preempted" and new:
            assert decision.wait_s == 0
        if decision.action == "restart":
            self.restarts[row.budget] += 1
        if decision.resume:
            self.step_backs.add(decision.resume)
            self.from_ = decision.resume[0][1]
        if decision.skip:
            self.skips.add(decision.skip)
            self.from_ = min(self.from_, decision.skip[0][1] - 1) or 1

    @precondition(lambda self: self.last is not None and self.last.action != "restart")
    @rule()
    def somebody_starts_it_again(self) -> None:
        self.policy = Policy(self.limits, self.policy._draw)
        self.restarts = dict.fromkeys(BUDGETS, 0)
        self.step_backs, self.skips, self.last = set(), set(), None

    @invariant()
    def no_budget_is_overdrawn(self) -> None:
        if self.last is None:
            return
        for budget, limit in zip(
            BUDGETS, (self.limits.failures, self.limits.infrastructure, self.limits.preemptions), strict=True
        ):
            assert limit < 0 or self.restarts[budget] <= limit

    @invariant()
    def a_step_back_and_a_skip_come_at_most_once_between_two_generations(self) -> None:
        if self.last is not None:
            assert len(self.step_backs) <= 1
            assert len(self.skips) <= 1

    @invariant()
    def only_what_was_being_loaded_is_skipped_and_only_what_is_older_resumed(self) -> None:
        if self.last is not None:
            assert set(self.last.skip) <= self.was_loading
            assert all(0 < number < self.newest for _, number in self.last.resume)

    @invariant()
    def waits_are_bounded(self) -> None:
        if self.last is not None:
            assert 0 <= self.last.wait_s <= 60


TestEverySequence = Supervised.TestCase
TestEverySequence.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@given(st.lists(ENDS.filter(lambda kind: KINDS[kind].budget != "preemption"), min_size=9, max_size=40))
def test_without_a_new_generation_it_always_ends(kinds: list[str]) -> None:
    one = policy(failures=3, infrastructure=4)
    decided = [one.decide(*of_kind(kind, resumed=((RUN, 9),)), asked_to_stop=False).action for kind in kinds]
    assert decided.index("stop") <= 3 + 4


@pytest.mark.parametrize(
    ("kind", "is_told"), [("preempted", False), ("io", True), ("grace-too-short", True), ("stopped-unsaved", True)]
)
def test_one_that_is_to_be_started_again_says_so_where_nothing_was_saved_at_its_end(kind: str, is_told: bool) -> None:
    end, cause = of_kind(kind, phase="stopping")
    decision = policy().decide(end, cause, asked_to_stop=True)
    assert (decision.action, decision.exit_code) == ("requeue", 75)
    assert ("nothing was saved at this end" in decision.why) is is_told


def test_of_several_roots_that_which_was_being_loaded_goes_back_with_those_that_were() -> None:
    one = policy()
    ends = [replace(KILLED, resumed=(("actor", 5),), loading=("critic", 7), phase="resuming")] * 3
    assert [after(one, each) for each in ends][-1].resume == (("critic", 6), ("actor", 4))
