"""What `milepost run` says to the next start about where to go on from holds for sharded loads, on all ranks alike. B11, B16"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from unittest import mock

import pytest

from milepost.engine.asked import _heads
from milepost.engine.supervised import RESUME, SKIP
from milepost.errors import CorruptError, UsageError
from milepost.lifecycle.retain import Keep
from milepost.publish.view import read
from milepost.pytorch.dcp import RunWriter, give_up, load, save
from tests.engine.training import local
from tests.pytorch.dcp.ranks import run
from tests.pytorch.dcp.states import blank, sharded
from tests.pytorch.dcp.test_one_rank import state

KEEP = Keep(last=9)


@pytest.fixture
def run_id(root: str) -> str:
    """Make a run with the generations 1, 2 and 3, of the steps 10, 20 and 30, as a process that has ended."""
    for step in (10, 20, 30):
        save(state(step), RunWriter(root, step=step, keep=KEEP), no_dist=True)
    give_up(root)
    _heads.clear()
    return read(local(Path(root))).run_id


def test_the_generation_asked_for_stands_for_the_latest_and_what_is_saved_next_goes_back_to_it(
    root: str, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RESUME, f"another:7,{run_id}:2")
    assert load(state(0), root, no_dist=True).step == 20
    assert load(state(0), root, which=3, no_dist=True).step == 30, "another word for which counts more"
    assert load(state(0), root, no_dist=True).step == 20
    saved = save(state(21), RunWriter(root, step=21, keep=KEEP), no_dist=True)
    view = read(local(Path(root)))
    assert saved.number == 4
    assert sorted(view.line) == [1, 2, 4], "what was stepped back from is left behind"
    assert 3 in view.live
    assert load(state(0), root, no_dist=True).step == 21, "what this process has published is newer than what was asked for"


def test_a_process_that_claims_and_saves_before_it_loads_is_not_sent_back_behind_its_own_save(
    root: str, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RESUME, f"{run_id}:2")
    save(state(31), RunWriter(root, step=31, keep=KEEP), no_dist=True)
    assert load(state(0), root, no_dist=True).step == 31


def test_where_the_one_asked_for_is_not_there_or_is_damaged_the_latest_is_taken_and_that_is_said(
    root: str, run_id: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(RESUME, f"{run_id}:7")
    with caplog.at_level(logging.WARNING, logger="milepost"):
        assert load(state(0), root, no_dist=True).step == 30
    assert "generation 7 was asked for, and cannot be gone on from" in caplog.text
    for blob in read(local(Path(root))).live[1].blobs:
        path = Path(root) / blob.name
        path.write_bytes(path.read_bytes()[:-8] + b"\xff" * 8)
    monkeypatch.setenv(RESUME, f"{run_id}:1")
    restored = load(state(0), root, no_dist=True)
    assert restored.step == 30
    assert any("generation 1 damaged" in skipped for skipped in restored.skipped)


def test_a_generation_that_kills_its_loader_is_passed_over_by_who_only_reads_and_marked_by_who_claims(
    root: str, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SKIP, f"{run_id}:3,{run_id}:9")
    restored = load(state(0), root, no_dist=True)
    assert restored.step == 20
    assert any("generation 3 kills-loader" in skipped for skipped in restored.skipped)
    with pytest.raises(CorruptError):
        load(state(0), root, which=3, no_dist=True)
    assert not read(local(Path(root))).marks, "a reader changes nothing"
    save(state(21), RunWriter(root, step=21, keep=KEEP), no_dist=True)
    assert {number: mark.kind for number, mark in read(local(Path(root))).marks.items()} == {3: "kills-loader"}
    monkeypatch.delenv(SKIP)
    assert sorted(read(local(Path(root))).line) == [1, 2, 4]


def test_a_variable_that_names_no_generation_is_refused_before_anything_is_touched(
    root: str, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SKIP, "the last one")
    before = {path: path.stat().st_mtime_ns for path in Path(root).rglob("*")}
    for verb in (
        lambda: load(state(0), root, no_dist=True),
        lambda: save(state(31), RunWriter(root, step=31), no_dist=True),
    ):
        with pytest.raises(UsageError, match="RUN_ID:NUMBER"):
            verb()
    assert {path: path.stat().st_mtime_ns for path in Path(root).rglob("*")} == before


def loaded_as_told(rank: int, root: str) -> list[int]:
    for step in (10, 20, 30):
        save(sharded(step), RunWriter(root, step=step, keep=KEEP))
    _heads.clear()  # as in a process that begins here
    name = read(local(Path(root))).run_id
    found = []
    for told in ({RESUME: f"{name}:1", SKIP: f"{name}:3"}, {SKIP: f"{name}:3"} if rank == 0 else {}):
        with mock.patch.dict(os.environ, told):
            found.append(load(blank(sharded(0)), root).step)
    return found


def test_all_ranks_load_what_was_asked_for_and_where_one_was_not_told_what_the_coordinator_was(tmp_path: Path) -> None:
    assert run(2, loaded_as_told, tmp_path, str(tmp_path / "run")) == [[10, 20]] * 2
