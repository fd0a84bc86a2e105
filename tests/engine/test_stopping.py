"""A process that is to end saves at the next safe point, gives its root up, and says so. Nothing is lost by it. B11"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost import Keep, Stop, Stopped, every
from milepost.clock import FakeClock
from milepost.engine import beats, oneshot, requests, resuming
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.errors import ConflictError, SaveFailed, StoreError, UsageError
from milepost.publish.view import read
from milepost.store.base import Store
from milepost.store.memory import MemoryStore
from milepost.testing.faults import FaultStore
from tests.engine.training import Training, bits, local, state_at, with_logs

IO = StoreError("could not write: Input/output error", kind="io", retryable=False, undone=True)


class Stopping(Training):
    """Train on a clock of its own. A save takes no time, as far as that tells."""

    def __init__(self, where: Path | Store, **options: Any) -> None:
        self.clock = options.pop("clock", None) or FakeClock()
        super().__init__(where, **{"clock": self.clock, "keep": Keep(last=3), "writer": "thread", **options})

    def __enter__(self) -> Stopping:
        self.engine.resume()
        return self

    def point(self, step: int, after_s: float = 1.0, **arguments: Any) -> bool:
        self.clock.advance(seconds=after_s)
        self.train_to(step)
        return self.engine.save_if_due(step, **arguments)

    def stop_at(self, step: int, after_s: float = 1.0) -> Stopped:
        """Train to a safe point, at which the engine leaves."""
        with pytest.raises(Stopped) as caught:
            self.point(step, after_s)
        return caught.value


@contextmanager
def supervised(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder.mkdir()
    monkeypatch.setenv("MILEPOST_SUPERVISED", str(folder))
    yield folder


def events(store: Store) -> list[dict[str, Any]]:
    return [json.loads(line) for entry in store.list("events/") for line in store.read(entry.name).splitlines()]


def record_in(folder: Path) -> Any:
    (path,) = folder.glob("stopped-*")
    assert path.name == f"stopped-{os.getpid()}.json"
    return json.loads(path.read_text())


def beat_in(folder: Path) -> beats.Beats:
    (path,) = folder.glob("beat-*")
    found = beats.read(path)
    assert found is not None
    return found


@pytest.mark.parametrize("writer", ["thread", "inline", "process"])
def test_the_next_safe_point_saves_gives_the_root_up_and_ends_the_process(
    tmp_path: Path, writer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "run"
    with supervised(tmp_path / "attempt", monkeypatch) as folder, with_logs():
        training = Stopping(root, writer=writer)

        def train() -> None:
            assert not training.point(1)
            training.engine.stop_by("30s", path="SIGTERM")
            assert training.engine.stopping is not None
            assert (training.engine.stopping.path, training.engine.stopping.deadline_ns) == ("SIGTERM", 31 * 10**9)
            stopped = training.stop_at(2)
            assert (stopped.code, stopped.path, stopped.summary.step) == (75, "SIGTERM", 2)  # type: ignore[union-attr]
            # Free before anybody has handled it: a supervisor may start the next attempt as soon as this process is gone.
            with Training(root) as successor:
                assert successor.engine.resume().generation == 1  # type: ignore[union-attr]
                assert successor.is_at(2)
            raise stopped

        with pytest.raises(Stopped), training:
            train()
        assert record_in(folder) == {"path": "SIGTERM", "exit_code": 75, "generation": 1, "step": 2, "complete": True}
    with pytest.raises(UsageError, match="closed"):
        training.point(3)
    told = [event for event in events(local(root)) if event["event"] in ("stopping", "published", "stopped")]
    assert [event["event"] for event in told] == ["stopping", "published", "stopped"]
    assert told[0] | {"path": "SIGTERM", "left_s": "29.000", "at_once": True, "early": False} == told[0]
    assert told[1]["reason"] == "stopped by SIGTERM"
    assert told[2] | {"generation": 1, "step": 2, "complete": True, "left_out": [], "exit_code": 75} == told[2]


def test_a_signal_handler_and_any_thread_may_ask_for_it(tmp_path: Path) -> None:
    with Stopping(tmp_path) as training:
        before = signal.signal(signal.SIGUSR1, lambda *_: training.engine.stop_by(5, path="SIGUSR1", exit_code=130))
        try:
            signal.raise_signal(signal.SIGUSR1)
        finally:
            signal.signal(signal.SIGUSR1, before)
        asking = threading.Thread(target=training.engine.stop_by, kwargs={"path": "a thread"}, name="milepost-test-asks")
        asking.start()
        asking.join()
        stopped = training.stop_at(1)
        assert (stopped.path, stopped.code) == ("SIGUSR1", 130), "it has the deadline"


def test_it_ends_a_training_thread_and_the_rest_of_the_process_goes_on(tmp_path: Path) -> None:
    caught: list[BaseException] = []

    def train() -> None:
        try:
            with Stopping(tmp_path) as training:
                training.engine.stop_by()
                training.point(1)
        except BaseException as error:  # noqa: BLE001 - `threading` swallows a SystemExit
            caught.append(error)

    thread = threading.Thread(target=train, name="milepost-test-trains")
    thread.start()
    thread.join()
    assert [type(error) for error in caught] == [Stopped]
    assert oneshot.load(tmp_path)["counters"]["step"] == 1


def test_a_save_in_flight_is_waited_for(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    gate = store.pause("open_blob")
    with Stopping(store) as training:
        training.train_to(1)
        training.engine.save(1)
        gate.wait_until_reached()
        training.engine.stop_by("30s")
        releasing = threading.Thread(target=gate.release, name="milepost-test-releases")
        releasing.start()
        assert training.stop_at(2).summary.number == 2  # type: ignore[union-attr]
        releasing.join()
    assert [summary.step for summary in read(local(tmp_path)).live.values()] == [1, 2]


def test_that_the_save_before_failed_is_no_reason_to_make_no_last_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = FaultStore(local(tmp_path))
    with Stopping(store) as training:
        store.fail("commit_blob", error=IO, times=2)
        training.train_to(1)
        training.engine.save(1)
        training.engine.stop_by("30s")
        training.stop_at(2)
    assert "the save before the last one failed" in caplog.text
    assert oneshot.load(tmp_path)["counters"]["step"] == 2


def test_the_users_own_last_save_is_the_last_one_with_its_reason(tmp_path: Path) -> None:
    with Stopping(tmp_path) as training:
        training.engine.stop_by("30s", path="SIGTERM")
        training.train_to(4)
        with pytest.raises(Stopped) as caught:
            training.engine.save(4, reason="final", counters={"done": 1})
    assert caught.value.summary is not None
    assert (caught.value.summary.reason, caught.value.summary.counters["done"]) == ("final, stopped by SIGTERM", 1)
    assert len(read(local(tmp_path)).live) == 1


# -- not all fits --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", ["thread", "inline", "process"])
def test_where_not_all_fits_replay_is_left_out_and_the_next_start_goes_on_from_the_newest_complete_one(
    tmp_path: Path, writer: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "run"
    with supervised(tmp_path / "attempt", monkeypatch) as folder, with_logs():
        with Stopping(root, writer=writer, keep=Keep(last=1)) as training:
            training.save(1)
            training.engine.stop_by(0.001, path="SIGTERM")
            stopped = training.stop_at(2, after_s=0)
        assert stopped.summary is not None
        assert (stopped.summary.number, stopped.summary.complete, stopped.summary.healthy) == (2, False, True)
        assert stopped.summary.reason == (
            "stopped by SIGTERM, without replay: 0.0 s were left, and to save all takes about 0.5 s"
        )
        assert record_in(folder) == {"path": "SIGTERM", "exit_code": 75, "generation": 2, "step": 2, "complete": False}
        assert set(read(local(root)).live) == {1, 2}, "the newest complete one stays, whatever Keep(last=1) says"
        assert oneshot.verify(root).ok
        assert bits(oneshot.load(root, which=2)) == bits({k: v for k, v in state_at(2).items() if k != "replay"})
        with Stopping(root, writer=writer, keep=Keep(last=1)) as again:
            assert again.is_at(1)
            assert "generation 2 of step 2 is newer, but incomplete (stopped by SIGTERM, without replay" in caplog.text
            for step in (2, 3, 4):
                again.save(step)
        assert bits(oneshot.load(root)) == bits(state_at(4))
        assert oneshot.verify(root).ok
        # 1 is what this process has gone on from; what was saved in a hurry goes like any other, once it is behind.
        assert set(read(local(root)).live) == {1, 5}


def test_where_nothing_complete_exists_the_next_start_takes_what_there_is_and_says_what_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with with_logs():
        with Stopping(tmp_path) as training:
            training.engine.stop_by(0.001)
            training.stop_at(3, after_s=0)
        again = Stopping(tmp_path)
        restored = again.engine.resume()
        assert restored is not None
        assert (restored.generation, restored.step, restored.exact) == (1, 3, False)
        assert "replay" in caplog.text
        assert (again.state["policy"]["w"] == 3).all()
        assert again.state["replay"]["ring"].count == 0
        again.save(4)
        again.engine.close()
        assert bits(oneshot.load(tmp_path)) == bits(state_at(4))


def test_without_any_replay_in_the_state_all_of_it_is_the_essential(tmp_path: Path) -> None:
    engine = CheckpointEngine(tmp_path, state={"policy": {"w": np.zeros(4)}}, clock=FakeClock())
    engine.stop_by(0.001)
    with pytest.raises(Stopped) as caught:
        engine.save_if_due(1)
    assert caught.value.summary is not None
    assert caught.value.summary.complete
    assert caught.value.summary.reason == "stopped by stop_by"


def test_what_a_buffer_has_grown_to_decides_before_any_save_was_measured(tmp_path: Path) -> None:
    state = {"policy": {"w": np.zeros(4)}, "agent/replay": {"rows": np.zeros(0, np.uint8)}}
    engine = CheckpointEngine(tmp_path, state=state, clock=FakeClock())
    engine.claim()
    assert engine.last_call_ns is None
    engine.stop_by("10s")
    few = engine.last_call_ns
    state["agent/replay"] = {"rows": np.zeros(1 << 30, np.uint8)}  # not yet: components are what they were
    engine.state["agent/replay"] = {"rows": np.zeros(1 << 30, np.uint8)}  # type: ignore[index]
    with pytest.raises(Stopped) as caught:
        engine.save_if_due(1)
    assert caught.value.summary is not None
    assert not caught.value.summary.complete
    assert few is not None
    assert engine.last_call_ns is not None
    assert engine.last_call_ns < 0 < few < 10 * 10**9


def test_a_limit_that_is_far_away_does_not_have_the_state_looked_at_at_each_safe_point(tmp_path: Path) -> None:
    class Counted:
        looks = 0

        def state_dict(self) -> dict[str, int]:
            Counted.looks += 1
            return {"step": 0}

        def load_state_dict(self, state: dict[str, int]) -> None: ...

    clock = FakeClock()
    engine = CheckpointEngine(tmp_path, state={"policy": Counted()}, clock=clock)
    engine.resume()
    engine.stop_by("24h", path="limit 24h", at_once=False)
    before = Counted.looks
    for step in range(600):
        clock.advance(seconds=1.0)
        assert not engine.save_if_due(step)
    assert 5 <= Counted.looks - before <= 20
    engine.close()


# -- a stop whose save fails ---------------------------------------------------------------------------------------------------


def test_a_stop_whose_save_fails_is_no_clean_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FaultStore(local(tmp_path / "run"))
    with supervised(tmp_path / "attempt", monkeypatch) as folder:
        training = Stopping(store)
        with training:
            training.save(1)
            store.fail("commit_blob", error=IO, times=None)
            training.engine.stop_by("30s", path="SIGTERM")
            with pytest.raises(SaveFailed) as caught:
                training.point(2)
            assert caught.value.kind == "io"
            assert "asked to stop by SIGTERM, and the last save failed: the newest generation is 1" in caplog.text
            assert not list(folder.glob("stopped-*"))
            store._rules.clear()
            assert training.stop_at(3).summary.step == 3  # type: ignore[union-attr]  # who goes on all the same is not lost


def test_who_trains_on_through_failed_saves_tries_again_at_the_next_safe_point(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultStore(local(tmp_path))
    with Stopping(store, on_save_error="warn", save_errors_max=3) as training:
        training.engine.stop_by("30s", path="SIGTERM")
        store.fail("commit_blob", error=IO, times=4)
        assert training.point(1)
        assert training.point(2)
        assert caplog.text.count("the next safe point tries again") == 2
        training.stop_at(3)
    assert oneshot.load(tmp_path)["counters"]["step"] == 3


def test_who_trains_on_through_failed_saves_does_not_do_so_for_ever(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Stopping(store, on_save_error="warn", save_errors_max=2) as training:
        training.engine.stop_by("30s")
        store.fail("commit_blob", error=IO, times=None)
        training.point(1)
        with pytest.raises(SaveFailed):
            training.point(2)
        store._rules.clear()


def test_a_fenced_writer_leaves_with_the_conflict_and_no_word_of_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "run"
    with supervised(tmp_path / "attempt", monkeypatch) as folder:
        training = Stopping(root)
        training.engine.resume()
        training.save(1)
        with Training(root, take_over=True) as other:
            other.engine.resume()
            other.save(9)
            training.engine.stop_by("30s")
            with pytest.raises(ConflictError):
                training.point(2)
            with pytest.raises(ConflictError):
                training.point(3)
        with pytest.raises(ConflictError):
            training.engine.save(4)
        training.engine.close()
        assert not list(folder.glob("stopped-*"))
    assert oneshot.load(root)["counters"]["step"] == 9


def test_on_a_full_disk_the_last_save_makes_room_like_any_other(tmp_path: Path) -> None:
    store = MemoryStore()
    with Stopping(store, keep=Keep(last=5)) as training:
        for step in range(1, 6):
            training.save(step)
        store.capacity_bytes = sum(len(store.read(entry.name)) for entry in store.list("")) + 512
        training.engine.stop_by("30s")
        assert training.stop_at(6).summary.step == 6  # type: ignore[union-attr]
    assert bits(oneshot.load(store)) == bits(state_at(6))


# -- notices and limits --------------------------------------------------------------------------------------------------------


def test_a_notice_saves_early_and_trains_on_until_it_is_time(tmp_path: Path) -> None:
    training = Stopping(tmp_path, keep=Keep(last=9))
    with training:
        training.engine.stop_by("100s", path="notice", at_once=False, early=True)
        steps, saved = 0, []

        def train() -> None:
            nonlocal steps
            while True:
                steps += 1
                if training.point(steps, after_s=5.0):
                    saved.append(steps)
                    training.engine.wait()

        with pytest.raises(Stopped) as caught:
            train()
        assert saved == [1]
        assert caught.value.path == "notice"
        # A save takes no time on this clock, and is given a second and a half; the next safe point would be 5 s later.
        assert 90 <= 5 * steps <= 98.5
    assert [(each.step, each.reason) for each in read(local(tmp_path)).live.values()] == [
        (1, "ahead of the end: notice"),
        (steps, "stopped by notice"),
    ]


@settings(max_examples=30)
@given(st.lists(st.floats(0.01, 4.0), min_size=1, max_size=30), st.floats(5.0, 60.0))
def test_whatever_the_way_between_safe_points_it_leaves_while_a_save_still_fits(gaps: list[float], limit_s: float) -> None:
    clock = FakeClock()
    engine = CheckpointEngine(MemoryStore(), state={"policy": {"w": np.zeros(4)}}, clock=clock, writer="inline")
    engine.resume()
    engine.stop_by(limit_s, path="limit", at_once=False)
    longest_s, gap_s, steps = 0.0, 0.0, 0

    def train() -> None:
        nonlocal longest_s, gap_s, steps
        while True:
            longest_s, gap_s = max(longest_s, gap_s), gaps[steps % len(gaps)]
            steps += 1
            clock.advance(seconds=gap_s)
            engine.save_if_due(steps)

    with pytest.raises(Stopped):
        train()
    left_s = limit_s - clock.now_ns / 1e9
    if steps > 1 and gap_s <= longest_s:  # no rollout was longer than all before it
        assert left_s >= 1.7, "a save is given a second and three quarters before any was measured"
    assert left_s <= longest_s + gap_s + 3.0, "and not much earlier than it had to"


def test_a_notice_that_is_withdrawn_was_one_save_more(tmp_path: Path) -> None:
    with Stopping(tmp_path, keep=Keep(last=9)) as training:
        for number in range(2):
            training.engine.stop_by("1h", path="notice", at_once=False, early=True)
            assert training.point(1 + 10 * number)
            training.engine.wait()
            training.engine.withdraw("notice")
            training.engine.withdraw("another")
            assert training.engine.stopping is None
            for step in range(2, 8):
                assert not training.point(step + 10 * number, after_s=60.0)
    assert [each.step for each in read(local(tmp_path)).live.values()] == [1, 11]
    assert [event["path"] for event in events(local(tmp_path)) if event["event"] == "withdrawn"] == ["notice"]


def test_an_early_save_that_failed_is_made_again(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Stopping(store, on_save_error="warn") as training:
        store.fail("commit_blob", error=IO, times=2)
        training.engine.stop_by("1h", path="notice", at_once=False, early=True)
        assert training.point(1)
        training.engine._background.join()
        assert training.point(2)
        training.engine.wait()
        assert not training.point(3)
    assert oneshot.load(tmp_path)["counters"]["step"] == 2


def test_an_early_save_waits_for_no_save_in_flight(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    gate = store.pause("open_blob")
    with Stopping(store) as training:
        training.train_to(1)
        training.engine.save(1)
        gate.wait_until_reached()
        training.engine.stop_by("1h", path="notice", at_once=False, early=True)
        assert not training.point(2)
        gate.release()
        training.engine.wait()
        assert training.point(3)
        training.engine.wait()
        assert not training.point(4)


def test_a_path_that_fires_again_does_not_move_its_deadline_back(tmp_path: Path) -> None:
    with Stopping(tmp_path) as training:
        engine = training.engine
        engine.stop_by("30s", path="SIGTERM")
        training.clock.advance(seconds=10)
        engine.stop_by("30s", path="SIGTERM")
        assert engine.stopping is not None
        assert engine.stopping.deadline_ns == 30 * 10**9
        engine.stop_by("5s", path="SIGTERM")
        assert engine.stopping.deadline_ns == 15 * 10**9
        with pytest.raises(UsageError) as caught:
            engine.stop_by("soon")
        assert caught.value.kind == "bad-duration"


def test_a_safe_point_that_is_kept_staged_is_let_go_for_the_last_save(tmp_path: Path) -> None:
    with Stopping(tmp_path, grace="30s") as training:
        for step in (1, 2, 3):
            training.point(step, after_s=40.0)
        assert training.engine.overhead.stagings
        training.engine.stop_by("30s", path="SIGTERM")
        training.stop_at(4, after_s=40.0)  # later than the deadline, and not killed: it saves all
    assert bits(oneshot.load(tmp_path)) == bits(state_at(4))


def live(training: Stopping, store: FaultStore, data: st.DataObject, step: int) -> None:
    """Be one process: train with requests and failures in between, until it is stopped or has come to its end."""
    for _ in range(data.draw(st.integers(1, 8), label="points")):
        what = data.draw(st.sampled_from(["train", "save", "term", "hurry", "notice", "withdraw", "fail"]))
        if what in ("term", "hurry"):
            training.engine.stop_by(0.001 if what == "hurry" else 30, path=what)
        elif what == "notice":
            training.engine.stop_by(40, path="notice", at_once=False, early=True)
        elif what == "withdraw":
            training.engine.withdraw("notice")
        elif what == "fail":
            store.fail("commit_blob", error=IO, times=2)
        step += data.draw(st.integers(1, 3))
        try:
            if what == "save":
                training.train_to(step)
                training.engine.save(step)
            training.point(step, after_s=data.draw(st.sampled_from([0.0, 0.0, 5.0, 60.0])))
        except Stopped:
            assert training.engine._points.last.step == step
            break


@settings(max_examples=40)
@given(st.data())
def test_whatever_is_asked_for_and_fails_each_generation_holds_its_step_and_the_newest_complete_one_comes_back(
    data: st.DataObject,
) -> None:
    store = FaultStore(MemoryStore())
    saved: dict[int, int] = {}
    with with_logs():
        for _ in range(data.draw(st.integers(1, 3), label="lives")):
            more: dict[str, Any] = {"on_save_error": "warn", "save_errors_max": 99, "writer": "inline"}
            training = Stopping(store, when=every(steps=7), keep=Keep(last=2), **more)
            restored = training.engine.resume()
            step = restored.step if restored else 0
            assert training.is_at(step) or (restored is not None and "replay" not in restored.components)
            training.train_to(step)
            try:
                live(training, store, data, step)
            finally:  # also where hypothesis breaks an example off: nobody is to wait for this engine
                training.engine.close()
            store._rules.clear()
            for number, summary in read(store).live.items():
                assert saved.setdefault(number, summary.step) == summary.step
                want = {name: value for name, value in state_at(summary.step).items() if summary.complete or name != "replay"}
                assert bits(oneshot.load(store, which=number)) == bits(want)


# -- several engines -----------------------------------------------------------------------------------------------------------


def test_two_engines_of_one_loop_both_save_before_the_process_ends(tmp_path: Path) -> None:
    with Stopping(tmp_path / "actor") as actor, Stopping(tmp_path / "critic") as critic:
        for engine in (actor.engine, critic.engine):
            engine.stop_by("30s", path="SIGTERM")
        assert actor.point(1)
        assert critic.stop_at(1).path == "SIGTERM"
    assert [oneshot.load(tmp_path / name)["counters"]["step"] for name in ("actor", "critic")] == [1, 1]


@pytest.mark.parametrize("after", [1, 2])
def test_two_engines_that_hear_of_the_end_between_their_safe_points_leave_at_the_next_one_of_both(
    tmp_path: Path, after: int
) -> None:
    with Stopping(tmp_path / "actor") as actor, Stopping(tmp_path / "critic") as critic:
        assert not actor.point(1)
        for engine in (actor.engine, critic.engine):
            engine.stop_by("60m", path="SIGTERM")
        assert not critic.point(1), "the actor's has gone on to its next step by now"
        assert actor.point(after)
        assert critic.stop_at(after).path == "SIGTERM"
    assert [oneshot.load(tmp_path / name)["counters"]["step"] for name in ("actor", "critic")] == [after, after]


def test_of_two_engines_the_second_leaves_alone_if_its_next_safe_point_would_be_too_late(tmp_path: Path) -> None:
    with Stopping(tmp_path / "actor") as actor, Stopping(tmp_path / "critic") as critic:
        assert not actor.point(1)
        for engine in (actor.engine, critic.engine):
            engine.stop_by(0.5, path="SIGTERM")
        assert critic.point(1, after_s=0)
    assert oneshot.load(tmp_path / "critic")["counters"]["step"] == 1


def test_an_engine_that_comes_around_again_does_not_wait_for_the_other(tmp_path: Path) -> None:
    with Stopping(tmp_path / "actor") as actor, Stopping(tmp_path / "critic") as critic:
        for engine in (actor.engine, critic.engine):
            engine.stop_by("30s", path="SIGTERM")
        assert actor.point(1)
        assert actor.stop_at(2).summary.step == 2  # type: ignore[union-attr]
    assert oneshot.load(tmp_path / "actor")["counters"]["step"] == 2


def test_what_was_left_out_of_a_last_save_is_all_in_the_next_if_training_goes_on(tmp_path: Path) -> None:
    with with_logs(), Stopping(tmp_path / "actor") as actor, Stopping(tmp_path / "critic") as critic:
        actor.save(1)
        for engine in (actor.engine, critic.engine):
            engine.stop_by(0.001, path="notice")
        assert actor.point(2, after_s=0)
        assert actor.engine.wait().complete is False  # type: ignore[union-attr]
        for engine in (actor.engine, critic.engine):
            engine.withdraw("notice")
        for step in (3, 4, 5):
            actor.save(step)
            assert bits(oneshot.load(tmp_path / "actor")) == bits(state_at(step))


def test_an_engine_that_was_dropped_or_closed_is_waited_for_by_nobody(tmp_path: Path) -> None:
    with Stopping(tmp_path / "actor") as actor:
        dropped, closed = Stopping(tmp_path / "1"), Stopping(tmp_path / "2")
        for each in (actor, dropped, closed):
            each.engine.claim()
            each.engine.stop_by("30s")
        closed.engine.close()
        del dropped, closed, each
        gc.collect()
        actor.stop_at(1)


# -- who listens ---------------------------------------------------------------------------------------------------------------


class Listener:
    """Stand in for what listens to signals."""

    def __init__(self) -> None:
        self.told: list[tuple[Stop, CheckpointEngine]] = []
        self.polls = self.closed = 0
        self.fires: list[str] = []

    def __call__(self, settings: Stop, engine: CheckpointEngine) -> Listener:
        self.told.append((settings, engine))
        return self

    def poll(self) -> None:
        self.polls += 1
        while self.fires:
            self.told[0][1].stop_by(30, path=self.fires.pop())

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Listener:
    made = Listener()
    monkeypatch.setattr(requests, "listener", lambda: made)
    monkeypatch.delenv("MILEPOST_STOP", raising=False)
    monkeypatch.delenv("MILEPOST_GRACE", raising=False)
    return made


@pytest.mark.parametrize(
    ("stop", "environment", "listens"),
    [(None, None, 0), (None, "0", 0), (None, "1", 1), (True, None, 1), (Stop(), None, 1), (False, "1", 0)],
)
def test_it_listens_only_where_that_is_asked_for(
    tmp_path: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch, stop: Any, environment: str | None, listens: int
) -> None:
    if environment is not None:
        monkeypatch.setenv("MILEPOST_STOP", environment)
    with Stopping(tmp_path, stop=stop) as training:
        training.point(1)
        assert (len(listener.told), listener.polls) == (listens, 2 * listens)
        assert listener.closed == 0
    assert listener.closed == listens


def test_what_is_heard_is_handed_on_at_a_safe_point_and_listening_ends_with_the_engine(
    tmp_path: Path, listener: Listener
) -> None:
    with Stopping(tmp_path, stop=True) as training:
        assert not training.point(1)
        listener.fires.append("SIGTERM")
        assert training.engine.stopping is None
        assert training.stop_at(2).path == "SIGTERM"
        assert listener.closed == 1


def test_a_claim_that_fails_leaves_nobody_listening(tmp_path: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> Any:
        raise UsageError("nobody can listen", kind="no-listener")

    monkeypatch.setattr(requests, "listener", refuses)
    with pytest.raises(UsageError, match="nobody can listen"):
        CheckpointEngine(tmp_path, state=state_at(0), stop=True).claim()
    with Training(tmp_path) as other:
        other.save(1)


@pytest.mark.parametrize(
    ("stop", "grace", "environment", "seconds"),
    [
        (Stop(), None, None, 30.0),
        (Stop(), None, "2m", 120.0),
        (Stop(), "45s", "2m", 45.0),
        (Stop(grace="7s"), "45s", "2m", 7.0),
        (True, "45s", None, 45.0),
    ],
)
def test_the_nearest_word_on_the_grace_period_counts(
    tmp_path: Path,
    listener: Listener,
    monkeypatch: pytest.MonkeyPatch,
    stop: Any,
    grace: str | None,
    environment: str | None,
    seconds: float,
) -> None:
    if environment is not None:
        monkeypatch.setenv("MILEPOST_GRACE", environment)
    with Stopping(tmp_path, stop=stop, grace=grace):
        assert listener.told[0][0].grace == seconds


def test_the_environments_grace_period_is_that_of_an_engine_which_has_none(
    tmp_path: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILEPOST_GRACE", "30s")
    with Stopping(tmp_path) as training:
        for step in (1, 2, 3):
            training.point(step, after_s=40.0)
        assert training.engine.overhead.stagings
        assert training.engine.flush_staged() is not None


@pytest.mark.parametrize("text", ["soon", "0", "-3"])
def test_a_grace_period_in_the_environment_that_is_none_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("MILEPOST_GRACE", text)
    with pytest.raises(UsageError) as caught:
        Stopping(tmp_path / "run")
    assert caught.value.kind == "bad-environment"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("stop", ["TERM", 1, 30.0])
def test_a_setting_that_says_nothing_is_refused(tmp_path: Path, stop: Any) -> None:
    with pytest.raises(UsageError) as caught:
        Stopping(tmp_path / "run", stop=stop)
    assert caught.value.kind == "bad-setting"


# -- beats ---------------------------------------------------------------------------------------------------------------------


def test_whoever_supervises_sees_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "run"
    with Training(root) as first:
        first.save(7)
    with supervised(tmp_path / "attempt", monkeypatch) as folder:
        training = Stopping(root)
        assert not list(folder.iterdir()), "an engine that does nothing shows nothing"
        training.engine.claim()
        run_id = read(local(root)).run_id
        found = beat_in(folder)
        assert (found.root, found.run_id, found.phase, found.step) == (str(root), run_id, "claiming", -1)
        training.engine.resume()
        found = beat_in(folder)
        assert (found.phase, found.resumed, found.loading, found.step, found.generation) == ("training", 1, 0, 7, 0)
        training.point(8)
        after = beat_in(folder)
        assert (after.step, after.count) == (8, found.count + 1)
        training.save(9)
        assert beat_in(folder).generation == 2
        training.engine.stop_by("30s")
        training.stop_at(10)
        assert (beat_in(folder).phase, beat_in(folder).generation, beat_in(folder).step) == ("closed", 3, 10)


def test_the_generation_that_is_being_loaded_is_named_until_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "run"
    with Training(root) as first:
        first.save(7)
    with supervised(tmp_path / "attempt", monkeypatch) as folder:
        seen: list[beats.Beats] = []
        training, load = Stopping(root), resuming.load_into
        monkeypatch.setattr(resuming, "load_into", lambda *a, **k: (seen.append(beat_in(folder)), load(*a, **k))[1])
        training.engine.resume()
        assert {(each.phase, each.loading) for each in seen} == {("resuming", 1)}
        assert beat_in(folder).loading == 0
        training.engine.close()


@pytest.mark.parametrize("writer", ["thread", "process"])
def test_a_forked_child_and_a_writer_process_leave_the_beats_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    with supervised(tmp_path / "attempt", monkeypatch) as folder, Stopping(tmp_path / "run", writer=writer) as training:
        training.save(1)
        before = beat_in(folder)
        child = os.fork()
        if child == 0:
            try:
                training.engine._points.read(99, 0, 0)
                training.engine.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert beat_in(folder) == before


def test_a_folder_that_is_not_there_keeps_nobody_from_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MILEPOST_SUPERVISED", str(tmp_path / "nowhere"))
    with Stopping(tmp_path / "run") as training:
        training.point(1)
        training.engine.stop_by("30s")
        training.stop_at(2)
    assert [record.levelno for record in caplog.records if "supervises" in record.message] == [logging.WARNING] * 2


def test_who_is_told_before_anything_is_trained_leaves_as_soon_as_it_has_resumed(tmp_path: Path) -> None:
    with Stopping(tmp_path) as training:
        training.save(5)
    before = {entry.name for entry in local(tmp_path).list("generations/")}
    again = Stopping(tmp_path)
    again.engine.stop_by("30s", path="SIGTERM")
    with pytest.raises(Stopped) as caught:
        again.engine.resume()
    assert again.is_at(5)
    assert (caught.value.code, caught.value.summary.number) == (75, 1)  # type: ignore[union-attr]
    assert {entry.name for entry in local(tmp_path).list("generations/")} == before
    fresh = Stopping(tmp_path / "fresh")
    fresh.engine.stop_by("30s", path="SIGTERM")
    with pytest.raises(Stopped) as caught:
        fresh.engine.resume()
    assert caught.value.summary is None


def test_a_resume_of_parts_or_with_a_notice_that_may_wait_trains_on(tmp_path: Path) -> None:
    with Stopping(tmp_path) as training:
        training.save(5)
        training.engine.stop_by("1h", path="notice", at_once=False, early=True)
        training.engine.resume()
        training.engine.stop_by("30s", path="SIGTERM")
        training.engine.resume(parts=["policy"])
        training.stop_at(6)


def test_a_log_that_is_only_measured_for_the_last_save_still_tells_what_it_doubts(tmp_path: Path) -> None:
    with with_logs(), Stopping(tmp_path) as training:
        training.save(1)
        training.state["replay"]["ring"].log.forget("rows were written without a touch")
        training.engine.stop_by("30s")
        training.stop_at(2)
    (told,) = [event["doubts"] for event in events(local(tmp_path)) if event["event"] == "published" and event["step"] == 2]
    assert told == ["replay: rows were written without a touch"]


def test_a_deadline_beyond_all_time_is_no_error(tmp_path: Path) -> None:
    with Stopping(tmp_path) as run:
        run.engine.stop_by(1e300, at_once=False)
        run.point(1)
        assert run.engine.stopping is not None
