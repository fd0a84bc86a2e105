"""A save that fails: told once, at the next save, wait or close; nothing published is harmed; a full disk heals. C14, B5"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from milepost.engine import oneshot, relief
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.errors import ConflictError, MilepostError, SaveFailed, StoreError
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.triggers import every
from milepost.publish import layout, pins
from milepost.publish.view import read
from milepost.store.memory import MemoryStore
from milepost.testing.faults import FaultStore
from tests.engine.training import Training, bits, local, snapshot, state_at

BROKEN = StoreError("could not write: Input/output error", kind="io", retryable=False, hint="see dmesg")


def failing(root: Path, **settings: Any) -> tuple[FaultStore, Training]:
    store = FaultStore(local(root))
    return store, Training(store, writer="thread", **settings)


def fail_one_save(store: FaultStore, training: Training, step: int) -> None:
    """Start a save that cannot write its blob, and let it end without asking how."""
    store.fail("commit_blob", error=BROKEN, times=2)
    training.train_to(step)
    training.engine.save(step)
    training.engine._background.join()


@pytest.mark.parametrize("ask", ["save", "wait", "close", "resume"])
def test_a_failure_is_raised_once_by_whatever_is_called_next(tmp_path: Path, ask: str) -> None:
    store, training = failing(tmp_path)
    engine = training.engine
    calls: dict[str, Callable[[], object]] = {
        "save": lambda: engine.save(3),
        "wait": engine.wait,
        "close": engine.close,
        "resume": engine.resume,
    }
    with training:
        training.save(1)
        fail_one_save(store, training, 2)
        with pytest.raises(SaveFailed) as caught:
            calls[ask]()
        assert caught.value.__cause__ is BROKEN
        assert (caught.value.kind, caught.value.hint) == ("io", "see dmesg")
        assert caught.value.facts["root"] == str(tmp_path)
        if ask != "close":
            assert engine.wait().number == 1  # type: ignore[union-attr]
            assert training.save(3).number == 2
    assert oneshot.verify(tmp_path).ok
    assert bits(oneshot.load(tmp_path)) == bits(state_at(1 if ask == "close" else 3))


def test_an_engine_that_is_left_gives_the_root_up_although_its_last_save_failed(tmp_path: Path) -> None:
    store, training = failing(tmp_path)
    with pytest.raises(SaveFailed), training:
        fail_one_save(store, training, 1)
    with Training(tmp_path) as training:
        assert training.save(1).number == 1


def test_leaving_with_an_exception_saves_nothing_new_flushes_what_is_staged_and_keeps_the_exception(tmp_path: Path) -> None:
    store, training = failing(tmp_path)
    gate = store.pause("open_blob")

    def train() -> None:
        with training:
            training.train_to(1)
            training.engine.save(1)
            gate.wait_until_reached()
            training.train_to(2)
            gate.release()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert bits(oneshot.load(tmp_path)) == bits(state_at(1))
    with Training(tmp_path) as late:
        assert late.engine.resume().generation == 1  # type: ignore[union-attr]


def test_leaving_with_an_exception_logs_a_failed_save_and_does_not_hide_the_exception(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, training = failing(tmp_path)

    def train() -> None:
        with training:
            fail_one_save(store, training, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert "the last save failed" in caplog.text


def test_a_failed_fsync_is_answered_with_another_file_and_not_with_another_fsync(tmp_path: Path) -> None:
    store, training = failing(tmp_path)
    with training:
        store.fail("commit_blob", error=BROKEN, times=1)
        saved = training.save(1)
    first, second = store.names_asked("open_blob")
    assert first != second
    assert [blob.name for blob in saved.blobs] == [second]
    assert [path.name for path in (tmp_path / "blobs").iterdir()] == [second.removeprefix("blobs/")]


def test_training_goes_on_through_failed_saves_up_to_the_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, training = failing(tmp_path, on_save_error="warn", save_errors_max=3)
    with training:
        training.save(1)
        for step in (2, 3):
            fail_one_save(store, training, step)
            assert training.engine.wait().number == 1  # type: ignore[union-attr]
        assert training.save(4).number == 2
        caplog.clear()
        for step in (5, 6):  # a save that works starts the count anew
            fail_one_save(store, training, step)
            training.engine.wait()
        assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
        fail_one_save(store, training, 7)
        with pytest.raises(SaveFailed):
            training.engine.wait()


def test_what_a_failed_save_was_to_carry_is_carried_by_the_next_one(tmp_path: Path) -> None:
    store, training = failing(tmp_path, keep=Keep(last=2, best=1, by="return"))
    with training:
        training.engine.report(5, {"return": 3.0, "loss": 1.0})
        fail_one_save(store, training, 5)
        with pytest.raises(SaveFailed):
            training.engine.wait()
        training.engine.report(6, {"loss": 0.5})
        saved = training.save(6)
    assert {name: (metric.number, metric.step) for name, metric in saved.metrics.items()} == {
        "return": (3.0, 5),
        "loss": (0.5, 6),
    }


def test_a_failed_save_is_tried_again_when_the_next_trigger_falls_due(tmp_path: Path) -> None:
    store, training = failing(tmp_path, when=every(steps=10), on_save_error="warn")
    engine = training.engine
    with training:
        store.fail("commit_blob", error=BROKEN, times=2)
        assert engine.save_if_due(10)
        engine.wait()
        assert not engine.save_if_due(11)
        assert engine.save_if_due(20)
        assert engine.wait().step == 20  # type: ignore[union-attr]


def test_a_save_whose_outcome_is_unknown_keeps_its_number_and_its_blobs_until_that_is_known(tmp_path: Path) -> None:
    store, training = failing(tmp_path)
    with training:
        training.save(1)
        lost = [store.delay("create", "generations/000002.json", nth=nth) for nth in (1, 2)]
        training.train_to(2)
        training.engine.save(2)
        with pytest.raises(SaveFailed):
            training.engine.wait()
        assert store.deliver(lost[0])
        assert training.save(3).number == 3
    live = read(local(tmp_path)).live
    assert [(summary.number, summary.step, summary.parent) for summary in live.values()] == [(2, 2, 1), (3, 3, 2)]
    assert oneshot.verify(tmp_path).ok
    assert bits(oneshot.load(tmp_path, which=2)) == bits(state_at(2))


def test_a_fenced_engine_refuses_for_good_and_changes_nothing_more(tmp_path: Path) -> None:
    _, training = failing(tmp_path, when=every(steps=1))
    with training:
        training.save(1)
        with Training(tmp_path, take_over=True) as other:
            other.engine.resume()
            other.save(2)
        training.train_to(3)
        training.engine.save(3)
        with pytest.raises(ConflictError) as caught:
            training.engine.wait()
        assert caught.value.kind == "fenced"
        before = snapshot(local(tmp_path))
        for action in (lambda: training.engine.save(4), lambda: training.engine.save_if_due(5)):
            with pytest.raises(ConflictError) as caught:
                action()
            assert caught.value.kind == "fenced"
        assert snapshot(local(tmp_path)) == before
    with Training(tmp_path) as late:
        assert late.engine.resume().step == 2  # type: ignore[union-attr]


# --- a full disk ---------------------------------------------------------------------------------------------------

BIG = 10_000


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """Return a disk that will take what is on it and no more; its ballast is as large as a manifest."""
    monkeypatch.setattr(relief, "BALLAST_BYTES", 8_000)
    return MemoryStore()


def big(value: float) -> dict[str, Any]:
    return {"policy": {"w": np.full(BIG // 8, float(value))}}


class Loop:
    """Save states of one size, one after the other."""

    def __init__(self, store: Any, **settings: Any) -> None:
        self.state = big(0)
        self.engine = CheckpointEngine(store, state=self.state, writer="inline", **settings)

    def save(self, value: int) -> int:
        self.state["policy"]["w"][:] = value
        self.engine.save(value)
        saved = self.engine.wait()
        assert saved is not None
        return saved.number


def used(disk: MemoryStore) -> int:
    return sum(entry.size_bytes for entry in disk.list(""))


def values(disk: MemoryStore) -> list[int]:
    return [summary.step for summary in read(disk).live.values()]


def test_a_full_disk_retires_the_oldest_first_and_as_few_as_will_do(disk: MemoryStore) -> None:
    loop = Loop(disk, keep=Keep(last=10))
    with loop.engine:
        for value in (1, 2, 3, 4):
            loop.save(value)
        disk.capacity_bytes = used(disk) + 6_000
        loop.save(5)
        assert values(disk)[-3:] == [3, 4, 5]
        disk.capacity_bytes = None
        loop.save(6)
    assert oneshot.verify(disk).ok
    loaded: Any = oneshot.load(disk)
    assert loaded["policy"]["w"][0] == 6
    reasons = [summary.reason for summary in read(disk).live.values()]
    assert "trim" in reasons


def test_a_full_disk_never_takes_the_best_the_pinned_the_newest_healthy_or_what_was_resumed(disk: MemoryStore) -> None:
    keep = Keep(last=10, best=1, by="return")
    loop = Loop(disk, keep=keep)
    with loop.engine:
        for value in (1, 2, 3):
            loop.engine.report(value, {"return": {2: 9.0}.get(value, 1.0)})
            loop.save(value)
        pins.pin(disk, 1)
    loop = Loop(disk, keep=keep)
    with loop.engine:
        loop.engine.resume()
        for value in (4, 5, 6):
            loop.save(value)
        loop.state["policy"]["w"][0] = np.nan
        loop.engine.save(7)
        disk.capacity_bytes = used(disk) + 3_000
        loop.save(8)
        # 1 pinned, 2 the best, 3 resumed from; 4 and 5 and perhaps 6 have gone.
        assert {1, 2, 3, 8} <= set(values(disk))
        assert 4 not in values(disk)
    assert oneshot.verify(disk).ok


def test_a_full_disk_takes_generations_of_nan_before_the_last_good_one(disk: MemoryStore) -> None:
    loop = Loop(disk, keep=Keep(last=10))
    with loop.engine:
        loop.save(1)
        for step in (2, 3, 4):
            loop.state["policy"]["w"][:] = float("nan")
            loop.state["policy"]["w"][0] = step
            loop.engine.save(step)
        disk.capacity_bytes = used(disk) + 3_000
        loop.save(5)
        assert values(disk) == [1, 3, 4, 5]


def test_where_nothing_may_go_the_error_says_what_was_needed_and_what_there_is(disk: MemoryStore) -> None:
    loop = Loop(disk, keep=Keep(last=1))
    with loop.engine:
        loop.save(1)
        disk.capacity_bytes = used(disk) + 5_000
        with pytest.raises(SaveFailed) as caught:
            loop.save(2)
        assert caught.value.kind == "disk-full"
        assert "bytes more" in caught.value.hint
        cause = caught.value.__cause__
        assert isinstance(cause, StoreError)
        assert "training can go on" in cause.message
        assert BIG < int(str(cause.facts["needed_bytes"])) < BIG + 8_000, "the leaves and a manifest"
        assert 0 <= int(str(cause.facts["free_bytes"])) < BIG
        assert cause.facts["kept_generations"] == [1]
        for text in ("needed_bytes", "free_bytes", "disk is full"):
            assert text in str(cause)
        assert values(disk) == [1]
        disk.capacity_bytes = None  # somebody has made room
        assert loop.save(3) == 2
    assert oneshot.verify(disk).ok
    assert values(disk) == [3]
    assert not [entry for entry in disk.list(layout.BLOBS) if not entry.name.startswith("blobs/000002")], "nothing is left over"


def test_a_disk_without_room_for_a_trim_says_so_and_harms_nothing(disk: MemoryStore) -> None:
    loop = Loop(disk, keep=Keep(last=10))
    with loop.engine:
        for value in (1, 2, 3):
            loop.save(value)
        disk.delete(layout.BALLAST)
        disk.capacity_bytes = used(disk)
        with pytest.raises(SaveFailed) as caught:
            loop.save(4)
        assert caught.value.kind == "disk-full"
        assert "not even room to retire" in str(caught.value.__cause__)
        assert values(disk) == [1, 2, 3]
        disk.capacity_bytes = used(disk) + 12_000
        loop.save(5)
    assert oneshot.verify(disk).ok
    assert values(disk)[-1] == 5


def test_a_trim_is_not_counted_as_one_more_generation(disk: MemoryStore) -> None:
    loop = Loop(disk, keep=Keep(last=3))
    with loop.engine:
        for value in (1, 2, 3):
            loop.save(value)
        disk.capacity_bytes = used(disk) + 6_000
        loop.save(4)
        assert values(disk) == [2, 3, 4]
        assert [summary.reason for summary in read(disk).live.values()] == ["manual", "trim", "manual"]
        disk.capacity_bytes = None
        loop.save(5)
        assert values(disk) == [3, 4, 5]
        loop.save(6)
        assert values(disk) == [4, 5, 6]
    with Loop(disk).engine as engine:
        assert engine.resume().step == 6  # type: ignore[union-attr]


def test_a_process_that_starts_on_a_full_disk_is_told_and_can_start_when_there_is_room(disk: MemoryStore) -> None:
    loop = Loop(disk)
    with loop.engine:
        loop.save(1)
    disk.delete(layout.BALLAST)
    disk.capacity_bytes = used(disk)
    late = Loop(disk)
    with pytest.raises(MilepostError) as caught:
        late.engine.resume()
    assert caught.value.kind == "disk-full"
    assert float(late.state["policy"]["w"][0]) == 0.0
    disk.capacity_bytes = None
    assert late.engine.resume().step == 1  # type: ignore[union-attr]
    assert late.save(2) == 2
    late.engine.close()


def test_a_process_that_starts_on_a_full_disk_gives_up_the_ballast_and_makes_room(disk: MemoryStore) -> None:
    loop = Loop(disk, keep=Keep(last=10))
    with loop.engine:
        for value in (1, 2, 3):
            loop.save(value)
    disk.capacity_bytes = used(disk)
    late = Loop(disk, keep=Keep(last=10))
    with late.engine:
        assert late.engine.resume().step == 3  # type: ignore[union-attr]
        late.save(4)
    assert values(disk)[-1] == 4
    assert 1 not in values(disk)
    assert oneshot.verify(disk).ok


def test_the_ballast_is_held_again_once_there_is_room_and_not_rewritten_at_each_save(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Training(store) as training:
        training.save(1)
        training.save(2)
        assert store.names_asked("create").count(layout.BALLAST) == 1
        store.delete(layout.BALLAST)
        training.save(3)
    assert (tmp_path / layout.BALLAST).stat().st_size == 256 << 10
