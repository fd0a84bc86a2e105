"""A pipeline as a machine that decides: processes that a test holds in its hand, and a clock that stands still."""

from __future__ import annotations

import itertools
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.errors import MilepostError, NotFoundError, ServiceError, UsageError
from milepost.supervise.causes import StoppedRecord
from milepost.supervise.orders import Look, RestartAll, RestartRole, RestartWorker
from milepost.supervise.roles import Place, Ready
from tests.supervise.casts import Stage, Stand, role

TRAINER = role("trainer", count=2, is_ranks=True, restart="trainer", depends_on=("service",))
SAMPLER = role("sampler", count=3, depends_on=("service", "trainer"), until=("trainer",), grace_s=5.0)
SERVICE = role("service", until=("sampler",), grace_s=5.0)


def rl(**changes: Any) -> Stage:
    stage = Stage(SERVICE, TRAINER, SAMPLER, **changes)
    stage.turn(4)
    assert len(stage.pids()) == 6
    return stage


def kind_of(caught: pytest.ExceptionInfo[MilepostError]) -> str:
    return caught.value.kind


def changed(before: dict[str, int], after: dict[str, int]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def test_roles_start_in_the_order_in_which_they_depend() -> None:
    stage = Stage(SERVICE, TRAINER, SAMPLER)
    stage.turn()
    assert [name.split(".")[0] for name in stage.history] == ["service", "trainer", "trainer", "sampler", "sampler", "sampler"]


def test_nobody_starts_before_what_it_depends_on_is_ready(tmp_path: Path) -> None:
    first = role("first", ready=Ready(path=str(tmp_path / "ready")))
    (tmp_path / "ready").write_text("left by an earlier start")
    stage = Stage(first, role("second", depends_on=("first",)))
    stage.turn(5)
    assert stage.standings() == {"first.0": "starting", "second.0": "waiting"}
    (tmp_path / "ready").write_text("now")
    stage.turn(2)
    assert stage.standings() == {"first.0": "ready", "second.0": "ready"}


def test_each_process_has_a_sign_of_its_own_where_the_role_says_so(tmp_path: Path) -> None:
    stage = Stage(role("a", count=2, ready=Ready(path=str(tmp_path / "ready-{index}"))), role("b", depends_on=("a",)))
    (tmp_path / "ready-1").touch()
    stage.turn(3)
    (tmp_path / "ready-1").write_text("1")
    stage.turn(3)
    assert stage.standings() == {"a.0": "starting", "a.1": "ready", "b.0": "waiting"}
    (tmp_path / "ready-0").touch()
    stage.turn(3)
    assert stage.standings()["b.0"] == "ready"


def test_one_that_is_never_ready_at_its_first_start_ends_the_pipeline_with_what_it_said_last(tmp_path: Path) -> None:
    stage = Stage(role("a", ready=Ready(path=str(tmp_path / "no")), ready_within_s=60.0), role("b"))
    stage.turn()
    stage.turn(2, seconds=59.0)
    stage.turn(2)
    assert stage.pipeline.exit_code == 1
    assert any(f"not ready within 60 s: nothing made {tmp_path}/no" in line for line in stage.told.lines)
    assert stage.there["b.0"].asked_s == [30.0]


def test_one_that_is_not_ready_at_a_later_start_is_started_again_as_if_it_had_failed(tmp_path: Path) -> None:
    stage = Stage(role("a", ready=Ready(path=str(tmp_path / "sign")), ready_within_s=60.0))
    stage.turn()
    (tmp_path / "sign").touch()
    stage.turn()
    stage.ends("a.0")
    assert stage.history == ["a.0"] * 2
    for starts in (3, 4, 4):  # as many failures as it has, and the one for which it gives up
        stage.turn(1, seconds=61.0)
        stage.turn(3)
        assert len(stage.history) == starts
    assert stage.pipeline.exit_code == 1


def test_an_address_that_a_stranger_has_taken_meanwhile_is_waited_for_like_any_failure() -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stage = Stage(role("a", ready=Ready(host="127.0.0.1", port=stranger.getsockname()[1])), backoff_s=10.0)
        stage.turn()
        stage.ends("a.0", turns=0)
        stranger.listen()
        stage.turn(3)
        assert (stage.history, stage.pipeline.exit_code) == (["a.0"], None)
    stage.turn(4, seconds=10.0)
    assert stage.history == ["a.0", "a.0"]


def test_a_worker_that_falls_comes_back_alone() -> None:
    stage = rl()
    before = stage.pids()
    stage.ends("sampler.1", signal=9)
    assert changed(before, stage.pids()) == {"sampler.1"}


def test_a_lost_rank_brings_its_group_back_with_a_meeting_point_of_its_own_and_nobody_else() -> None:
    stage = rl()
    before, ports = stage.pids(), [stage.there[name].launch.environment["MASTER_PORT"] for name in ("trainer.0", "trainer.1")]
    stage.ends("trainer.1", signal=9)
    assert changed(before, stage.pids()) == {"trainer.0", "trainer.1"}
    now = [stage.there[name].launch.environment for name in ("trainer.0", "trainer.1")]
    assert [each["RANK"] for each in now] == ["0", "1"]
    assert {each["WORLD_SIZE"] for each in now} == {"2"}
    assert now[0]["MASTER_PORT"] == now[1]["MASTER_PORT"] != ports[0] == ports[1]
    # It cannot come to a safe point without the one that is lost: to wait its whole grace period would be in vain.
    assert {each.launch.attempt for name, each in stage.there.items() if "trainer" in name} == {2}


def test_the_other_ranks_of_a_lost_one_are_not_waited_for_in_vain() -> None:
    stage = rl()
    stage.there["trainer.0"].stubborn = True
    stage.ends("trainer.1", signal=9)
    assert stage.there["trainer.0"].asked_s == [5.0]
    assert stage.history[-1] != "trainer.1"  # not before the last of them is gone
    stage.turn(4, seconds=5.0)
    assert {"trainer.0", "trainer.1"} == set(stage.history[-2:])


def test_all_goes_down_in_reverse_order_and_comes_back_in_order() -> None:
    stage = Stage(role("service", restart="all"), role("trainer", depends_on=("service",)), role("x", depends_on=("trainer",)))
    stage.turn(3)
    before = stage.pids()
    stage.ends("service.0", turns=12)
    assert changed(before, stage.pids()) == {"service.0", "trainer.0", "x.0"}
    assert stage.history[3:] == ["service.0", "trainer.0", "x.0"]
    assert [line.split(":")[0] for line in stage.told.lines if "asked to leave" in line] == ["x.0", "trainer.0"]


def test_nobody_comes_back_before_the_last_of_those_who_start_again_with_it_is_gone() -> None:
    for restart, waits in (("trainer", "a.1"), ("all", "b.0")):
        stage = Stage(role("a", count=2, restart=restart), role("b"))
        stage.turn(2)
        stage.there[waits].stubborn = True
        stage.ends("a.0")
        assert stage.standings()["a.0"] == "waiting"  # what is left of the start before would meet that of the next
        stage.turn(4, seconds=30.0)
        assert set(stage.standings().values()) == {"ready"}


def test_a_group_of_ranks_comes_whole_or_not_at_all() -> None:
    stage = rl(backoff_s=100.0)
    stage.ends("trainer.1")
    stage.pipeline._cast.members[Place("trainer", 0)].not_before_ns = 0  # due a moment before the other
    stage.turn(3)
    assert stage.history.count("trainer.0") == 1
    stage.turn(3, seconds=100.0)
    assert (stage.history.count("trainer.0"), stage.history.count("trainer.1")) == (2, 2)
    check_who_stands_on_whom(stage)


def test_who_is_being_ended_for_good_does_not_come_back_when_all_starts_again() -> None:
    stage = Stage(replace(SERVICE, restart="all"), TRAINER, SAMPLER)
    stage.turn(4)
    stage.there["sampler.0"].stubborn = True
    stage.ends("trainer.0", "trainer.1", code=0, turns=3)
    stage.ends("service.0", code=1)
    stage.turn(8, seconds=5.0)
    assert stage.pipeline.exit_code == 0
    assert stage.history.count("sampler.0") == 1


def test_two_that_fall_at_once_are_two_restarts_and_one_of_a_group() -> None:
    stage = rl()
    before = stage.pids()
    stage.ends("sampler.0", "sampler.2", "trainer.0", "trainer.1", signal=9, turns=10)
    assert changed(before, stage.pids()) == {"sampler.0", "sampler.2", "trainer.0", "trainer.1"}
    assert sum("trainer" in name for name in stage.history) == 4
    assert sum("trainer" in line for line in stage.told.lines if "starts again" in line) == 1


def test_a_failure_while_a_restart_is_under_way_is_part_of_it_or_waits_for_it() -> None:
    stage = Stage(role("a", restart="all", count=2), role("b", depends_on=("a",)))
    stage.turn(3)
    stage.there["b.0"].stubborn = True
    stage.ends("a.0", turns=2)  # b is asked to leave, and takes its time
    stage.ends("a.1", turns=2)
    stage.ends("b.0", turns=6)
    assert stage.history[3:] == ["a.0", "a.1", "b.0"]
    assert stage.standings() == {"a.0": "ready", "a.1": "ready", "b.0": "ready"}


def test_who_depends_on_one_that_is_on_its_way_back_waits_for_it() -> None:
    stage = Stage(role("a"), role("b", depends_on=("a",)), backoff_s=100.0)
    stage.turn(2)
    stage.ends("a.0", "b.0")
    stage.pipeline.submit(RestartWorker("b", 0))  # nothing holds it back but a
    stage.turn(3)
    assert stage.standings() == {"a.0": "waiting", "b.0": "waiting"}
    stage.turn(3, seconds=50.0)
    assert stage.history[2:] == ["a.0", "b.0"]


def test_a_budget_that_is_used_up_ends_everything_in_reverse_order_with_its_exit_code() -> None:
    stage = rl()
    for _ in range(4):
        stage.ends("sampler.1", code=7)
    stage.turn(8)
    assert stage.pipeline.exit_code == 7
    assert any("sampler.1: is not started again: retry 3/3 is spent" in line for line in stage.told.lines)
    order = [line.split(":")[0] for line in stage.told.lines if "asked to leave" in line]
    assert [name.split(".")[0] for name in order] == ["sampler", "sampler", "trainer", "trainer", "service"]


def test_what_the_trainer_publishes_renews_the_budget_of_a_sampler() -> None:
    stage = rl()
    for generation in range(1, 9):
        stage.there["trainer.0"].newest = generation
        stage.turn(seconds=2.0)
        stage.ends("sampler.1", code=7)
    assert stage.pipeline.exit_code is None
    assert stage.history.count("sampler.1") == 9


def test_a_budget_is_each_worker_s_own_and_a_group_s_together() -> None:
    stage = rl()
    for index in range(3):
        for _ in range(2):
            stage.ends(f"sampler.{index}", code=7)
    assert stage.pipeline.exit_code is None
    for rank in (0, 1, 0, 1):
        stage.ends(f"trainer.{rank}", code=7)
    stage.turn(8)
    assert stage.pipeline.exit_code == 7


def test_a_trainer_that_is_done_ends_whom_it_needs_no_more_and_then_all_is_done() -> None:
    stage = rl()
    stage.ends("trainer.0", code=0)
    assert stage.standings()["sampler.0"] == "ready"
    stage.ends("trainer.1", code=0, turns=10)
    assert stage.pipeline.exit_code == 0
    assert set(stage.standings().values()) == {"done"}
    order = [line.split(":")[0] for line in stage.told.lines if "asked to leave" in line]
    assert order == ["sampler.0", "sampler.1", "sampler.2", "service.0"]


def test_a_sampler_that_falls_while_the_trainer_is_done_is_not_started_again() -> None:
    stage = rl()
    stage.there["sampler.0"].stubborn = True
    stage.ends("trainer.0", "trainer.1", code=0, turns=2)
    stage.ends("sampler.0", signal=11)
    assert stage.history.count("sampler.0") == 1
    assert stage.pipeline.exit_code == 0


@pytest.mark.parametrize("wait", [("sampler.0",), ("sampler.0", "sampler.1", "sampler.2"), ("service.0",)])
def test_one_that_waits_to_be_started_again_is_over_with_whom_it_served(wait: tuple[str, ...]) -> None:
    stage = rl(backoff_s=1e6)
    for _ in range(2):  # the first start again is at once
        stage.ends(*wait, signal=9)
    assert set(wait) <= {name for name, standing in stage.standings().items() if standing == "waiting"}
    stage.ends("trainer.0", "trainer.1", code=0, turns=10)
    assert stage.pipeline.exit_code == 0


def test_who_is_to_serve_to_the_end_and_ends_with_0_has_failed() -> None:
    stage = rl()
    stage.ends("sampler.2", code=0)
    assert stage.history.count("sampler.2") == 2
    for _ in range(3):
        stage.ends("sampler.2", code=0)
    stage.turn(8)
    assert stage.pipeline.exit_code == 1


def test_one_that_was_preempted_ends_the_pipeline_which_asks_to_be_queued_again() -> None:
    stage = rl()
    stage.ends("trainer.0", code=75, stopped=StoppedRecord("notice /run/preempt", 75, 17, 100), turns=10)
    assert stage.pipeline.exit_code in (75, None)  # as the policy has it
    assert stage.pipeline.exit_code == 75 or stage.history.count("trainer.0") == 2


@pytest.mark.parametrize(
    ("asked", "codes", "exit_code"), [(143, 75, 75), (143, 0, 0), (143, 143, 143), (130, 130, 130), (143, 16, 16)]
)
def test_a_stop_ends_those_first_who_rely_on_others_and_leaves_with_what_the_trainer_says(
    asked: int, codes: int, exit_code: int
) -> None:
    stage = rl()
    stage.there["trainer.0"].obeys_with = stage.there["trainer.1"].obeys_with = codes
    stage.there["sampler.0"].stubborn = True
    stage.pipeline.stop(asked)
    stage.turn(5)
    assert stage.there["trainer.0"].asked_s == []  # as long as a sampler is there
    stage.turn(12, seconds=1.0)
    assert stage.there["sampler.0"].killed
    assert stage.there["trainer.0"].asked_s == [30.0]
    assert stage.pipeline.exit_code == exit_code


def test_a_stop_while_a_role_waits_for_its_next_start_asks_to_go_on() -> None:
    stage = Stage(role("a"), backoff_s=1000.0)
    stage.turn()
    stage.ends("a.0", code=1)
    stage.pipeline.stop()
    stage.turn(3)
    assert stage.pipeline.exit_code == 75


def test_a_second_signal_kills_everything_at_once() -> None:
    stage = rl()
    for stand in stage.there.values():
        stand.stubborn = True
    stage.pipeline.stop()
    stage.turn(3)
    stage.pipeline.kill()
    stage.turn(3)
    assert stage.pipeline.exit_code == 137
    assert all(stand.killed for stand in stage.there.values())


# --- orders --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "again"),
    [
        (RestartWorker("sampler", 1), {"sampler.1"}),
        (RestartWorker("trainer", 1), {"trainer.0", "trainer.1"}),
        (RestartRole("sampler"), {"sampler.0", "sampler.1", "sampler.2"}),
        (RestartRole("trainer"), {"trainer.0", "trainer.1"}),
        (RestartAll(), {"service.0", "trainer.0", "trainer.1", "sampler.0", "sampler.1", "sampler.2"}),
    ],
)
def test_an_order_starts_again_what_it_names_and_is_answered_when_it_is_done(order: Any, again: set[str]) -> None:
    stage = rl()
    before = stage.pids()
    future = stage.pipeline.submit(order)
    assert not future.done()
    stage.turn(12)
    answer = future.result(0)
    assert changed(before, stage.pids()) == again
    assert {f"{each.role}.{each.index}": each.pid for each in answer.standings} == {name: stage.pids()[name] for name in again}
    assert (answer.outcome, {each.attempt for each in answer.standings}) == ("restarted", {2})


def test_what_does_not_exist_is_refused_at_once_by_name() -> None:
    stage = rl()
    with pytest.raises(NotFoundError, match="its roles: service, trainer, sampler") as caught:
        stage.pipeline.submit(RestartRole("samplers"))
    assert kind_of(caught) == "no-such-role"
    with pytest.raises(NotFoundError, match="they are numbered from 0 to 2") as caught:
        stage.pipeline.submit(RestartWorker("sampler", 3))
    assert kind_of(caught) == "no-such-worker"


def test_an_order_with_a_key_is_carried_out_once_however_often_it_is_given() -> None:
    stage = rl()
    first = stage.pipeline.submit(RestartWorker("sampler", 1), "k1")
    assert stage.pipeline.submit(RestartWorker("sampler", 1), "k1") is first
    stage.turn(8)
    again = stage.pipeline.submit(RestartWorker("sampler", 1), "k1")
    stage.turn(8)
    assert again.result(0) == first.result(0)
    assert stage.history.count("sampler.1") == 2
    with pytest.raises(UsageError) as caught:
        stage.pipeline.submit(RestartWorker("sampler", 2), "k1")
    assert kind_of(caught) == "key-reused"


def test_an_order_about_an_attempt_that_is_gone_is_carried_out_already() -> None:
    # The service saw sampler.1 fall, and so did we: its order comes after we have started it again.
    stage = rl()
    stage.ends("sampler.1", signal=9)
    future = stage.pipeline.submit(RestartWorker("sampler", 1, attempt=1))
    stage.turn(8)
    assert (future.result(0).outcome, stage.history.count("sampler.1")) == ("already", 2)
    future = stage.pipeline.submit(RestartRole("sampler", attempt=1))
    stage.turn(8)
    assert future.result(0).outcome == "restarted"
    assert [stage.history.count(f"sampler.{index}") for index in range(3)] == [2, 2, 2]


def test_an_order_does_not_wait_out_a_backoff_and_costs_no_budget() -> None:
    stage = rl(backoff_s=1e6)
    stage.ends("sampler.1", signal=9)
    assert stage.standings()["sampler.1"] == "waiting"
    for _ in range(20):
        stage.pipeline.submit(RestartWorker("sampler", 1))
        stage.turn(4)
    assert stage.standings()["sampler.1"] == "ready"
    assert stage.pipeline.exit_code is None


def test_a_group_of_which_one_is_hastened_comes_back_whole() -> None:
    stage = Stage(role("a", count=2, restart="trainer"), backoff_s=1e3)
    stage.turn(2)
    stage.ends("a.0", signal=9)
    future = stage.pipeline.submit(RestartWorker("a", 0))
    stage.turn(4)
    assert stage.standings() == {"a.0": "ready", "a.1": "waiting"}
    assert future.done()
    stage.turn(4, seconds=1e3)
    assert stage.standings() == {"a.0": "ready", "a.1": "ready"}


def test_now_kills_where_others_have_their_grace() -> None:
    stage = rl()
    for index in (0, 1):
        stage.there[f"sampler.{index}"].stubborn = True
    first, second = stage.there["sampler.0"], stage.there["sampler.1"]
    futures = [stage.pipeline.submit(RestartWorker("sampler", 0, now=True)), stage.pipeline.submit(RestartWorker("sampler", 1))]
    stage.turn(5)
    assert (first.killed, second.killed, second.asked_s) == (True, False, [5.0])
    assert [future.done() for future in futures] == [True, False]
    stage.turn(5, seconds=5.0)
    assert futures[1].done()


def test_an_order_that_comes_during_a_stop_is_refused_and_one_under_way_is_failed() -> None:
    stage = rl()
    stage.there["sampler.1"].stubborn = True
    early = stage.pipeline.submit(RestartWorker("sampler", 1))
    stage.turn(2)
    stage.pipeline.stop()
    stage.turn()
    late = stage.pipeline.submit(RestartWorker("sampler", 2))
    stage.turn(2)
    for future in (early, late):
        with pytest.raises(ServiceError) as caught:
            future.result(0)
        assert kind_of(caught) == "shutting-down"
    assert stage.history.count("sampler.1") == 1


def test_an_order_about_one_that_was_ended_for_good_is_refused() -> None:
    stage = rl()
    stage.there["sampler.0"].stubborn = True
    stage.ends("trainer.0", "trainer.1", code=0, turns=3)
    future = stage.pipeline.submit(RestartRole("sampler"))
    stage.turn()
    with pytest.raises(ServiceError, match="whom it served is done") as caught:
        future.result(0)
    assert kind_of(caught) == "role-over"


def test_one_that_is_done_is_started_again_if_that_is_ordered_by_name_only() -> None:
    stage = Stage(role("prepare"), role("trainer", depends_on=("prepare",)))
    stage.turn(3)
    stage.ends("prepare.0", code=0)
    stage.pipeline.submit(RestartAll())
    stage.turn(8)
    assert stage.history == ["prepare.0", "trainer.0", "trainer.0"]
    stage.pipeline.submit(RestartRole("prepare"))
    stage.turn(8)
    assert stage.history[3:] == ["prepare.0"]


def test_orders_are_carried_out_from_any_thread_of_the_process() -> None:
    stage = rl()
    answers: list[Any] = []
    asking = threading.Thread(
        target=lambda: answers.append(stage.pipeline.carry_out(RestartWorker("sampler", 1), "k", 60.0)), name="asks"
    )
    asking.start()
    while asking.is_alive():
        stage.turn()
    assert [each.outcome for each in answers] == ["restarted"]
    look = stage.pipeline.submit(Look())
    stage.turn()
    assert len(look.result(0).standings) == 6


def test_the_thread_that_runs_a_pipeline_is_not_left_to_wait_for_itself() -> None:
    stage = Stage(role("a"))
    told: list[str] = []

    def tell(event: str, text: str, /, **facts: object) -> None:
        if event == "started":
            with pytest.raises(UsageError) as caught:
                stage.pipeline.carry_out(RestartAll())
            told.append(kind_of(caught))
            stage.pipeline.stop()

    stage.pipeline._tell = stage.pipeline._cast._tell = tell
    stage.pipeline.run()
    assert told == ["own-thread"]


def test_without_an_answer_in_time_whoever_asked_is_told_that_it_may_still_come() -> None:
    stage = rl()
    with pytest.raises(ServiceError) as caught:
        stage.pipeline.carry_out(RestartWorker("sampler", 1), "k", timeout_s=0.0)
    assert kind_of(caught) == "no-answer"


# --- whatever happens ------------------------------------------------------------------------------------------------------

ROLES = ("service.0", "trainer.0", "trainer.1", "sampler.0", "sampler.1", "sampler.2")
falls = st.tuples(st.just("fall"), st.sampled_from(ROLES), st.sampled_from([0, 1, 75, 137, -9, -11]))
orders = st.tuples(
    st.just("order"),
    st.one_of(
        st.builds(RestartWorker, st.just("sampler"), st.integers(0, 2), st.none() | st.integers(1, 4), st.booleans()),
        st.builds(RestartRole, st.sampled_from(["trainer", "service", "sampler"]), st.none(), st.booleans()),
        st.builds(RestartAll, st.booleans()),
    ),
    st.just(0),
)
waits = st.tuples(st.just("wait"), st.sampled_from(["", "x"]), st.integers(0, 40))
stops = st.tuples(st.just("stop"), st.just(""), st.sampled_from([130, 143]))


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(falls | falls | orders | waits | stops, max_size=25), restart=st.sampled_from(["worker", "all"]))
def test_whatever_falls_and_whatever_is_ordered_rules_hold_and_it_comes_to_an_end(steps: list[Any], restart: str) -> None:
    stage = Stage(replace(SERVICE, restart=restart), TRAINER, SAMPLER, backoff_s=10.0)
    futures: list[Any] = []
    for what, which, much in steps:
        if what == "fall" and which in stage.pids():
            stage.ends(which, code=much, turns=0) if much >= 0 else stage.ends(which, signal=-much, turns=0)
        elif what == "order":
            futures.append(stage.pipeline.submit(which))
        elif what == "stop":
            stage.pipeline.stop(much)
        elif what == "wait":
            stage.turn(seconds=float(much))
        stage.turn()
        check_who_stands_on_whom(stage)
    stage.turn(8, seconds=20.0)  # a backoff, and every grace period
    stage.turn(8, seconds=20.0)
    if stage.pipeline.exit_code is None:
        for future in futures:
            assert future.done(), "an order is never carried out"
        assert set(stage.standings().values()) in ({"ready", "done"}, {"ready"}), "one waits for ever, or all is done"
    stage.pipeline.stop()
    stage.turn(30, seconds=10.0)
    assert stage.pipeline.exit_code is not None
    assert stage.pids() == {}
    assert all(future.done() for future in futures)


def check_who_stands_on_whom(stage: Stage) -> None:
    """Break nothing here: ranks of one start share their meeting point and their attempt, and no other start has it."""
    launches = [stage.there[name].launch for name in ("trainer.0", "trainer.1") if name in stage.pids()]
    for one, other in itertools.pairwise(launches):
        assert one.attempt == other.attempt
        assert one.environment["MASTER_PORT"] == other.environment["MASTER_PORT"]


def test_an_order_under_way_is_failed_where_something_breaks_off_the_run() -> None:
    stage = Stage(role("a"), role("b", depends_on=("a",)))
    stage.turn(4)
    future = stage.pipeline.submit(RestartAll())
    stage.turn()
    assert not future.done()

    def breaks(_: object) -> Stand:
        raise RuntimeError("a fault of our own")

    stage.pipeline._cast._start = breaks
    with pytest.raises(RuntimeError, match="a fault of our own"):
        stage.pipeline.run()
    assert isinstance(future.exception(0), ServiceError)
