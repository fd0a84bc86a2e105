"""A disk that is full on any rank: the save fails on all, room is made for the next, and nothing goes that must stay. B18"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import milepost
from milepost.errors import StoreError
from milepost.lifecycle.retain import Keep
from milepost.publish.view import read
from milepost.pytorch.dcp import RunWriter, load, save
from milepost.store.memory import MemoryStore
from milepost.testing.faults import FaultStore
from tests.engine.training import local
from tests.pytorch.dcp.ranks import run
from tests.pytorch.dcp.states import differences
from tests.pytorch.dcp.test_several_ranks import small, told

KEEP = Keep(last=3)


def state(value: float) -> dict[str, Any]:
    return {"model": {"w": torch.full((64, 64), float(value))}}


def used(disk: MemoryStore) -> int:
    return sum(entry.size_bytes for entry in disk.list(""))


@pytest.fixture
def disk() -> MemoryStore:
    return MemoryStore()


def steps(disk: MemoryStore) -> list[int]:
    live = read(disk).live
    return [live[number].step for number in sorted(live)]


def test_after_a_save_that_found_no_room_the_oldest_goes_for_the_next(disk: MemoryStore) -> None:
    for step in range(1, 4):
        save(state(step), RunWriter(disk, step=step, keep=KEEP), no_dist=True)
    disk.capacity_bytes = used(disk) + 5_000
    with pytest.raises(StoreError) as failed:
        save(state(4), RunWriter(disk, step=4, keep=KEEP), no_dist=True)
    assert failed.value.kind == "disk-full"
    assert steps(disk) == [1, 2, 3], "nothing goes for a save that is lost already"
    save(state(5), RunWriter(disk, step=5, keep=KEEP), no_dist=True)
    assert 5 in steps(disk)
    assert 1 not in steps(disk)
    live = state(0)
    assert load(live, disk, no_dist=True).step == 5
    assert differences(live, state(5)) == []
    disk.capacity_bytes = None
    save(state(6), RunWriter(disk, step=6, keep=KEEP), no_dist=True)
    assert milepost.verify(disk).ok


def test_no_history_is_given_away_where_it_would_not_be_enough(disk: MemoryStore) -> None:
    for step in range(1, 3):
        save(state(step), RunWriter(disk, step=step, keep=KEEP), no_dist=True)
    disk.capacity_bytes = used(disk) + 2_000
    large = {"model": {"w": torch.zeros(512, 512)}}
    before = steps(disk)
    for _ in range(3):
        with pytest.raises(StoreError):
            save(large, RunWriter(disk, step=9, keep=KEEP), no_dist=True)
    assert read(disk).head is not None
    assert 2 in steps(disk), f"{before}: the newest stays"


def one_rank_is_full(rank: int, root: str) -> Any:
    for step in range(1, 4):
        save(small(step), RunWriter(root, step=step, keep=KEEP))
    store = FaultStore(local(Path(root)))
    if rank == 1:
        store.fail("open_blob", "*", StoreError("full", kind="disk-full", retryable=False, undone=True))
    failed = told(lambda: save(small(4), RunWriter(store, step=4, keep=KEEP)))
    save(small(5), RunWriter(store, step=5, keep=KEEP))
    live = small(0)
    return failed[1], load(live, root).step, differences(live, small(5))


def test_what_one_rank_has_met_is_told_to_the_coordinator_with_its_next_plan(tmp_path: Path) -> None:
    root = tmp_path / "run"
    assert run(2, one_rank_is_full, tmp_path, str(root)) == [("disk-full", 5, [])] * 2
    events = (root / "events" / "0001.jsonl").read_text()
    assert '"reason":"trim"' in events
    assert milepost.verify(root).ok
