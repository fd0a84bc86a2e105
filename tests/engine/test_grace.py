"""A safe point that is kept staged for a grace period is published at once when asked for, and else costs little. B9, B10"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost import budget, every
from milepost.clock import FakeClock
from milepost.engine import oneshot, saving
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.errors import ConflictError, SaveFailed, StoreError, UsageError
from milepost.lifecycle.grace import Grace, grace_of
from milepost.lifecycle.retain import Keep
from milepost.publish.view import read
from milepost.records import Summary
from milepost.store.base import Store
from milepost.store.memory import MemoryStore
from milepost.testing.faults import HANG_S, KILLED, FaultStore, run_in_child
from tests.engine.logs import window_of
from tests.engine.test_logs import ROW, Buffer, events
from tests.engine.training import Training, bits, local, set_to, state_at, with_logs

LONG_S = 40.0
"""How long it takes from one safe point to the next; the grace period is 30 s."""
IO = StoreError("could not write: Input/output error", kind="io", retryable=False, undone=True)


class Looping(Training):
    """Train with a clock that is told how long it takes."""

    def __init__(self, where: Path | Store, **options: Any) -> None:
        self.clock = FakeClock()
        options = {"grace": "30s", "clock": self.clock, "keep": Keep(last=3), "writer": "thread", **options}
        super().__init__(where, **options)

    def points(self, *steps: int, after_s: float = LONG_S, **arguments: Any) -> None:
        """Train to each step, with a safe point there."""
        for step in steps:
            self.clock.advance(seconds=after_s)
            self.train_to(step)
            self.engine.save_if_due(step, **arguments)

    def __enter__(self) -> Looping:
        self.engine.resume()
        return self

    @property
    def stagings(self) -> int:
        return self.engine.overhead.stagings


@pytest.fixture(params=["thread", "inline", "process"])
def looping(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Looping]:
    with Looping(tmp_path / "run", writer=request.param) as made:
        yield made


@contextmanager
def broken(store: FaultStore, operation: str = "commit_blob") -> Iterator[None]:
    """Let a disk fail for a while."""
    store.fail(operation, error=IO, times=None)
    yield
    store._rules.clear()


def loaded(store: Store, which: int | None = None) -> Any:
    return bits(oneshot.load(store) if which is None else oneshot.load(store, which=which))


def test_where_safe_points_come_soon_enough_nothing_is_staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[object] = []
    monkeypatch.setattr(saving, "capture", lambda *a, **k: copied.append(a))
    with Looping(tmp_path) as looping:
        looping.points(*range(1, 60), after_s=30.0)
        looping.points(60, after_s=500.0)  # an evaluation
        looping.points(*range(61, 70), after_s=29.0)
        assert looping.engine.flush_staged() is None
        assert (copied, looping.stagings, looping.engine.overhead.staging_s) == ([], 0, 0.0)
    assert "staging" not in str(looping.engine.overhead)


def test_without_a_grace_period_nothing_is_staged_however_long_it_takes(tmp_path: Path) -> None:
    with Looping(tmp_path, grace=None) as looping:
        looping.points(1, 2, 3, after_s=4000.0)
        assert looping.stagings == 0
        assert looping.engine.flush_staged() is None


def test_a_flush_in_the_middle_of_a_rollout_publishes_the_last_safe_point_as_it_was(looping: Looping) -> None:
    looping.points(1)
    assert looping.stagings == 0, "how far apart they come is not known yet"
    looping.engine.report(2, {"loss": 0.5, "return": 1.0})
    looping.points(2, episodes=7, counters={"updates": 3})
    looping.engine.report(3, {"loss": 0.25})
    looping.clock.advance(seconds=17)
    looping.train_to(99)
    flushed = looping.engine.flush_staged()
    assert flushed is not None
    assert (flushed.step, flushed.reason, flushed.complete) == (2, "preempted", True)
    assert flushed.counters == {"episodes": 7, "epochs": 0, "updates": 3}
    assert float.fromhex(flushed.elapsed_s) == 2 * LONG_S
    assert {name: metric.number for name, metric in flushed.metrics.items()} == {"loss": 0.5, "return": 1.0}
    assert loaded(looping.store) == bits(state_at(2))
    assert looping.engine.flush_staged() == flushed, "it is saved"
    assert len(read(looping.store).live) == 1


def test_training_goes_on_after_a_flush_and_the_next_saves_are_as_ever(looping: Looping) -> None:
    looping.points(1, 2)
    looping.engine.flush_staged("a notice that was withdrawn")
    looping.engine.report(3, {"loss": 0.25})
    looping.points(3)
    assert looping.engine.wait().step == 2  # type: ignore[union-attr]
    looping.points(4)
    assert looping.engine.flush_staged().step == 4  # type: ignore[union-attr]
    saved = looping.save(5)
    assert (saved.number, saved.step, saved.metrics) == (3, 5, {})
    assert [each.reason for _, each in sorted(read(looping.store).live.items())] == [
        "a notice that was withdrawn",
        "preempted",
        "manual",
    ]
    for number, step in ((1, 2), (2, 4), (3, 5)):
        assert loaded(looping.store, number) == bits(state_at(step))
    assert oneshot.verify(looping.store).problems == ()


def test_a_flush_with_nothing_staged_returns_what_is_saved(tmp_path: Path) -> None:
    looping = Looping(tmp_path)
    assert looping.engine.flush_staged() is None, "it has not even claimed its root"
    with looping:
        assert looping.engine.flush_staged() is None
        saved = looping.save(1)
        assert looping.engine.flush_staged() == saved
        looping.points(2, 3)
        later = looping.save(4)
        assert looping.engine.flush_staged() == later, "what was staged before is older than what is saved"
    assert looping.engine.flush_staged() == later, "and what was staged when the engine was closed is gone"


def test_a_flush_waits_for_the_save_in_flight_and_saves_nothing_twice(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Looping(store) as looping:
        gate = store.pause("commit_blob")
        looping.points(1, 2)
        looping.engine.save(3)
        gate.wait_until_reached()
        found: list[Summary | None] = []
        flushing = threading.Thread(target=lambda: found.append(looping.engine.flush_staged()), name="flush")
        flushing.start()
        looping.points(4)
        assert looping.stagings == 1, "no second copy while the first is written"
        gate.release()
        flushing.join(HANG_S)
        assert [each.step for each in found if each] == [3]
        assert len(read(store).live) == 1


def test_training_comes_past_its_next_safe_point_while_a_flush_is_written(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Looping(store, when=every(steps=100)) as looping:
        looping.points(1, 2)
        gate = store.pause("commit_blob")
        found: list[Summary | None] = []
        flushing = threading.Thread(target=lambda: found.append(looping.engine.flush_staged()), name="flush")
        flushing.start()
        gate.wait_until_reached()
        looping.engine.report(100, {"loss": 1.0})
        looping.points(100)
        assert looping.stagings == 1
        gate.release()
        flushing.join(HANG_S)
        assert [each.step for each in found if each] == [2]
        assert loaded(store) == bits(state_at(2))
        looping.points(101)
        assert looping.engine.wait().step == 101  # type: ignore[union-attr]
        assert loaded(store) == bits(state_at(101))


def test_two_flushes_at_once_publish_one_generation_and_both_return_it(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Looping(store) as looping:
        looping.points(1, 2)
        gate = store.pause("create", "generations/*")
        found: list[Summary | None] = []
        flushing = [
            threading.Thread(target=lambda: found.append(looping.engine.flush_staged()), name=f"flush-{n}") for n in range(3)
        ]
        for each in flushing:
            each.start()
        gate.wait_until_reached()
        gate.release()
        for each in flushing:
            each.join(HANG_S)
        assert [each.number for each in found if each] == [1, 1, 1]


@pytest.mark.parametrize("policy", ["raise", "warn"])
def test_a_flush_that_fails_says_so_and_may_be_tried_again_with_all_that_was_in_it(tmp_path: Path, policy: Any) -> None:
    store = FaultStore(local(tmp_path))
    with Looping(store, on_save_error=policy, save_errors_max=5) as looping:
        looping.engine.report(1, {"loss": 0.5})
        looping.points(1, 2)
        looping.train_to(50)
        with broken(store), pytest.raises(SaveFailed, match="unharmed") as caught:
            looping.engine.flush_staged()
        assert caught.value.kind == "io"
        looping.engine.wait()  # it is told once
        flushed = looping.engine.flush_staged()
        assert flushed is not None
        assert (flushed.step, [*flushed.metrics]) == (2, ["loss"])
        assert loaded(store) == bits(state_at(2))
        assert looping.save(51).metrics == {}


def test_a_flush_that_fails_loses_nothing_of_the_next_save(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with with_logs(), Looping(store) as looping:
        looping.engine.report(1, {"loss": 0.5})
        looping.points(1, 2)
        with broken(store, "create"), pytest.raises(SaveFailed):
            looping.engine.flush_staged()
        saved = looping.save(3)
        assert [*saved.metrics] == ["loss"]
        assert loaded(store) == bits(state_at(3))


def test_a_save_that_failed_in_flight_is_told_by_the_flush_that_waited_for_it(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Looping(store) as looping:
        with broken(store):
            looping.engine.save(1)
            with pytest.raises(SaveFailed):
                looping.engine.flush_staged()
        assert looping.engine.flush_staged() is None


def test_rows_gone_from_the_disk_fail_a_flush_and_the_next_safe_point_saves_them_all(tmp_path: Path) -> None:
    with with_logs(), Looping(tmp_path) as looping:
        looping.save(1)
        looping.points(2, 3)
        for path in (tmp_path / "blobs").iterdir():
            path.unlink()
        with pytest.raises(SaveFailed) as caught:
            looping.engine.flush_staged()
        assert caught.value.kind == "blobs-gone"
        with pytest.raises(SaveFailed):
            looping.engine.flush_staged()
        looping.points(4)
        assert looping.engine.wait().step == 4  # type: ignore[union-attr]
        assert loaded(looping.store) == bits(state_at(4))


def test_a_fenced_engine_flushes_nothing(tmp_path: Path) -> None:
    looping = Looping(tmp_path)
    looping.engine.resume()
    looping.points(1, 2)
    with Training(tmp_path, take_over=True) as other:
        other.save(7)
    for _ in range(2):
        with pytest.raises(ConflictError):
            looping.engine.flush_staged()
    looping.engine.close()
    assert [each.step for each in read(local(tmp_path)).live.values()] == [7]


@pytest.mark.parametrize("back", ["resume", "anew", "adopt", "failed"])
def test_what_is_staged_is_dropped_when_the_state_goes_back(tmp_path: Path, back: str) -> None:
    with Looping(tmp_path) as looping:
        looping.save(1)
        looping.points(2, 3)
        if back == "failed":
            looping.state["policy"]["w"] = np.zeros(3)
            with pytest.raises(Exception, match="w"):
                looping.engine.resume()
        elif back == "adopt":
            looping.engine.adopt()
        else:
            looping.engine.resume("never" if back == "anew" else "latest")
        flushed = looping.engine.flush_staged()
        assert flushed is not None
        assert (flushed.step, flushed.number) == (1, 1)


def test_a_look_at_what_a_resume_would_take_keeps_what_is_staged(tmp_path: Path) -> None:
    with Looping(tmp_path) as looping:
        looping.save(1)
        looping.points(2, 3)
        assert looping.engine.peek().step == 1  # type: ignore[union-attr]
        assert looping.engine.flush_staged().step == 3  # type: ignore[union-attr]


def test_after_a_resume_the_first_safe_point_is_staged_already(tmp_path: Path) -> None:
    with Looping(tmp_path) as looping:
        looping.save(1)
    with Looping(tmp_path) as again:
        again.points(2)
        assert again.stagings == 1
        assert again.engine.flush_staged().step == 2  # type: ignore[union-attr]


def test_an_exception_out_of_the_loop_saves_the_last_safe_point_and_not_the_live_state(tmp_path: Path) -> None:
    def train(looping: Looping) -> None:
        with looping:
            looping.points(1, 2)
            looping.train_to(77)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(Looping(tmp_path))
    head = read(local(tmp_path)).head
    assert head is not None
    assert (head.step, head.reason) == (2, "ended by an exception")


def test_a_forked_child_may_not_flush(tmp_path: Path) -> None:
    def flush() -> None:
        with pytest.raises(UsageError) as caught:
            looping.engine.flush_staged()
        assert caught.value.kind == "forked"

    with Looping(tmp_path) as looping:
        looping.points(1, 2)
        with looping.engine._turn:  # as if another thread were at it, just then
            assert run_in_child(flush) == 0
            assert run_in_child(looping.engine.close) == 0
        assert looping.engine.flush_staged().step == 2  # type: ignore[union-attr]


def test_a_flush_from_within_a_save_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    class Interrupted:
        def state_dict(self) -> object:
            if len(kinds) < 2 and looping.engine._open is not None:
                with pytest.raises(UsageError) as caught:
                    looping.engine.flush_staged()
                kinds.append(caught.value.kind)
            return {}

        def load_state_dict(self, state: object) -> None: ...

    kinds: list[str] = []
    looping = Looping(tmp_path)
    looping.state["extra"] = Interrupted()
    looping.engine.state["extra"] = looping.state["extra"]
    with looping:
        looping.points(1, 2)
        assert kinds == ["flush-within"]
        assert looping.engine.flush_staged().step == 2  # type: ignore[union-attr]


def test_a_state_that_comes_in_waves_is_refused_up_front_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Looping(tmp_path, staging_bytes=4096) as looping:
        assert "staging_bytes=" in caplog.text
        looping.points(*range(1, 9))
        saved = looping.save(9)
        looping.points(10, 11)
        assert looping.stagings == 0
        assert looping.engine.flush_staged() == saved
    assert caplog.text.count("grace=") == 1


def test_logs_that_outgrow_the_memory_are_not_staged_until_they_are_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    buffer = Buffer()
    clock = FakeClock()
    state = {"replay": {"rows": buffer.rows}, "counters": {"step": 0}}
    with CheckpointEngine(local(tmp_path), state=state, staging_bytes=40_000, grace=30, clock=clock) as engine:
        engine.resume()

        def point(step: int, rows: int) -> int:
            clock.advance(seconds=LONG_S)
            buffer.add(rows)
            engine.save_if_due(step)
            return engine.overhead.stagings

        assert point(1, 10) == 0
        assert point(2, 10) == 1
        assert point(3, 1000) == 1
        assert point(4, 10) == 1
        assert engine.flush_staged() is None
        engine.save(5)
        engine.wait()
        assert point(6, 10) == 2
        assert engine.flush_staged().step == 6  # type: ignore[union-attr]
    assert caplog.text.count("grace=") == 1
    content: Any = oneshot.load(local(tmp_path))
    assert bits(window_of(content["replay"]["rows"])) == bits(window_of(buffer.rows))


def test_new_rows_are_staged_at_the_price_of_rows_and_not_of_capacity(tmp_path: Path) -> None:
    buffer = Buffer()
    looping = Looping(tmp_path)
    looping.state["replay"]["rows"] = buffer.rows
    with looping:
        buffer.add(15_000)
        looping.save(1)
        beside = looping.engine.overhead.staged_bytes
        for step, rows in ((2, 5), (3, 100), (4, 100), (5, 100)):
            buffer.add(rows)
            looping.points(step)
        more = looping.engine.overhead.staged_bytes - beside
        since_the_save = (5 + 105 + 205 + 305) * ROW
        assert looping.stagings == 4
        assert since_the_save < more < since_the_save + 4 * 7_000
        flushed = looping.engine.flush_staged()
        assert flushed is not None
        assert flushed.new_bytes < 305 * ROW + 20_000
        content: Any = oneshot.load(looping.store)
        assert bits(window_of(content["replay"]["rows"])) == bits(window_of(buffer.rows))


@pytest.mark.parametrize("then", ["save", "flush"])
def test_rows_of_a_staging_that_nobody_wrote_are_in_the_next(tmp_path: Path, then: str) -> None:
    with with_logs(), Looping(tmp_path) as looping:
        looping.save(1)
        looping.points(2, 3)
        looping.points(4)
        assert looping.stagings == 3
        if then == "save":
            looping.save(4)
        else:
            looping.engine.flush_staged()
        assert loaded(looping.store) == bits(state_at(4))
        looping.points(5)
        looping.train_to(6)
        looping.engine.flush_staged()
        assert loaded(looping.store) == bits(state_at(5)), "what was touched since then is not in it"
        looping.save(7)
        assert loaded(looping.store) == bits(state_at(7)), "and in the next"


@pytest.mark.parametrize("then", ["save", "flush"])
def test_rows_that_were_touched_before_a_staging_that_nobody_wrote_are_in_the_next(tmp_path: Path, then: str) -> None:
    buffer = Buffer()
    buffer.rows.log.piece_bytes, buffer.rows.log.gap_bytes = 5 * ROW, 1
    looping = Looping(tmp_path)
    looping.state["replay"]["rows"] = buffer.rows
    with looping:
        buffer.add(500)
        looping.save(1)
        for step, row in ((2, 20), (3, 250), (4, 440)):
            buffer.write(row, 9_000 + step)
            buffer.rows.touch(row, row + 1)
            buffer.add(7)
            looping.points(step)
        assert looping.stagings == 3
        if then == "save":
            looping.save(5)
        else:
            looping.engine.flush_staged()
        assert events(looping.store, "published")[-1]["doubts"] == [], "and nothing had to be found out"
        content: Any = oneshot.load(looping.store)
        assert bits(window_of(content["replay"]["rows"])) == bits(window_of(buffer.rows))


def test_the_time_to_the_next_save_begins_with_the_safe_point_that_was_flushed(tmp_path: Path) -> None:
    with Looping(tmp_path, when=every(seconds=100)) as looping:
        looping.points(1, 2)
        looping.engine.flush_staged()
        looping.points(3, 4)
        assert looping.engine.wait().step == 2  # type: ignore[union-attr]
        looping.points(5)
        assert looping.engine.wait().step == 5  # type: ignore[union-attr]


def test_what_a_log_doubts_is_told_with_what_is_written_and_not_with_what_is_only_staged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with with_logs(), Looping(tmp_path) as looping:
        looping.save(1)
        looping.points(2)
        looping.state["replay"]["ring"].log.forget("somebody was at it")
        looping.points(3, 4)
        assert "somebody was at it" not in caplog.text
        looping.save(5)
        assert caplog.text.count("somebody was at it") == 1


ACTS = st.lists(st.sampled_from(["point", "point", "train", "save", "flush", "fail", "fail flush", "resume"]), max_size=14)


@settings(max_examples=60, deadline=None)
@given(acts=ACTS)
def test_whatever_is_staged_dropped_written_and_failed_each_generation_holds_its_step(acts: list[str]) -> None:
    store = FaultStore(MemoryStore(f"memory://{os.urandom(8).hex()}"))
    with with_logs(), Looping(store, writer="inline", keep=Keep(last=2)) as looping:
        step, staged = 0, None
        for act in acts:
            step += 1
            head = read(store).head
            if act in ("fail", "fail flush"):
                store.fail("commit_blob", error=IO, times=None)
            try:
                if act == "point":
                    before = looping.stagings
                    looping.points(step)
                    staged = step if looping.stagings > before else staged
                elif act == "train":
                    looping.train_to(step)
                elif act in ("save", "fail"):
                    staged = None
                    looping.save(step)
                elif act in ("flush", "fail flush"):
                    looping.train_to(step)
                    flushed = looping.engine.flush_staged()
                    if staged is not None:
                        assert flushed is not None
                        assert flushed.step == staged
                elif head is not None:
                    staged = None
                    looping.engine.resume()
                    step = head.step
                    assert looping.is_at(step)
            except SaveFailed:
                assert act.startswith("fail")
            store._rules.clear()
            for number, summary in read(store).live.items():
                assert loaded(store, number) == bits(state_at(summary.step))


def takes(looping: Looping, seconds: float, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function = getattr(saving, name)

    def takes_time(*arguments: Any, **options: Any) -> Any:
        looping.clock.advance(seconds=seconds)
        return function(*arguments, **options)

    monkeypatch.setattr(saving, name, takes_time)


def test_what_staging_takes_is_counted_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    caplog.set_level("INFO", "milepost")
    looping = Looping(tmp_path, when=budget(max_overhead=0.02), writer="inline")
    takes(looping, 0.2, "capture", monkeypatch)
    takes(looping, 2.0, "write_with_relief", monkeypatch)
    with looping:
        looping.points(*range(1, 100))
        looping.engine.wait()
        overhead = looping.engine.overhead
        assert overhead.saves > 10
        assert overhead.stagings > 20
        assert overhead.stagings + overhead.saves in (98, 99)
        assert overhead.staging_s == pytest.approx(0.2 * overhead.stagings)
        size = sum(leaf.nbytes for leaf in _arrays(state_at(1)))
        assert size <= overhead.staged_bytes / overhead.stagings < size + 1000
        assert f"staging {overhead.staging_s:.2f} s ({overhead.stagings} safe points)" in str(overhead)
        assert 0.2 / LONG_S / 2 < overhead.costs.staging_share <= 0.2 / LONG_S
        assert overhead.ratio < 0.02 * 1.3
    assert caplog.text.count("kept staged") == 1
    assert "200.0 ms" in caplog.text
    told = events(local(tmp_path), "staged")
    assert 0 < sum(event["stagings"] for event in told) <= overhead.stagings
    assert told[0]["milliseconds"] == {"staging": f"{200 * told[0]['stagings']:.3f}"}
    assert float(events(local(tmp_path), "budget")[-1]["staging_share"]) > 0


def _arrays(state: Any) -> Iterator[Any]:
    if isinstance(state, np.ndarray):
        yield state
    elif isinstance(state, dict | list):
        for part in state.values() if isinstance(state, dict) else state:
            yield from _arrays(part)


def test_staging_that_takes_more_than_its_half_of_the_budget_is_told_as_an_excess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    looping = Looping(tmp_path, when=budget(max_overhead=0.02), writer="inline")
    takes(looping, 2.0, "capture", monkeypatch)
    with looping:
        looping.points(*range(1, 60))
    assert "max_overhead" in caplog.text
    choice = looping.engine.overhead.choice
    assert choice is not None
    assert choice.interval_s == pytest.approx(2.0 / 0.01 + 2.0, rel=0.05), "saves do not starve"


def test_a_flush_teaches_a_budget_nothing_of_what_the_next_save_takes(tmp_path: Path) -> None:
    with Looping(tmp_path, when=budget(max_overhead=0.02, max_loss="5min")) as looping:
        looping.points(1, 2, 3)
        looping.engine.wait()
        before = looping.engine.overhead
        looping.points(4, 5, after_s=35)
        looping.clock.advance(seconds=35)
        looping.engine.flush_staged()
        looping.points(6, after_s=1)
        after = looping.engine.overhead
        assert after.saves >= before.saves
        assert after.costs.stall_s == 0.0


@pytest.mark.parametrize("setting", [0, -1, True, "soon", float("nan")])
def test_what_is_no_length_of_time_is_refused(tmp_path: Path, setting: Any) -> None:
    with pytest.raises(UsageError):
        Looping(tmp_path, grace=setting)


def test_what_is_usual_decides_whether_rollouts_outlast_the_grace_period() -> None:
    grace = grace_of("30s")
    assert grace is not None
    assert not grace.outlasted
    for gap_s, outlasted in ((40.0, True), (1.0, False), (50.0, True), (31.0, True), (1.0, True), (1.0, False)):
        grace.note(gap_s)
        assert grace.outlasted is outlasted
    for _ in range(8):
        grace.note(60.0)
    assert grace.outlasted
    assert grace_of(None) is None
    assert isinstance(grace_of(5), Grace)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("writer", ["thread", "process"])
def test_a_kill_right_after_a_flush_loses_nothing_of_that_safe_point(tmp_path: Path, writer: str) -> None:
    def train() -> None:
        looping = Looping(tmp_path, writer=writer).__enter__()
        looping.points(1, 2)
        looping.train_to(70)
        looping.engine.flush_staged()
        os._exit(KILLED)

    assert run_in_child(train) == KILLED
    with Looping(tmp_path, lease_wait=HANG_S) as again:
        assert again.is_at(2)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("writer", ["thread", "process"])
def test_what_is_only_staged_when_the_process_is_killed_was_never_saved(tmp_path: Path, writer: str) -> None:
    def train() -> None:
        looping = Looping(tmp_path, writer=writer).__enter__()
        looping.save(1)
        looping.points(2, 3)
        assert looping.stagings
        os._exit(KILLED)

    assert run_in_child(train) == KILLED
    with Looping(tmp_path, lease_wait=HANG_S) as again:
        assert again.is_at(1)
        set_to(again.state, 5)
        assert again.save(5).number == 2
