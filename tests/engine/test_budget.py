"""A real engine on a clock of ours: it measures its saves, and a budget says when the next one is due. B4"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from milepost import Keep, budget, every
from milepost.clock import FakeClock
from milepost.encode.digest import unseal
from milepost.engine import saving
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.errors import SaveFailed, StoreError
from milepost.publish import layout
from milepost.publish.view import read
from milepost.store.base import Store
from milepost.store.memory import MemoryStore
from milepost.testing.faults import FaultStore


class Heavy:
    """Be a part of the state that takes its time to be copied, and nothing else does."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds
        self.saving = False

    def state_dict(self) -> dict[str, Any]:
        self.clock.advance(seconds=self.seconds if self.saving else 0)
        return {"w": np.zeros(4)}

    def load_state_dict(self, state: Any) -> None:
        pass


class Trainer:
    """Train by advancing the clock: a second a step, a safe point after each."""

    def __init__(self, where: Store | str, *, copy_s: float = 0.0, **settings: Any) -> None:
        self.clock = FakeClock(now_ns=10**15)
        self.heavy = Heavy(self.clock, copy_s)
        settings = {"writer": "inline", **settings}
        self.engine = CheckpointEngine(where, state={"policy": self.heavy}, clock=self.clock, **settings)
        self.engine.claim()
        self.engine.resume()
        self.heavy.saving = True
        self.step = 0
        self.saved: list[int] = []

    def train(self, steps: int, *, step_s: float = 1.0) -> None:
        for _ in range(steps):
            self.step += 1
            self.clock.advance(seconds=step_s)
            if self.engine.save_if_due(self.step):
                self.saved.append(self.step)

    def train_until_saved(self, *, step_s: float = 1.0) -> None:
        count = len(self.saved)
        while len(self.saved) == count:
            self.train(1, step_s=step_s)


class Writes:
    """Stand for the disk beneath every save: how long a write takes, and whether it fails."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.seconds = 0.0
        self.failing = 0


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    writes, write = Writes(), saving.write_with_relief

    def slowly(*args: Any) -> Any:
        writes.clock.advance(seconds=writes.seconds)
        if writes.failing:
            writes.failing -= 1
            raise StoreError("the disk says no", kind="io")
        return write(*args)

    monkeypatch.setattr(saving, "write_with_relief", slowly)
    return writes


def budget_events(store: Store) -> list[dict[str, Any]]:
    name = layout.events(1)
    lines = store.read(name).splitlines(keepends=True)
    events = [msgspec.json.decode(unseal(line, name)) for line in lines]
    return [event for event in events if event["event"] == "budget"]


def test_in_the_calling_thread_a_save_stands_in_the_way_as_long_as_it_takes(writes: Writes) -> None:
    store = MemoryStore()
    trainer = Trainer(store, when=budget(), keep=Keep(last=100), copy_s=0.25)
    writes.clock, writes.seconds = trainer.clock, 0.75
    trainer.train(3000)
    engine = trainer.engine
    assert engine.overhead.costs.stall_s == pytest.approx(1.0)
    assert engine.overhead.costs.background_s == 0
    gaps = np.diff(trainer.saved)
    assert trainer.saved[0] == 30, "a first save is made early"
    assert set(gaps) == {50}, "and then each is earned: one second in fifty"
    assert engine.overhead.ratio == pytest.approx(0.02, rel=0.05)
    engine.close()
    live = read(store).live
    assert [live[1].reason, live[2].reason, live[len(live)].reason] == ["budget: first", *["budget: max_overhead"] * 2]


def test_what_was_chosen_and_why_is_in_the_event_log_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "milepost")
    store = MemoryStore()
    trainer = Trainer(store, when=every(steps=100_000) | budget(max_loss="5min"), copy_s=1.0)
    trainer.train(1000)
    trainer.heavy.seconds = 20.0
    trainer.train(4000)
    trainer.engine.close()
    events = budget_events(store)
    assert events[0]["bound"] == "max_overhead"
    assert events[0]["interval_s"] == "51.000"
    assert events[0]["step"] == 31
    assert (events[-1]["bound"], events[-1]["exceeded"]) == ("max_loss", ["max_overhead"])
    assert events[-1]["interval_s"] == "273.000"
    assert len(events) < 12
    told = [record for record in caplog.records if "budget" in record.message or "saves every" in record.message]
    assert [record.levelno for record in told].count(logging.WARNING) == 1
    assert "cannot hold (max_overhead)" in next(record.message for record in told if record.levelno == logging.WARNING)


def test_beside_training_the_steps_that_are_slower_are_counted_and_no_more_than_the_save_took(tmp_path: Path) -> None:
    store = FaultStore(MemoryStore())
    trainer = Trainer(store, when=budget(), copy_s=0.5, writer="thread")
    engine = trainer.engine
    for round_ in range(6):
        gate = store.pause("create", "generations/*")
        trainer.train_until_saved()
        gate.wait_until_reached()
        trainer.train(4, step_s=1.5)  # beside the save
        assert engine.overhead.saves == round_, "what is in flight is not judged"
        gate.release()
        engine.wait()
    trainer.train(1)
    costs = engine.overhead.costs
    assert costs.stall_s == 0.5
    assert costs.duration_s == 6.5
    assert costs.background_s == pytest.approx(2.0)
    assert engine.overhead.background_s == pytest.approx(12.0)
    assert engine.overhead.choice is not None
    assert engine.overhead.choice.interval_s == pytest.approx(2.5 / 0.02 + 2.5)
    engine.close()


def test_a_save_that_waits_for_the_one_before_is_charged_with_the_wait() -> None:
    store = FaultStore(MemoryStore())
    trainer = Trainer(store, writer="thread")
    engine, clock = trainer.engine, trainer.clock
    trainer.train(20)
    gate = store.pause("create", "generations/*")
    engine.save(20)
    gate.wait_until_reached()
    clock.advance(seconds=1)
    wait = engine._background.join

    def join() -> None:
        if not gate._open.is_set():
            clock.advance(seconds=9)
            gate.release()
        wait()

    engine._background.join = join  # type: ignore[method-assign]
    engine.save(21)
    assert engine.overhead.stall_s == pytest.approx(9.0)
    engine.wait()
    trainer.train(1)
    assert (engine.overhead.saves, engine.overhead.stall_s) == (2, pytest.approx(9.0))
    assert engine.overhead.background_s == pytest.approx(0.0), "the step beside the first took what steps take"
    assert engine.overhead.choice is None, "there is no budget"
    engine.close()


def test_a_disk_that_hangs_is_told_by_the_logger_at_once_and_in_the_log_of_events_when_it_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FaultStore(MemoryStore())
    trainer = Trainer(store, when=budget(max_loss="2min"), writer="thread")
    for _ in range(4):
        trainer.train_until_saved()
        trainer.engine.wait()
    gate = store.pause("create", "generations/*")
    trainer.train_until_saved()
    gate.wait_until_reached()
    trainer.train(108)
    assert not caplog.records
    trainer.train(10)
    (record,) = caplog.records
    assert "cannot hold (max_loss)" in record.message
    appended = store.names_asked("append")
    trainer.train(50)
    assert len(caplog.records) == 1, "once"
    assert store.names_asked("append") == appended, "the thread that trains touches no disk that hangs"
    gate.release()
    trainer.engine.wait()
    trainer.train_until_saved()
    trainer.engine.close()
    assert [event["exceeded"] for event in budget_events(store)] == [[], ["max_loss"]]


def test_saves_that_fail_are_tried_again_sooner_and_the_interval_comes_back(writes: Writes) -> None:
    trainer = Trainer(MemoryStore(), when=budget(max_loss="5min"), copy_s=10.0, on_save_error="warn", save_errors_max=9)
    trainer.train(3000)
    usual = int(np.diff(trainer.saved)[-1])
    assert usual == pytest.approx(294 - 20 - 1, abs=2)
    writes.failing = 4
    trainer.train_until_saved()
    failed = len(trainer.saved) - 1
    for _ in range(5):
        trainer.train_until_saved()
    assert trainer.engine.overhead.failed == 4
    waits = [int(wait) for wait in np.diff(trainer.saved)[failed : failed + 5]]
    assert waits == [9, 28, 65, 65, usual], "and ten seconds of each are the save before"
    trainer.engine.close()


def test_a_save_that_failed_is_raised_as_ever(writes: Writes) -> None:
    trainer = Trainer(MemoryStore(), when=budget())
    writes.failing = 1
    with pytest.raises(SaveFailed):
        trainer.train(31)
    trainer.engine.close()


def test_a_resume_learns_anew_and_a_rollback_in_one_process_keeps_what_is_known() -> None:
    store = MemoryStore()
    trainer = Trainer(store, when=budget(), copy_s=1.0)
    trainer.train(40)
    known = trainer.engine.overhead
    trainer.clock.advance(seconds=10_000)  # whatever happens before it is no training beside a save
    trainer.engine.resume()
    assert trainer.engine.overhead.costs == known.costs
    count = len(trainer.saved)
    trainer.train(50)
    assert len(trainer.saved) == count, "the time to the next save begins with what was loaded"
    trainer.train(3)
    assert len(trainer.saved) == count + 1
    assert trainer.engine.overhead.costs.gap_s == 1.0
    trainer.engine.close()
    again = Trainer(store, when=budget(), copy_s=1.0)
    assert again.engine.overhead.saves == 0
    again.train(31)
    assert again.saved == [30]
    again.engine.close()


def test_the_measure_is_taken_without_a_budget_too() -> None:
    trainer = Trainer(MemoryStore(), when=every(steps=100), copy_s=1.0)
    trainer.train(1050)
    overhead = trainer.engine.overhead
    assert (overhead.saves, overhead.stall_s, overhead.ratio) == (10, 10.0, pytest.approx(10 / 1050))
    assert str(overhead).startswith("saving took 0.95% of 1050 s: 10 saves (0 failed), stall 10.00 s")
    trainer.engine.close()
