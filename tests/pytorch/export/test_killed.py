"""An export is whole under its name, or not there: killed, failing or without power at every file operation. A1"""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest

from milepost.clock import SystemClock
from milepost.errors import StoreError
from milepost.pytorch import Saver
from milepost.pytorch.export.naming import leftover_of, step_in
from milepost.store import posix as posix_calls
from milepost.store.posix import Posix
from milepost.testing.faults import count_operations, fail_at, run_and_kill
from milepost.testing.power import Cut, Recorder, replay
from tests.power.drops import Dropping
from tests.pytorch.export.made import contents, step, value_of


@pytest.fixture(autouse=True)
def _syncs_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync nothing for real: a kill needs none of it, the power cut has a disk of its own, and here are thousands of them."""
    monkeypatch.setattr(posix_calls, "_fsync", lambda _: None)
    monkeypatch.setattr(posix_calls, "_sync_directory", lambda _: None)


def saver(place: Path, posix: Posix | None = None, keep: int | None = None) -> Saver:
    return Saver(
        place, user="me", experiment="e", trial="t", mode="sync", keep=keep, max_shard=60, clock=SystemClock(), posix=posix
    )


def exports(place: Path) -> dict[int, float]:
    """Return step and value of every export, each of which must be whole."""
    directory = place / "checkpoints" / "me" / "e" / "t" / "default"
    if not directory.exists():
        return {}
    found = {}
    for path in directory.iterdir():
        name = step_in(path.name)
        if name is None:
            assert leftover_of(path.name), path
        else:
            found[name[0]] = value_of(path)
    return found


def nothing_is_left(place: Path) -> None:
    directory = place / "checkpoints" / "me" / "e" / "t" / "default"
    assert [path.name for path in directory.iterdir() if step_in(path.name) is None] == []


def test_a_kill_at_any_file_operation_leaves_whole_exports_only_and_the_next_export_tidies_up(tmp_path: Path) -> None:
    for number in itertools.count():
        place = tmp_path / str(number)
        killed = run_and_kill(lambda posix, place=place: saver(place, posix).save(contents(1.0), step(0)), number)  # type: ignore[misc]
        assert exports(place) in (({}, {0: 1.0}) if killed else ({0: 1.0},))
        saver(place).save(contents(2.0), step(1))
        assert exports(place)[1] == 2.0
        nothing_is_left(place)
        if not killed:
            break
    assert number > 20


def test_a_kill_while_an_export_is_replaced_leaves_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    for number in itertools.count():
        place = tmp_path / str(number)
        saver(place).save(contents(1.0), step(0))
        killed = run_and_kill(lambda posix, place=place: saver(place, posix).save(contents(2.0), step(0)), number)  # type: ignore[misc]
        saver(place).save(contents(3.0), step(1))  # what was hidden between the two renames is back
        assert exports(place) in ({0: 1.0, 1: 3.0}, {0: 2.0, 1: 3.0})
        nothing_is_left(place)
        if not killed:
            break
    assert exports(place) == {0: 2.0, 1: 3.0}


def test_a_kill_while_older_exports_go_leaves_the_newest(tmp_path: Path) -> None:
    for number in itertools.count():
        place = tmp_path / str(number)
        for before in range(2):
            saver(place).save(contents(before), step(before))
        killed = run_and_kill(lambda posix, place=place: saver(place, posix, keep=1).save(contents(2.0), step(2)), number)  # type: ignore[misc]
        found = exports(place)
        assert max(found) >= 1
        assert all(value == name for name, value in found.items())
        saver(place, keep=1).save(contents(3.0), step(3))
        assert exports(place) == {3: 3.0}
        nothing_is_left(place)
        if not killed:
            break


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_at_any_operation_fails_the_export_and_leaves_what_was_there(number: int, tmp_path: Path) -> None:
    operations = len(count_operations(lambda posix: saver(tmp_path / "counted", posix).save(contents(1.0), step(0))))
    for at in range(operations):
        place = tmp_path / str(at)
        saver(place).save(contents(1.0), step(0))
        try:
            saver(place, fail_at(at, number), keep=1).save(contents(2.0), step(1))
        except StoreError as error:
            assert error.kind in ("disk-full", "io")  # noqa: PT017 - not every operation's failure fails the export
            assert exports(place)[0] == 1.0
        else:
            assert exports(place)[1] == 2.0
        saver(place, keep=1).save(contents(3.0), step(2))
        assert exports(place) == {2: 3.0}
        nothing_is_left(place)


def act(place: Path, recorder: Recorder) -> None:
    for number in range(3):
        saver(place, recorder, keep=2).save(contents(number), step(number))
        recorder.note("acknowledged", step=number)
    saver(place, recorder, keep=2).save(contents(9.0), step(2))
    recorder.note("again")


def check(cut: Cut, place: Path) -> None:
    told = [facts["step"] for facts in cut.noted("acknowledged")]
    found = exports(place)
    assert set(found.values()) <= {0.0, 1.0, 2.0, 9.0}
    if cut.noted("again"):
        assert found[2] == 9.0
    saver(place, keep=3).save(contents(5.0), step(8))
    found = exports(place)
    assert found[8] == 5.0
    if told:
        assert max(told) in found
        assert found[max(told)] in (max(told), 9.0)
    nothing_is_left(place)


def test_a_power_cut_anywhere_leaves_every_acknowledged_export_whole() -> None:
    tally = replay(act, check, limit=250)
    assert tally.lost == 0, tally.failures[0]
    assert tally.cuts >= 200


@pytest.mark.parametrize(
    "left_out", [("fsync", "commit"), ("sync_directory", "commit"), ("sync_directory", "publish"), ("sync_directory", "remove")]
)
def test_each_sync_of_an_export_is_needed(left_out: tuple[str, str]) -> None:
    assert replay(act, check, inner=Dropping(*left_out), limit=600, lost_at_most=1).lost == 1
