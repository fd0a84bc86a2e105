"""What a safe point is for follows from what is to end the process, what is left, and what a save takes. B11"""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import UsageError
from milepost.lifecycle.costs import Costs
from milepost.lifecycle.stopping import Stop, StopBy, Stopped, decide, expected_s, last_call_ns, leading, longest_s

S = 1_000_000_000
KNOWN = Costs(saves=9, duration_s=4.0, slowest_s=10.0)
TERM = StopBy("SIGTERM", 100 * S)
INT = StopBy("SIGINT", None, exit_code=130)
NOTICE = StopBy("notice", 100 * S, at_once=False, early=True)
LIMIT = StopBy("limit 24h", 100 * S, at_once=False)

REQUESTS = st.builds(
    StopBy,
    path=st.sampled_from(["SIGTERM", "SIGINT", "notice", "limit"]),
    deadline_ns=st.none() | st.integers(0, 10**15),
    exit_code=st.sampled_from([75, 130]),
    at_once=st.booleans(),
    early=st.booleans(),
)
SECONDS = st.floats(0, 1e6)
COSTS = st.builds(Costs, saves=st.integers(0, 100), duration_s=SECONDS, slowest_s=SECONDS)
SIZES = st.integers(0, 1 << 50)


@pytest.mark.parametrize(
    ("requests", "now_s", "more", "decision"),
    [
        ([], 0, {}, "train"),
        ([TERM], 0, {}, "leave"),
        ([TERM], 96, {}, "leave"),  # 4 s are left, and 4 s is what a save usually takes
        ([TERM], 97, {}, "leave-essential"),
        ([TERM], 99.9, {}, "leave-essential"),
        ([TERM], 100, {}, "leave"),  # the kill did not come: the deadline was wrong
        ([TERM], 5000, {}, "leave"),
        ([INT], 5000, {}, "leave"),
        ([LIMIT], 0, {}, "train"),
        ([LIMIT], 88, {}, "train"),
        ([LIMIT], 89, {}, "leave"),  # the slowest save took 10 s, and a second is kept
        ([LIMIT], 88, {"gap_s": 1.0}, "leave"),  # the next safe point would be too late
        ([LIMIT], 30, {"gap_s": 60.0}, "leave"),
        ([LIMIT], 97, {}, "leave-essential"),  # a rollout that was longer than any before
        ([LIMIT], 5000, {}, "leave"),
        ([NOTICE], 0, {}, "save"),
        ([NOTICE], 0, {"saved": ["notice"]}, "train"),
        ([NOTICE], 0, {"saved": ["another"]}, "save"),
        ([NOTICE], 95, {"saved": ["notice"]}, "leave"),
        ([NOTICE], 95, {}, "leave"),
        ([NOTICE, LIMIT], 0, {"saved": ["notice"]}, "train"),
        ([NOTICE, TERM], 0, {}, "leave"),
        ([INT, LIMIT], 0, {}, "leave"),
        ([INT, LIMIT], 97, {}, "leave-essential"),
        ([StopBy("notice", None, at_once=False, early=True)], 10**6, {"saved": ["notice"]}, "train"),
    ],
)
def test_a_safe_point_is_for(requests: list[StopBy], now_s: float, more: dict[str, Any], decision: str) -> None:
    assert decide(requests, round(now_s * S), KNOWN, **more) == decision


@pytest.mark.parametrize(
    ("size_bytes", "left_s", "decision"),
    [(0, 1, "leave"), (0, 0.4, "leave-essential"), (1 << 30, 33, "leave"), (1 << 30, 32, "leave-essential")],
)
def test_before_any_save_was_measured_its_size_is_what_is_known(size_bytes: int, left_s: float, decision: str) -> None:
    now_ns = 100 * S - round(left_s * S)
    assert decide([TERM], now_ns, Costs(), size_bytes=size_bytes) == decision
    assert decide([TERM], now_ns, KNOWN, size_bytes=size_bytes) == ("leave" if left_s >= 4 else "leave-essential")


@given(st.lists(REQUESTS, min_size=1, max_size=5))
def test_the_earliest_deadline_counts_and_at_once_wins(requests: list[StopBy]) -> None:
    first = leading(requests)
    assert first is not None
    deadlines = [each.deadline_ns for each in requests if each.deadline_ns is not None]
    assert first.deadline_ns == (min(deadlines) if deadlines else None)
    assert first.at_once == any(each.at_once for each in requests)
    assert first.early == any(each.early for each in requests)
    assert (first.path, first.exit_code) in {(each.path, each.exit_code) for each in requests if each.at_once == first.at_once}


@given(st.lists(REQUESTS, max_size=5), st.integers(0, 10**15), COSTS, SIZES, SECONDS)
def test_a_run_that_is_told_to_leave_leaves_and_one_that_is_not_trains(
    requests: list[StopBy], now_ns: int, costs: Costs, size_bytes: int, gap_s: float
) -> None:
    decision = decide(requests, now_ns, costs, size_bytes=size_bytes, gap_s=gap_s)
    first = leading(requests)
    if first is None:
        assert decision == "train"
    elif first.at_once or (first.deadline_ns is not None and now_ns >= first.deadline_ns):
        assert decision in ("leave", "leave-essential")
    if first is not None and first.deadline_ns is not None and now_ns >= first.deadline_ns:
        assert decision == "leave", "late is no reason to save less"
    if decision == "save":
        assert decide(requests, now_ns, costs, size_bytes=size_bytes, gap_s=gap_s, saved=[r.path for r in requests]) == "train"


@given(st.lists(REQUESTS, min_size=1, max_size=5), st.integers(0, 10**12), st.integers(0, 10**12), COSTS, SIZES, SECONDS)
def test_who_leaves_now_would_leave_later_too(
    requests: list[StopBy], now_ns: int, later_ns: int, costs: Costs, size_bytes: int, gap_s: float
) -> None:
    more: dict[str, Any] = {"size_bytes": size_bytes, "gap_s": gap_s}
    if decide(requests, now_ns, costs, **more).startswith("leave"):
        assert decide(requests, now_ns + later_ns, costs, **more).startswith("leave")


@given(st.lists(REQUESTS, min_size=1, max_size=5), st.integers(0, 10**15), COSTS, SIZES, SECONDS)
def test_who_may_wait_leaves_before_the_last_call_or_at_a_safe_point_nobody_could_have_foreseen(
    requests: list[StopBy], now_ns: int, costs: Costs, size_bytes: int, gap_s: float
) -> None:
    last_ns = last_call_ns(requests, costs, size_bytes)
    if last_ns is not None and decide(requests, now_ns, costs, size_bytes=size_bytes, gap_s=gap_s) == "train":
        assert now_ns + gap_s * S <= last_ns + 1e-6 * abs(last_ns) + 1


@given(COSTS, SIZES)
def test_the_last_call_leaves_more_than_a_save_is_expected_to_take(costs: Costs, size_bytes: int) -> None:
    assert longest_s(costs, size_bytes) > expected_s(costs, size_bytes)
    assert longest_s(costs, size_bytes) >= costs.slowest_s


def test_there_is_no_last_call_without_a_deadline() -> None:
    assert last_call_ns([], KNOWN, 0) is None
    assert last_call_ns([INT], KNOWN, 0) is None
    assert last_call_ns([INT, LIMIT], KNOWN, 0) == 89 * S


@pytest.mark.parametrize(
    "wrong",
    [
        {"signals": "TERM"},
        {"signals": ("SIGTERM",)},
        {"signals": ("KILL",)},
        {"signals": ("STOP",)},
        {"signals": (15,)},
        {"signals": ("_DFL",)},
        {"grace": 0},
        {"grace": True},
        {"grace": "soon"},
        {"grace": -1},
        {"limit": "0s"},
        {"limit": float("nan")},
    ],
    ids=str,
)
def test_what_cannot_be_listened_to_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        Stop(**wrong)
    assert caught.value.kind in ("bad-setting", "bad-duration")


def test_the_settings_are_frozen_and_have_the_documented_defaults() -> None:
    stop = Stop()
    assert (stop.signals, stop.grace, stop.notice, stop.limit, stop.slurm) == (
        ("TERM", "INT", "USR1", "USR2"),
        None,
        None,
        None,
        True,
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        stop.slurm = False  # type: ignore[misc]


def test_it_ends_the_process_with_its_code_and_no_training_loop_catches_it_by_accident() -> None:
    stopped = Stopped(75, "SIGTERM", None)
    assert isinstance(stopped, SystemExit)
    assert not isinstance(stopped, Exception)
    for each in (stopped, pickle.loads(pickle.dumps(stopped))):  # a pool of processes passes on what ends one of them
        assert (each.code, each.path, each.summary) == (75, "SIGTERM", None)
