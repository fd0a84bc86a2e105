"""Generations that share no file, and nothing shared with what is damaged: one rotten byte leaves one whole. DESIGN 4 ▲, B8"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from milepost.engine import oneshot
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.errors import StoreError
from milepost.lifecycle.retain import Keep
from milepost.publish import layout
from milepost.publish.view import read
from milepost.records import Summary
from milepost.testing.faults import FaultStore
from tests.engine.training import Training, bits, local, state_at

FULL = StoreError("the disk is full", kind="disk-full", retryable=True)


def names(summary: Summary) -> set[str]:
    return {blob.name for blob in summary.blobs}


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_one_rotten_byte_in_any_file_leaves_a_generation_that_loads_whole(tmp_path: Path) -> None:
    with Training(tmp_path, keep=Keep(last=3, independent=2)) as training:
        training.save(1)
        for step in range(2, 9):
            training.save(step)
            for blob in sorted((tmp_path / "blobs").iterdir()):
                for at in (0, blob.stat().st_size // 2, -1):
                    flip(blob, at)
                    loaded: Any = oneshot.load(tmp_path)
                    assert bits(loaded) == bits(state_at(loaded["counters"]["step"]))
                    assert oneshot.verify(tmp_path).resume_from is not None
                    flip(blob, at)


def test_without_it_one_rotten_byte_may_spoil_them_all(tmp_path: Path) -> None:
    with Training(tmp_path, keep=Keep(last=3)) as training:
        for step in range(1, 6):
            training.save(step)
    live = read(local(tmp_path)).live.values()
    assert set.intersection(*map(names, live)), "this is what the setting is for"


def test_a_generation_is_written_in_full_about_every_last_saves_also_over_restarts(tmp_path: Path) -> None:
    alone = []
    for start in range(1, 13, 3):
        with Training(tmp_path, keep=Keep(last=5, independent=2)) as training:
            training.engine.resume()
            for step in range(start, start + 3):
                saved = training.save(step)
                if saved.new_bytes == saved.total_bytes:
                    alone.append(step)
    assert alone == [1, 2, 6, 10]
    assert sorted(read(local(tmp_path)).live) == [8, 9, 10, 11, 12]


def test_a_tree_saved_from_time_to_time_is_kept_twice_as_well(tmp_path: Path) -> None:
    for step in range(1, 5):
        oneshot.save(tmp_path, state_at(step), step=step, keep=Keep(last=2, independent=2))
    older, newer = read(local(tmp_path)).live.values()
    assert names(older).isdisjoint(names(newer))


def test_a_save_without_room_for_a_copy_of_its_own_shares_and_the_next_one_makes_up_for_it(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Training(store, keep=Keep(last=3, independent=2)) as training:
        saved = [training.save(step) for step in (1, 2, 3)]
        store.fail("write_blob", error=FULL)
        saved.append(training.save(4))
        assert names(saved[3]) & names(saved[2]), "there was no room"
        live = read(local(tmp_path)).live
        assert sorted(live) == [1, 2, 3, 4], "nothing went, and what is independent stays"
        assert names(live[1]).isdisjoint(names(live[4]))
        saved.append(training.save(5))
        assert saved[4].new_bytes == saved[4].total_bytes
        assert sorted(read(local(tmp_path)).live) == [3, 4, 5]


def test_a_trim_on_a_full_disk_comes_first_and_the_save_that_follows_is_independent_again(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Training(store, keep=Keep(last=3, independent=2)) as training:
        for step in (1, 2):
            training.save(step)
        store.fail("write_blob", error=FULL)
        saved = training.save(3)  # no copy of its own is due, so the oldest has to go
        live = read(local(tmp_path)).live
        assert 1 not in live
        assert any(names(old).isdisjoint(names(saved)) for old in live.values())


# --- what a scrub has found ---------------------------------------------------------------------------------------------


def test_nothing_is_shared_any_more_with_what_was_found_damaged(tmp_path: Path) -> None:
    with Training(tmp_path, keep=Keep(last=2)) as training:
        saved = [training.save(step) for step in (1, 2, 3)]
        (shared,) = names(saved[1]) & names(saved[2])
        flip(tmp_path / shared, -1)
        session = training.engine.claim()
        session.distrust(shared)
        assert session.base is not None, "only a save looks: another thread may say so at any time"
        healed = training.save(4)
        assert names(healed).isdisjoint(names(saved[1]) | names(saved[2]))
        assert names(training.save(5)) & names(healed), "and goes on sharing with what is sound"
        training.save(6)
        training.save(7)
    assert oneshot.verify(tmp_path).ok
    assert bits(oneshot.load(tmp_path)) == bits(state_at(7))


def test_distrust_of_a_blob_that_the_base_does_not_stand_on_changes_nothing(tmp_path: Path) -> None:
    with Training(tmp_path) as training:
        training.save(1)
        saved = training.save(2)
        training.engine.claim().distrust("blobs/000009-t1-00000000000000ff.safetensors")
        assert names(training.save(3)) & names(saved)


def test_what_is_found_while_a_save_is_written_counts_from_the_next_one_on(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Training(store, keep=Keep(last=3), writer="thread") as training:
        training.save(1)
        first = training.save(2)
        training.train_to(3)
        gate = store.pause("commit_blob")
        training.engine.save(3)
        gate.wait_until_reached()
        scrub = threading.Thread(target=training.engine.claim().distrust, args=sorted(names(first)), name="scrub")
        scrub.start()
        scrub.join()
        gate.release()
        second = training.engine.wait()
        assert second is not None
        assert names(second) & names(first), "it had been planned"
        assert names(training.save(4)).isdisjoint(names(first))


def test_what_is_damaged_takes_no_sound_ones_place_among_those_that_are_kept(tmp_path: Path) -> None:
    # The newest healthy one is rotten, and the next save is sick: the sound one before it is all that there is.
    with Training(tmp_path, keep=Keep(last=2)) as training:
        training.save(1)
        training.state["policy"]["frozen"] += 1
        training.state["policy"]["w"] += 1
        training.engine.save(2)
        rotten = names(read(local(tmp_path)).live[2]) - names(read(local(tmp_path)).live[1])
        training.engine.claim().distrust(*rotten)
        training.state["policy"]["w"][:] = np.nan
        training.engine.save(3)
        assert sorted(read(local(tmp_path)).live) == [1, 2, 3]
        training.train_to(4)
        for _ in range(2):
            training.engine.save(4)
        assert sorted(read(local(tmp_path)).live) == [4, 5]


def test_no_sound_generation_is_retired_for_room_while_the_newest_is_damaged(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Training(store, keep=Keep(last=3), on_save_error="warn") as training:
        for step in (1, 2, 3):
            training.save(step)
        training.engine.claim().distrust(*names(read(local(tmp_path)).live[3]))
        store.fail("write_blob", error=FULL)
        training.train_to(4)
        training.engine.save(4)
        assert sorted(read(local(tmp_path)).live) == [1, 2, 3]
        assert training.save(5).number == 4


@pytest.mark.parametrize("what", ["damaged", "gone"])
def test_nor_while_it_is_so_full_that_not_even_the_step_can_be_noted(tmp_path: Path, what: str) -> None:
    store = FaultStore(local(tmp_path))
    with Training(store, keep=Keep(last=3), on_save_error="warn") as training:
        for step in (1, 2, 3):
            training.save(step)
        live = read(local(tmp_path)).live
        if what == "damaged":
            training.engine.claim().distrust(*names(live[3]))
        else:
            [own] = names(live[3]) - names(live[2])
            (tmp_path / own).unlink()
        store.fail("replace", layout.PROGRESS, error=FULL)
        training.train_to(4)
        training.engine.save(4)
        assert sorted(read(local(tmp_path)).live) == [1, 2, 3]
        assert training.save(5).number == 4


def test_an_engine_says_at_once_what_cannot_be_independent(tmp_path: Path) -> None:
    state = {"policy": np.zeros(2)}
    with CheckpointEngine(tmp_path, state=state, keep=Keep(last=2, independent=2), writer="inline") as engine:
        engine.save(1)
        engine.save(2)
        assert engine.wait().new_bytes > 0  # type: ignore[union-attr]
