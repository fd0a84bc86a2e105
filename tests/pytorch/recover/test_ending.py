"""Ranks that hear of their end at different times, or not all of them, leave at one dump; one shows the run. A5, B11"""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from milepost.clock import FakeClock, SystemClock
from milepost.engine import beats
from milepost.engine.supervised import SUPERVISED
from milepost.errors import MilepostError
from milepost.lifecycle.stopping import INTERRUPTED, Stop, Stopped
from milepost.pytorch.ranks import Ranks
from milepost.pytorch.recover.agreeing import TRAIN, Verdict
from milepost.pytorch.recover.ending import Ending
from milepost.supervise.beating import retries_of
from tests.pytorch.dcp.ranks import run

URL = "/runs/mine"


def ending(stop: Stop | bool = False, retries: int = 3) -> Ending:
    made = Ending(SystemClock(), URL, stop=stop)
    made.begin(Ranks(None), retries)
    made.trains(0, 0, None)
    return made


def until(step: int, one: Ending) -> tuple[int, Verdict]:
    """Train from a step until the ranks leave, and return where and why."""
    while True:
        verdict = one.at(step)[2]
        if verdict.leaves:
            return step, verdict
        step += 1


def nothing_heard_is_one_exchange(rank: int, folder: Path) -> object:
    import torch.distributed as dist

    one = ending()
    one.stop_by(10**6, path="limit 24h", at_once=False)
    with mock.patch.object(dist, "all_gather_object", side_effect=AssertionError("more than one exchange")):
        answers = [one.at(step, is_due=step == 3 or rank == 1, has_failed=step == 4 and rank == 1) for step in range(5)]
    one.close()
    return [answer[:2] for answer in answers], {answer[2] for answer in answers} == {TRAIN}


def one_rank_is_told(rank: int, folder: Path) -> object:
    one = ending()
    if rank == 1:
        one.stop_by(30, path="notice", exit_code=75)
    step, verdict = until(7, one)
    one.close()
    assert verdict.request is not None
    return step, verdict.request.path, verdict.request.exit_code


def a_signal_strikes_one_rank_in_the_midst_of_a_step(rank: int, folder: Path) -> object:
    one = ending(Stop(signals=("TERM", "INT"), grace="5m"))
    one.at(1)
    if rank == 0:
        signal.raise_signal(signal.SIGINT)
    step, verdict = until(2, one)
    stopped = one.ended(verdict, step, None, None)
    one.close()
    return step, stopped.code, stopped.path, signal.getsignal(signal.SIGINT) is signal.default_int_handler


def early_saves_are_made_once_and_again_after_one_that_failed(rank: int, folder: Path) -> object:
    one = ending()
    if rank == 1:
        one.stop_by(10**6, path="notice ec2", at_once=False, early=True)
    found = [one.at(step)[2].action for step in range(3)]
    with pytest.raises(OSError, match="full"), one.saving(3, TRAIN):
        raise OSError("full")
    found += [one.at(step)[2].action for step in range(3, 5)]
    if rank == 1:
        one.withdraw("notice ec2")
    found += [one.at(5)[2].action]
    one.close()
    return found


def ranks_apart(rank: int, folder: Path) -> object:
    one = ending()
    try:
        one.at(4 + rank)
    except MilepostError as error:
        return error.kind, error.facts["first"], error.facts["last"]
    finally:
        one.close()
    return "went on"


def one_of_those_who_share_a_folder_beats(rank: int, folder: Path) -> object:
    os.environ[SUPERVISED] = str(folder)
    one = ending(retries=5)
    one.published("a-run", 3)
    shared = [beats.read(path) for path in folder.glob("beat-*")]
    one.beat.at(9)
    Ranks(None).highest([0])  # both have looked
    verdict = Verdict("leave", one._requests.leading or mock.Mock(path="SIGTERM", exit_code=75))
    one.ended(verdict, 9, None, None)
    Ranks(None).highest([0])
    found = len(list(folder.glob("beat-*"))), retries_of(folder), len(list(folder.glob("stopped-*.json")))
    one.close()
    own = folder / f"own-{rank}"
    own.mkdir()
    os.environ[SUPERVISED] = str(own)
    alone = ending(retries=1)
    alone.close()
    del os.environ[SUPERVISED]
    told = [(each.root, each.run_id, each.generation) for each in shared if each is not None]
    return told, found, len(list(own.glob("beat-*"))), retries_of(own)


STORIES: list[Callable[[int, Path], object]] = [
    nothing_heard_is_one_exchange,
    one_rank_is_told,
    a_signal_strikes_one_rank_in_the_midst_of_a_step,
    early_saves_are_made_once_and_again_after_one_that_failed,
    ranks_apart,
    one_of_those_who_share_a_folder_beats,
]


def all_stories(rank: int, folder: str) -> dict[str, Any]:
    return {each.__name__: each(rank, Path(folder)) for each in STORIES}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Tell all stories in one launch of three ranks: to start them takes seconds."""
    place = tmp_path_factory.mktemp("ranks")
    (place / "supervised").mkdir()
    return run(3, all_stories, place, str(place / "supervised"))


def test_where_nobody_has_heard_anything_a_dump_is_one_exchange_and_rank_0_says_what_is_due(told: list[dict[str, Any]]) -> None:
    due = [(False, False), (False, False), (False, False), (True, False), (False, True)]
    assert [rank["nothing_heard_is_one_exchange"] for rank in told] == [(due, True)] * 3


def test_a_stop_that_reaches_one_rank_only_ends_all_at_one_step_with_one_code(told: list[dict[str, Any]]) -> None:
    assert [rank["one_rank_is_told"] for rank in told] == [(7, "notice", 75)] * 3


def test_a_signal_to_one_rank_ends_all_and_its_handler_is_gone_afterwards(told: list[dict[str, Any]]) -> None:
    found = [rank["a_signal_strikes_one_rank_in_the_midst_of_a_step"] for rank in told]
    assert found == [(2, INTERRUPTED, "SIGINT", True)] * 3


def test_a_notice_to_one_rank_is_one_early_save_of_all_and_one_more_where_that_failed(told: list[dict[str, Any]]) -> None:
    found = [rank["early_saves_are_made_once_and_again_after_one_that_failed"] for rank in told]
    assert found == [["save", "train", "train", "save", "train", "train"]] * 3


def test_ranks_that_are_not_at_one_step_are_told_so_all_of_them(told: list[dict[str, Any]]) -> None:
    assert [rank["ranks_apart"] for rank in told] == [("ranks-apart", 4, 6)] * 3


def test_of_the_ranks_that_one_supervisor_looks_after_the_first_beats_and_each_says_that_it_left(
    told: list[dict[str, Any]],
) -> None:
    found = [rank["one_of_those_who_share_a_folder_beats"] for rank in told]
    assert found[0] == ([(URL, "a-run", 3)], (1, 5, 3), 1, 1)
    assert [each[1:] for each in found] == [((1, 5, 3), 1, 1)] * 3


# -- one rank, in this process --------------------------------------------------------------------------------------------------


def test_a_rank_by_itself_needs_no_process_group_and_says_what_it_loads_and_publishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SUPERVISED, str(tmp_path))
    clock = FakeClock()
    one = Ending(clock, URL, stop=False)
    one.begin(Ranks(None), 2)
    page = next(tmp_path.glob("beat-*"))

    def now() -> tuple[object, ...]:
        found = beats.read(page)
        assert found is not None
        return found.phase, found.step, found.loading, found.resumed, found.generation

    assert now() == ("claiming", -1, 0, 0, 0)
    one.loading(mock.Mock(number=7, run_id="a-run"))
    assert now() == ("resuming", -1, 7, 0, 0)
    one.trains(7, 70, None)
    assert now() == ("training", 70, 0, 7, 0)
    with one.saving(71, TRAIN) as flight:
        assert now()[0] == "saving"
        clock.advance(seconds=3.0)
        with flight:
            clock.advance(seconds=2.0)
        one.published("a-run", 8)
    one.at(72)
    assert now() == ("training", 72, 0, 7, 8)
    assert one.meter.costs.duration_s == pytest.approx(5.0)
    with one.saving(73, Verdict("leave", mock.Mock(path="SIGTERM"))):
        assert now()[0] == "stopping"
    one.close()
    assert now()[0] == "closed"


def test_a_save_beside_training_is_no_silence_and_counts_until_it_is_durable(tmp_path: Path) -> None:
    clock = FakeClock()
    one = Ending(clock, URL, stop=False)
    one.begin(Ranks(None), 0)
    one.trains(0, 0, None)
    with one.saving(1, TRAIN) as flight:
        flight.__enter__()
    clock.advance(seconds=1.0)
    one.at(2)
    assert one.beat.phase == "saving"
    clock.advance(seconds=1.0)
    flight.__exit__(None, None, None)
    one.at(3)
    assert (one.beat.phase, one.meter.costs.duration_s) == ("training", pytest.approx(2.0))
    one.close()


def test_the_last_step_is_left_in_a_record_and_stopped_is_raised_with_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SUPERVISED, str(tmp_path))
    one = ending()
    one.stop_by(30, path="notice ec2")
    step, verdict = until(5, one)
    stopped = one.ended(verdict, step, mock.Mock(number=9), None)
    one.close()
    assert isinstance(stopped, Stopped)
    assert (stopped.code, stopped.path) == (75, "notice ec2")
    record = json.loads((tmp_path / f"stopped-{os.getpid()}.json").read_text())
    assert record == {"path": "notice ec2", "exit_code": 75, "generation": 9, "step": 5, "complete": True}


@pytest.mark.parametrize(
    ("environment", "retries", "says"),
    [
        ({}, 3, True),
        ({}, 0, False),
        ({"TORCHELASTIC_MAX_RESTARTS": "2"}, 3, False),
        ({"TORCHELASTIC_MAX_RESTARTS": "0"}, 3, True),
    ],
)
def test_where_nobody_would_start_it_again_that_is_said(
    environment: dict[str, str], retries: int, says: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(SUPERVISED, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.INFO, logger="milepost"):
        ending(retries=retries).close()
    assert ("no-restarts" in caplog.text) == says
