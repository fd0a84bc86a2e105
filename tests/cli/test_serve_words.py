"""What `milepost serve` says to people, and what it writes down, for all that may happen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from milepost.cli.serve_words import Telling
from milepost.clock import FakeClock
from milepost.errors import StoreError
from milepost.records import Version
from milepost.service.adopting import Found
from milepost.service.core.events import Tick
from milepost.service.core.records import (
    Commit,
    Committed,
    Dropped,
    Held,
    Joined,
    Resumed,
    RolledBack,
    Saved,
    Shard,
    Stored,
    Weights,
)
from milepost.service.server.happening import Failed, InTouch, Left, Mended, Silent
from milepost.supervise.journal import Journal
from milepost.supervise.printing import Console

FULL = StoreError("no space is left", kind="disk-full", retryable=True, hint="free some")


def weights(number: int, parent: int | None = None) -> Weights:
    at, before = Commit(1, number), None if parent is None else Commit(1, parent)
    version = Version("run", 100 + number, 0)
    return Weights(at, version, (Shard("weights", 2048, "0" * 32),), before, "trainer", "1", str(number))


def server(live: Weights | None = None, **more: Any) -> Any:
    endpoint = SimpleNamespace(run_id="3f0e", address="127.0.0.1:7", pid=12, term=2)
    rest = {"durable": None, "found": Found(), "was_live": None, "restored_from": "", "reaped": ()}
    return SimpleNamespace(endpoint=endpoint, live=live, **(rest | more))


class Told:
    """Be the one who tells, and what people and programs have read."""

    def __init__(self, path: Path, read: Callable[[], str], *, as_json: bool = False) -> None:
        self.clock, self._path, self._read = FakeClock(), path, read
        self.journal = Journal(Console(), self.clock, path, as_json=as_json, name="serve")
        self.telling = Telling(self.journal, self.clock, "runs/ppo")

    def __call__(self, *what: Any, seconds: float = 0) -> list[str]:
        for each in what:
            self.telling(each)
        self.clock.advance(seconds=seconds)
        self.telling(Tick())
        return [line.removeprefix("[serve] ") for line in self._read().splitlines()]

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._path.read_text().splitlines()]


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Told:
    told = Told(tmp_path / "log", lambda: capsys.readouterr().err)
    told.telling.begun(server())
    told()
    return told


def test_people_are_told_of_commits_at_once_and_then_twice_a_minute_and_the_log_of_each(told: Told) -> None:
    assert told(Committed(weights(1)), Stored(Commit(1, 1))) == ["live v1 step 101, durable v1"]
    for number in range(2, 200):
        assert told(Committed(weights(number, number - 1))) == []
    assert told(Stored(Commit(1, 150)), Dropped(Commit(1, 1)), Saved(Commit(1, 150), 12), seconds=29.9) == []
    assert told(seconds=0.2) == ["live v199 step 299, durable v150; 198 commits since the last of these lines"]
    assert told(seconds=3600) == []
    assert told(Stored(Commit(1, 199))) == ["live v199 step 299, durable v199; 0 commits since the last of these lines"]
    events = [each["event"] for each in told.log]
    assert (events.count("committed"), events.count("durable"), events.count("dropped"), events.count("linked")) == (199, 3, 1, 1)


def test_what_was_not_told_yet_is_told_at_the_end(told: Told) -> None:
    told(Committed(weights(1)))
    assert told(Committed(weights(2, 1))) == []
    told.telling.ended()
    assert told() == [
        "live v2 step 102, durable none; 1 commit since the last of these lines",
        "ended in good order; versions in memory stay there for the next start; milepost unload runs/ppo gives that memory back",
    ]


def test_a_program_is_told_of_each_and_of_no_sums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(tmp_path / "log", lambda: capsys.readouterr().err, as_json=True)
    told.telling.begun(server())
    lines = told(Committed(weights(1)), Stored(Commit(1, 1)), Dropped(Commit(1, 1)), Saved(Commit(1, 1), 3), seconds=60)
    assert [json.loads(line)["event"] for line in lines] == ["ready", "committed", "durable", "dropped", "linked"]
    assert [json.loads(line) for line in lines] == told.log


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (Joined("s", "sampler", "2", 0, None), "s has joined as a sampler"),
        (InTouch("s"), "s is in touch again"),
        (Silent("s", 60), "s was not heard of for 60s: what it reads is kept for it no more"),
        (Left("s"), "s has left"),
        (RolledBack(Commit(1, 3), "it fell"), "back to v3: it fell; what came after it is a lost branch"),
        (Held("t"), "t holds: nobody is given weights until it resumes"),
        (Resumed("t"), "t holds no more"),
        (
            Failed("spill", FULL),
            "a version cannot be brought to disk: no space is left (disk-full); it is tried again, and status says more",
        ),
        (Mended("spill"), "versions are brought to disk again"),
    ],
)
def test_what_matters_is_told_at_once(told: Told, what: Any, said: str) -> None:
    assert told(what) == [said]
    assert told.log[-1]["text"] == said


def test_a_process_that_takes_the_place_of_one_that_is_here_has_replaced_it(told: Told) -> None:
    told(Joined("s", "sampler", "1", 0, None))
    assert told(InTouch("s")) == []  # that was said
    assert told(Joined("s", "sampler", "2", 0, None)) == ["s was replaced: another process is this sampler now"]
    told(Left("s"))
    assert told(Joined("s", "sampler", "3", 0, None)) == ["s has joined as a sampler"]


def test_a_lost_branch_is_told_with_the_commit_that_left_it(told: Told) -> None:
    told(Committed(weights(1)), Committed(weights(2, 1)), Committed(weights(3, 2)))
    assert told(Committed(weights(4, 1))) == ["v4 is live: step 104, 2 KiB, from trainer; what came after v1 is a lost branch"]
    assert told(RolledBack(Commit(1, 1), "")) == ["back to v1: no reason was given; what came after it is a lost branch"]
    assert told(Committed(weights(5, 1))) == []


def test_a_start_says_what_it_found_and_what_it_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(tmp_path / "log", lambda: capsys.readouterr().err)
    told.telling(Joined("s", "sampler", "1", 0, None))  # who is there before that was said comes after it
    found = Found(memory=frozenset([Commit(1, 1)]), disk=frozenset([Commit(1, 1), Commit(1, 2)]))
    more = {"was_live": Commit(1, 3), "restored_from": "snapshots/7", "reaped": ("a", "b")}
    told.telling.begun(server(weights(2, 1), found=found, durable=weights(2, 1), **more))
    assert told() == [
        "run 3f0e serves at 127.0.0.1:7 (pid 12, term 2): live v2 step 102, durable v2",
        "the journal was restored from snapshots/7: what came after it is lost",
        "found 1 version in memory, 2 on disk",
        "live went back from v3 to v2: the bytes of what came after are gone",
        "gave back memory of 2 services that will not come back",
        "s has joined as a sampler",
    ]
    assert told(Committed(weights(4, 2))) == ["live v4 step 104, durable v2"]
