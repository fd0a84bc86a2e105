"""The kind of fault is told from what the writer before left behind. B11"""

from __future__ import annotations

from dataclasses import replace

import pytest

from milepost.lifecycle.faults import REBUILT, REUSED, Traces, plan
from milepost.publish.term import Identity
from milepost.records import Fence

HERE = Identity("node-a", "boot-1", 200)
BEFORE = Fence(3, "claim", "node-a", "boot-1", 100, "2026-11-30T03:00:00Z")
KILLED = Traces(BEFORE, HERE, abandoned=True)
DAMAGED = "generation 5 damaged: a blob is gone"


@pytest.mark.parametrize(
    ("traces", "kind", "says"),
    [
        (Traces(None, HERE, abandoned=False), "none", "no writer before"),
        (replace(KILLED, abandoned=False), "none", "pid 100 had closed"),
        (KILLED, "soft", "pid 100 on this host is gone"),
        (replace(KILLED, forced=True), "soft", "was taken over"),
        (replace(KILLED, previous=replace(BEFORE, host="node-b")), "hard", "it ran on node-b, this is node-a"),
        (replace(KILLED, previous=replace(BEFORE, boot_id="boot-0")), "hard", "started anew"),
        (replace(KILLED, previous=replace(BEFORE, host="node-b"), abandoned=False), "hard", "node-b"),
    ],
)
def test_the_kind_follows_from_host_boot_and_whether_the_guard_was_given_up(traces: Traces, kind: str, says: str) -> None:
    found = plan(traces, (), 7)
    assert found.kind == kind
    assert says in found.seen_by
    assert found.source == "generation 7"
    assert (found.reused, found.rebuilt) == (REUSED[found.kind], REBUILT[found.kind])


def test_damage_outranks_whatever_ended_the_process() -> None:
    for traces in (KILLED, replace(KILLED, previous=replace(BEFORE, host="node-b")), replace(KILLED, abandoned=False)):
        found = plan(traces, (DAMAGED,), 4)
        assert found.kind == "data"
        assert found.seen_by == DAMAGED


def test_a_start_without_a_generation_to_take_is_a_fresh_one() -> None:
    assert plan(KILLED, (), 0).source == "a fresh start"
