"""A save: a private copy of the state at the call, written beside training, unchanged leaves not written again. B9, B5"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from milepost.engine import oneshot
from milepost.engine.arena import Arena
from milepost.engine.capture import capture
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.errors import UsageError
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.triggers import every
from milepost.publish.view import read
from milepost.records import Summary
from milepost.testing.faults import FaultStore
from tests.engine.training import Training, bits, local, state_at


def held(root: Path, **settings: Any) -> tuple[FaultStore, Training]:
    store = FaultStore(local(root))
    return store, Training(store, writer="thread", **settings)


def test_what_is_saved_is_the_state_at_the_call_whatever_training_does_next(tmp_path: Path) -> None:
    store, training = held(tmp_path)
    with training:
        training.train_to(1)
        gate = store.pause("write_blob")
        training.engine.save(1)
        gate.wait_until_reached()
        training.train_to(2)
        training.state["policy"]["w"][:] = np.nan
        training.state["optimizer"]["moments"].append("grown")
        del training.state["replay"]["obs"]
        gate.release()
        saved = training.engine.wait()
    assert saved is not None
    assert bits(oneshot.load(tmp_path)) == bits(state_at(1))


def test_an_object_that_hands_out_its_live_memory_is_copied_before_save_returns(tmp_path: Path) -> None:
    class Live:
        def __init__(self) -> None:
            self.array = np.arange(50_000)

        def state_dict(self) -> dict[str, Any]:
            return {"whole": self.array, "view": self.array[::7], "again": self.array}

        def load_state_dict(self, state: Any) -> None:
            raise NotImplementedError

    live, store = Live(), FaultStore(local(tmp_path))
    with CheckpointEngine(store, state={"policy": live}) as engine:
        gate = store.pause("replace", "progress.json")
        engine.save(1)
        gate.wait_until_reached()
        live.array[:] = -1
        gate.release()
    loaded: Any = oneshot.load(tmp_path)
    assert np.array_equal(loaded["policy"]["whole"], np.arange(50_000))
    assert np.array_equal(loaded["policy"]["view"], np.arange(50_000)[::7])


def test_a_trigger_that_falls_due_while_a_save_is_in_flight_fires_at_the_first_safe_point_after_it(tmp_path: Path) -> None:
    store, training = held(tmp_path, when=every(steps=10))
    engine = training.engine
    with training:
        engine.resume()
        gate = store.pause("commit_blob")
        assert engine.save_if_due(10)
        gate.wait_until_reached()
        assert not engine.save_if_due(20)
        assert not engine.save_if_due(21)
        gate.release()
        engine.wait()
        assert engine.save_if_due(22)
        assert not engine.save_if_due(29)
        engine.wait()
    assert [summary.step for summary in read(local(tmp_path)).live.values()] == [10, 22]


def test_a_second_save_waits_for_the_first(tmp_path: Path) -> None:
    store, training = held(tmp_path, keep=Keep(last=5))
    with training:
        for step in (1, 2, 3):
            training.train_to(step)
            training.engine.save(step)
    for number, step in ((1, 1), (2, 2), (3, 3)):
        assert bits(oneshot.load(tmp_path, which=number)) == bits(state_at(step))
    creates = [name for name in store.names_asked("create") if name.startswith("generations/")]
    assert creates == [f"generations/{number:06d}.json" for number in (1, 2, 3)]


def test_the_manifest_comes_last_and_progress_first(tmp_path: Path) -> None:
    store, training = held(tmp_path)
    with training:
        training.engine.claim()
        start = len(store.operations)
        training.save(1)
        changes = [
            (asked.operation, asked.name.partition("/")[0])
            for asked in store.operations[start:]
            if asked.operation in ("create", "replace", "commit_blob", "delete")
        ]
    assert changes == [("replace", "progress.json"), ("commit_blob", "blobs"), ("create", "generations"), ("replace", "LATEST")]


def frozen_and_small(size: int = 20_000) -> dict[str, Any]:
    return {"policy": {"frozen": np.arange(size, dtype=np.float64), "head": np.zeros(100)}}


def test_unchanged_leaves_are_not_written_again(tmp_path: Path) -> None:
    state = frozen_and_small()
    saved: list[Summary] = []
    with CheckpointEngine(tmp_path, state=state, writer="inline") as engine:
        for step in range(1, 6):
            state["policy"]["head"][:] = step
            engine.save(step)
            saved.append(engine.wait())  # type: ignore[arg-type]
    assert saved[0].new_bytes > 160_000
    assert all(summary.new_bytes < 6_000 for summary in saved[1:])
    assert all(len(summary.blobs) == 2 for summary in saved[1:])
    assert bits(oneshot.load(tmp_path)) == bits(state)


def test_a_state_that_did_not_change_at_all_costs_a_manifest_and_no_blob(tmp_path: Path) -> None:
    with CheckpointEngine(tmp_path, state=frozen_and_small(), writer="inline") as engine:
        engine.save(1)
        engine.save(2)
        saved = engine.wait()
    assert saved is not None
    assert (saved.number, saved.new_bytes, len(saved.blobs)) == (2, 0, 1)


def test_after_a_resume_unchanged_leaves_are_shared_with_what_was_loaded(tmp_path: Path) -> None:
    state = frozen_and_small()
    with CheckpointEngine(tmp_path, state=state, writer="inline") as engine:
        engine.save(1)
    again = frozen_and_small()
    with CheckpointEngine(tmp_path, state=again, writer="inline") as engine:
        engine.resume()
        again["policy"]["head"][:] = 3
        engine.save(2)
        assert engine.wait().new_bytes < 6_000  # type: ignore[union-attr]
        engine.resume("never")
        engine.save(3)
        # Started anew: nothing of the old line is built upon, not even where the bytes are the same.
        assert engine.wait().new_bytes > 160_000  # type: ignore[union-attr]


def test_a_part_that_is_frozen_later_moves_to_its_own_blob_once(tmp_path: Path) -> None:
    # The first blob holds both; once the larger part of it is stale, what is still alive moves out, and then stays.
    state = {"policy": {"frozen": np.arange(1_000.0), "trained": np.zeros(4_000)}}
    sizes = []
    with CheckpointEngine(tmp_path, state=state, writer="inline", keep=Keep(last=2)) as engine:
        for step in range(1, 6):
            state["policy"]["trained"][:] = step
            engine.save(step)
            saved = engine.wait()
            assert saved is not None
            sizes.append(saved.new_bytes // 1000)
    assert sizes == [44, 48, 36, 36, 36]  # each blob begins with a page for its header
    live = read(local(tmp_path)).live
    (own,) = {blob.name for blob in live[5].blobs} & {blob.name for blob in live[4].blobs}
    assert own.startswith("blobs/000002-"), own
    stored = sum(path.stat().st_size for path in (tmp_path / "blobs").iterdir())
    assert stored < 2 * 37_000 + 13_000
    assert bits(oneshot.load(tmp_path)) == bits(state)


def test_a_blob_of_which_little_is_used_is_compacted_and_goes_with_the_generations_that_need_it(tmp_path: Path) -> None:
    # Ten leaves, one more of them changed each step: the first blob empties slowly.
    state = {"policy": {f"w{index}": np.full(1_000, -1.0) for index in range(10)}}
    with CheckpointEngine(tmp_path, state=state, writer="inline", keep=Keep(last=1)) as engine:
        for step in range(10):
            state["policy"][f"w{step}"][:] = step
            engine.save(step)
            saved = engine.wait()
            assert saved is not None
            # Never more than twice what is alive, plus what this save wrote and a page for each header.
            assert saved.total_bytes <= 2 * 80_000 + 8_000 + 1_000 * len(saved.blobs)
            assert {blob.name for blob in saved.blobs} == {f"blobs/{path.name}" for path in (tmp_path / "blobs").iterdir()}
            assert bits(oneshot.load(tmp_path)) == bits(state)


def test_a_large_state_is_split_into_blobs_of_the_size_asked_for(tmp_path: Path) -> None:
    state = {"policy": {f"w{index}": np.full(1_000, index, np.float64) for index in range(7)}}
    with CheckpointEngine(tmp_path, state=state, writer="inline", blob_bytes=20_000) as engine:
        engine.save(1)
        saved = engine.wait()
    assert saved is not None
    assert len(saved.blobs) == 4
    assert all(blob.size_bytes < 21_000 for blob in saved.blobs)
    assert bits(oneshot.load(tmp_path)) == bits(state)


def test_the_arena_is_reused_and_does_not_grow_in_a_steady_state(tmp_path: Path) -> None:
    state = frozen_and_small()
    with CheckpointEngine(tmp_path, state=state) as engine:
        addresses, sizes = set(), set()
        for step in range(1, 8):
            state["policy"]["head"][:] = step
            engine.save(step)
            engine.wait()
            sizes.add(engine._saving._arena.size_bytes)
            addresses.add(np.frombuffer(engine._saving._arena._view, np.uint8).__array_interface__["data"][0])
    assert len(addresses) == len(sizes) == 1
    assert min(sizes) < 1.3 * 161_000


def test_a_state_that_grows_is_staged_whole(tmp_path: Path) -> None:
    state: dict[str, Any] = {"rollout": {"rows": np.zeros(10)}}
    with CheckpointEngine(tmp_path, state=state, writer="thread") as engine:
        for size in (10, 1_000, 100_000, 5):
            state["rollout"]["rows"] = np.arange(size, dtype=np.float32)
            engine.save(size)
            engine.wait()
            loaded: Any = oneshot.load(tmp_path)
            assert np.array_equal(loaded["rollout"]["rows"], np.arange(size))


def test_the_state_must_be_known_before_anything_is_written(tmp_path: Path) -> None:
    state: dict[str, Any] = {"policy": {"w": np.zeros(3)}}
    with CheckpointEngine(tmp_path, state=state, writer="inline") as engine:
        engine.save(1)
        state["policy"]["odd"] = object()
        before = set(tmp_path.rglob("*"))
        with pytest.raises(UsageError) as caught:
            engine.save(2)
        assert caught.value.facts["path"] == "policy/odd"
        assert set(tmp_path.rglob("*")) == before
        del state["policy"]["odd"]
        engine.save(2)
        assert engine.wait().number == 2  # type: ignore[union-attr]


def test_no_garbage_is_collected_while_training_stands_still_for_a_copy() -> None:
    # B9: with 100,000 arrays the collector walked the growing lists again and again, for half of the stall.
    state = {"extra": [np.zeros(1) for _ in range(20_000)]}
    walks: list[str] = []
    gc.callbacks.append(lambda phase, _info: walks.append(phase))
    try:
        gc.enable()
        gc.collect()
        walks.clear()
        staged = capture(state, Arena())
        during = list(walks)
    finally:
        gc.callbacks.pop()
    assert during.count("start") <= 1, "the one that was held off, when all was done"
    assert gc.isenabled()
    assert len(staged.components[0].leaves) == 20_000
