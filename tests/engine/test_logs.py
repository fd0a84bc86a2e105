"""Logs in saves: what is staged, digested and written follows the rows that were added, whatever the capacity. B4, B9, B12"""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from milepost.engine import oneshot
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.errors import SaveFailed, StoreError
from milepost.lifecycle.retain import Keep
from milepost.publish.view import read
from milepost.records import Summary
from milepost.state.items import Items
from milepost.state.rows import Rows
from milepost.store.base import Store
from milepost.testing.faults import FaultStore
from tests.engine.training import local

CAPACITY = 20_000
ROW = 64 + 8 + 1
HEADER = 4096
FEW = 6_000
"""What is beside the rows of a save: the counters, a header of a page."""


class Buffer:
    """A replay buffer of `CAPACITY` rows that is filled with rows which follow from their number."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.rows = Rows(
            {
                "obs": np.zeros((capacity, 16), np.float32),
                "reward": np.zeros(capacity, np.float64),
                "done": np.zeros(capacity, np.bool_),
            }
        )

    def add(self, n: int) -> None:
        for _ in range(n):
            self.write(self.rows.count, self.rows.count)
            self.rows.advance()

    def write(self, row: int, seed: int) -> None:
        random, at = np.random.default_rng(seed), row % self.rows.capacity
        self.rows.arrays["obs"][at] = random.standard_normal(16)
        self.rows.arrays["reward"][at] = seed / 7
        self.rows.arrays["done"][at] = seed % 3 == 0

    def window(self) -> dict[str, bytes]:
        order = [row % self.rows.capacity for row in range(*self.rows.window)]
        return {name: array[order].tobytes() for name, array in self.rows.arrays.items()}


class Run:
    def __init__(self, where: Path | Store, buffer: Any = None, **settings: Any) -> None:
        self.buffer = buffer or Buffer()
        self.store = where if isinstance(where, Store) else local(where)
        settings.setdefault("writer", "inline")
        settings.setdefault("keep", Keep(last=2))
        state = {"replay": {"buffer": self.buffer.rows}, "counters": {"step": 0}}
        self.engine = CheckpointEngine(self.store, state=state, **settings)
        self.step = 0

    def __enter__(self) -> Run:
        self.engine.resume()
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def save(self) -> dict[str, Any]:
        """Save, and return the event that tells of it."""
        self.step += 1
        self.engine.save(self.step)
        assert self.engine.wait() is not None
        return published(self.store)[-1]

    def stored(self) -> dict[str, bytes]:
        loaded: Any = oneshot.load(self.store)
        rows = loaded["replay"]["buffer"]
        fresh = Buffer(rows.capacity)
        fresh.rows = rows
        return fresh.window()


def events(store: Store, name: str) -> list[dict[str, Any]]:
    lines = b"".join(store.read(entry.name) for entry in store.list("events/")).splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def published(store: Store) -> list[dict[str, Any]]:
    return events(store, "published")


@pytest.fixture
def run(tmp_path: Path) -> Any:
    with Run(tmp_path) as made:
        yield made


@pytest.mark.parametrize("added", [0, 1, 100, 5_000])
def test_a_save_stages_digests_and_writes_what_was_added_and_nothing_else(run: Run, added: int) -> None:
    run.buffer.add(8_000)
    first = run.save()
    assert first["rows_added"] == 8_000
    assert first["staged_bytes"] >= 8_000 * ROW
    run.buffer.add(added)
    told = run.save()
    assert told["rows_added"] == added
    assert added * ROW <= told["staged_bytes"] < added * ROW + 1000
    assert added * ROW <= told["hashed_bytes"] < added * ROW + 1000
    assert told["written_bytes"] < added * ROW + 2 * HEADER
    assert told["read_bytes"] == 0
    assert run.stored() == run.buffer.window()


@pytest.mark.parametrize("capacity", [5_000, 20_000, 80_000])
def test_what_a_save_costs_does_not_depend_on_the_capacity(tmp_path: Path, capacity: int) -> None:
    with Run(tmp_path, Buffer(capacity)) as run:
        run.buffer.add(4_000)
        run.save()
        run.buffer.add(50)
        told = run.save()
        assert 50 * ROW <= told["staged_bytes"] < 50 * ROW + 1000
        assert told["written_bytes"] < 50 * ROW + 2 * HEADER


def test_a_ring_that_wraps_around_and_twice_between_two_saves_comes_back(tmp_path: Path) -> None:
    with Run(tmp_path, Buffer(1000)) as run:
        run.buffer.add(900)
        run.save()
        run.buffer.add(300)
        assert run.save()["staged_bytes"] < 300 * ROW + 1000
        assert run.stored() == run.buffer.window()
        run.buffer.add(2_300)
        told = run.save()
        assert told["rows_added"] == 2_300
        assert told["staged_bytes"] < 1_000 * ROW + 1000, "of rows that were overwritten before anybody saw them nothing is saved"
        assert run.stored() == run.buffer.window()


def test_rows_that_were_touched_are_saved_again_and_only_these(run: Run) -> None:
    run.buffer.add(8_000)
    run.save()
    for row in range(2_000, 2_100):
        run.buffer.write(row, row + 77)
    run.buffer.rows.touch(2_000, 2_100)
    run.buffer.add(10)
    told = run.save()
    assert told["rows_added"] == 10
    assert told["staged_bytes"] < 110 * ROW + 64 * 1024 + 1000, "and what lies between, where that is less than a gap"
    assert run.stored() == run.buffer.window()


def test_small_pieces_are_merged_in_the_background_and_their_files_go(tmp_path: Path) -> None:
    with Run(tmp_path, keep=Keep(last=1)) as run:
        merged = written = most = 0
        for _ in range(60):
            run.buffer.add(50)
            told = run.save()
            merged += told["pieces_merged"]
            written += told["written_bytes"]
            most = max(most, told["pieces_kept"])
            assert run.stored() == run.buffer.window()
        assert merged
        assert most <= 3 * 3 * 8, "three fields, in at most so many pieces"
        assert written < 60 * 50 * ROW * 5 + 60 * 3 * HEADER
        head = read(run.store).head
        assert head is not None
        assert {blob.name for blob in head.blobs} == {entry.name for entry in run.store.list("blobs/")}


def test_pieces_lie_in_files_that_say_which_rows_they_hold_and_go_with_the_last_of_them(tmp_path: Path) -> None:
    with Run(tmp_path, Buffer(1_000), keep=Keep(last=1)) as run:
        run.buffer.add(600)
        run.save()
        assert any(".replay_buffer.0-600." in entry.name for entry in run.store.list("blobs/"))
        run.buffer.add(1_000)
        run.save()
        names = [entry.name for entry in run.store.list("blobs/")]
        assert not any(".0-600." in name for name in names)
        assert any(".600-1600." in name for name in names)


@pytest.mark.parametrize(("operation", "name"), [("commit_blob", "blobs/*"), ("create", "generations/*")])
def test_after_a_save_that_failed_the_next_has_all_that_was_in_it(tmp_path: Path, operation: str, name: str) -> None:
    store = FaultStore(local(tmp_path))
    with Run(store) as run:
        run.buffer.add(1_000)
        run.save()
        run.buffer.add(100)
        run.buffer.write(10, 999)
        run.buffer.rows.touch(10, 11)
        store.fail(operation, name, StoreError("could not write", kind="io", retryable=False, undone=True), times=2)
        with pytest.raises(SaveFailed):
            run.save()
        run.buffer.add(100)
        told = run.save()
        assert told["rows_added"] == 200
        assert run.stored() == run.buffer.window()


@pytest.mark.parametrize("how", ["rollback", "anew", "reload"])
def test_after_a_rollback_or_a_reload_in_one_process_what_is_saved_is_what_is_there(tmp_path: Path, how: str) -> None:
    with Run(tmp_path, Buffer(1_000), keep=Keep(last=3)) as run:
        windows = []
        for _ in range(3):
            run.buffer.add(300)
            run.save()
            windows.append(run.buffer.window())
        which: Any = {"rollback": 1, "anew": "never", "reload": "latest"}[how]
        run.engine.resume(which)
        if how != "anew":
            assert run.buffer.window() == windows[0 if how == "rollback" else 2]
        run.buffer.add(450)
        told = run.save()
        assert run.stored() == run.buffer.window()
        if how != "anew":
            assert told["staged_bytes"] < 450 * ROW + 1000, "what was loaded is known"
        run.buffer.add(5)
        assert run.save()["staged_bytes"] < 5 * ROW + 1000
        assert run.stored() == run.buffer.window()


def test_a_process_that_adopts_a_generation_saves_all_once_and_then_what_is_new(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        run.buffer.add(500)
        run.save()
    again = Run(tmp_path, run.buffer)
    assert again.engine.adopt() is not None
    again.buffer.add(10)
    again.step = 5
    again.save()
    assert again.stored() == run.buffer.window()
    again.buffer.add(10)
    assert again.save()["staged_bytes"] < 10 * ROW + 1000
    again.engine.close()


def test_a_new_process_that_resumes_knows_what_it_loaded(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        run.buffer.add(3_000)
        run.save()
    with Run(tmp_path) as again:
        assert again.buffer.window() == run.buffer.window()
        again.buffer.add(20)
        again.step = 5
        assert again.save()["staged_bytes"] < 20 * ROW + 1000
        assert again.stored() == again.buffer.window()


def test_rows_whose_files_were_removed_under_a_running_trainer_are_written_anew_by_the_next_save(tmp_path: Path) -> None:
    with Run(tmp_path, when=None) as run:
        run.buffer.add(1_000)
        run.save()
        for entry in list(run.store.list("blobs/")):
            (tmp_path / entry.name).unlink()
        run.buffer.add(10)
        with pytest.raises(SaveFailed) as caught:
            run.save()
        assert caught.value.kind == "blobs-gone"
        run.step += 1
        assert run.engine.save_if_due(run.step), "the next safe point is due"
        assert run.stored() == run.buffer.window()
        assert not run.engine.save_if_due(run.step + 1)


def test_rows_that_the_scrub_found_damaged_are_written_anew(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        run.buffer.add(1_000)
        run.save()
        session = run.engine.claim()
        assert session.base is not None
        session.distrust(*(blob.name for blob in session.base.blobs))
        run.buffer.add(10)
        told = run.save()
        assert told["staged_bytes"] >= 1_010 * ROW
        assert run.stored() == run.buffer.window()


def test_what_somebody_wrote_past_the_counts_is_found_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Run(tmp_path) as run:
        run.buffer.add(1_000)
        run.save()
        run.buffer.write(500, 123)
        told = run.save()
        assert told["staged_bytes"] >= 1_000 * ROW
        assert "nobody said so" in str(told["doubts"])
        assert "nobody said so" in caplog.text
        assert run.stored() == run.buffer.window()


def test_generations_that_must_stand_alone_have_their_rows_copied(tmp_path: Path) -> None:
    with Run(tmp_path, keep=Keep(last=3, independent=2)) as run:
        for _ in range(6):
            run.buffer.add(100)
            run.save()
            assert run.stored() == run.buffer.window()
        assert sum(event["read_bytes"] for event in published(run.store)) > 0
        live = list(read(run.store).live.values())
        assert any(apart(one, other) for one in live for other in live if one is not other)


def apart(one: Summary, other: Summary) -> bool:
    return {blob.name for blob in one.blobs}.isdisjoint(blob.name for blob in other.blobs)


def test_episodes_are_a_log_too(tmp_path: Path) -> None:
    episodes: deque[Any] = deque()
    items = Items(episodes)
    state = {"replay": {"episodes": items}, "counters": {"step": 0}}
    store = local(tmp_path)
    with CheckpointEngine(store, state=state, writer="inline", keep=Keep(last=1)) as engine:
        engine.resume()
        for step in range(1, 30):
            items.append({"obs": np.full((50, 4), step, np.float32), "return": float(step)})
            if step > 20:
                items.popleft()
            engine.save(step)
            engine.wait()
            told = published(store)[-1]
            assert told["rows_added"] == 1
            assert told["staged_bytes"] < 3_000
        loaded: Any = oneshot.load(store)
        assert [item["return"] for item in loaded["replay"]["episodes"].items] == [item["return"] for item in episodes]


def test_a_trim_on_a_full_disk_keeps_the_rows_and_what_is_known_of_them(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Run(store, keep=Keep(last=3)) as run:
        for _ in range(3):
            run.buffer.add(500)
            run.save()
        run.buffer.add(20)
        full = StoreError("no space left on device", kind="disk-full", retryable=False, undone=True)
        store.fail("write_blob", error=full, times=1)
        told = run.save()
        assert told["staged_bytes"] < 20 * ROW + 1000
        assert run.stored() == run.buffer.window()
        assert [summary.trim_of for summary in read(store).live.values()].count(3) == 1
        run.buffer.add(20)
        assert run.save()["staged_bytes"] < 20 * ROW + 1000
        assert run.stored() == run.buffer.window()


def test_a_signed_run_keeps_its_rows_by_digests_that_nobody_can_forge(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"k" * 48)
    key.chmod(0o600)
    buffer = Buffer()
    for step, added in ((1, 400), (2, 30)):
        state = {"replay": {"buffer": buffer.rows}, "counters": {"step": 0}}
        with CheckpointEngine(tmp_path / "run", state=state, writer="inline", key_file=key) as engine:
            engine.resume()
            buffer.add(added)
            engine.save(step)
            engine.wait()
            base = engine.claim().base
            assert base is not None
            assert all(leaf.digest.startswith("sha256:") for part in base.components for leaf in part.leaves)
    told = published(local(tmp_path / "run"))[-1]
    assert told["staged_bytes"] < 30 * ROW + 1000


def test_a_piece_that_rotted_is_not_merged_into_a_sound_one_but_written_anew(tmp_path: Path) -> None:
    with Run(tmp_path, keep=Keep(last=1)) as run:
        for _ in range(7):
            run.buffer.add(50)
            run.save()
        for entry in run.store.list("blobs/"):
            file = tmp_path / entry.name
            data = bytearray(file.read_bytes())
            data[-1] ^= 1
            file.write_bytes(data)
        run.buffer.add(50)
        with pytest.raises(SaveFailed) as caught:
            _ = [run.save() for _ in range(3)]
        assert caught.value.kind == "blobs-gone"
        for _ in range(3):
            run.save()
        assert run.stored() == run.buffer.window()


def test_an_engine_that_does_not_compress_writes_rows_as_they_are(tmp_path: Path) -> None:
    for compress, ending in (("off", ".safetensors"), ("auto", ".zst")):
        rows = Rows({"obs": np.zeros((40_000, 100), np.uint8)}, count=40_000)
        store = local(tmp_path / compress)
        engine = CheckpointEngine(store, state={"replay": rows}, writer="inline", compress=compress)  # type: ignore[arg-type]
        with engine:
            engine.save(1)
        names = [entry.name for entry in store.list("blobs/")]
        assert names
        assert all(name.endswith(ending) for name in names)
        written = published(store)[-1]["written_bytes"]
        assert (written > 4_000_000) == (compress == "off")
