"""A scrub beside training finds what rots while there is a sound copy in memory: the next save writes it anew. B4, B8"""

from __future__ import annotations

import gc
import json
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from milepost.clock import FakeClock
from milepost.engine import oneshot
from milepost.engine.scrubbing import Scrubbing, period_of
from milepost.errors import ConflictError, SaveFailed, StoreError, UsageError
from milepost.lifecycle.retain import Keep
from milepost.publish import layout
from milepost.publish.view import read
from milepost.testing.faults import HANG_S, FaultStore, run_in_child
from tests.engine.training import Training, local

DAY_S = 86400.0

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


class Scrubbed(Training):
    """Train with a scrub whose thread looks once in ten minutes, so that a test's own `round` is the only one."""

    def __init__(self, where: Path | FaultStore, clock: FakeClock | None = None, **settings: Any) -> None:
        self.clock = clock or FakeClock(prefix="a")
        settings.setdefault("scrub", "7d")
        super().__init__(where, keep=Keep(last=3), clock=self.clock, **settings)

    @property
    def scrubbing(self) -> Scrubbing:
        assert self.engine._points.scrubbing is not None
        return self.engine._points.scrubbing


def impatient(training: Training, idle: Callable[[], object] = lambda: None) -> Scrubbing:
    """Return a scrub whose own loop a test can run: it looks a hundred times a second."""
    return Scrubbing(training.engine.claim(), 0.2, idle)


def shared_blob(root: Path) -> str:
    """Return the name of the blob that all generations stand on."""
    blobs = [{blob.name for blob in summary.blobs} for summary in read(local(root)).live.values()]
    [name] = set.intersection(*blobs)
    return name


def rot(root: Path, name: str) -> None:
    data = bytearray((root / name).read_bytes())
    data[-1] ^= 0x20
    (root / name).write_bytes(data)


def events(root: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for path in sorted((root / "events").iterdir()) for line in path.read_bytes().splitlines()]
    return [line for line in lines if line["event"] == kind]


def scrub_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "milepost-scrub"]


def test_what_rots_under_all_generations_is_found_and_the_next_one_is_whole_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Scrubbed(tmp_path) as training:
        for step in (1, 2, 3, 4):
            training.save(step)
        name = shared_blob(tmp_path)
        rot(tmp_path, name)
        training.clock.advance(seconds=4 * DAY_S)
        with caplog.at_level(logging.WARNING, logger="milepost"):
            training.scrubbing.round()
        assert [(event["generation"], event["blob"]) for event in events(tmp_path, "scrub-found")] == [
            (number, name) for number in (2, 3, 4)
        ]
        assert events(tmp_path, "scrub-found")[0]["components"] == ["policy"]
        assert (
            f"generation 4 is damaged on the disk; the next save writes anew what is shared with it: {name} (policy)"
            in caplog.text
        )
        assert {number: mark.kind for number, mark in read(training.store).marks.items()} == dict.fromkeys((2, 3, 4), "damaged")
        training.train_to(5)
        assert training.engine.save_if_due(5), "damage makes the next safe point due"
        assert not training.engine.save_if_due(5), "once"
        training.engine.wait()
    report = oneshot.verify(tmp_path)
    assert (report.generations[-1].number, report.generations[-1].state, report.resume_from) == (5, "valid", 5)
    newest = read(local(tmp_path)).live[5]
    assert newest.reason == "the scrub found damage"
    assert not {blob.name for blob in newest.blobs} & {name}
    with Training(tmp_path) as after:
        restored = after.engine.resume()
        assert restored is not None
        assert (restored.generation, restored.exact, restored.skipped) == (5, True, ())
        assert after.is_at(5)


def test_a_safe_point_at_which_an_older_failure_comes_up_leaves_the_damage_due(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Scrubbed(store, writer="thread") as training:
        training.save(1)
        training.clock.advance(seconds=4 * DAY_S)
        rot(tmp_path, shared_blob(tmp_path))
        training.scrubbing.round()
        store.fail("create", "generations/*", times=2)
        training.train_to(2)
        training.engine.save(2)
        training.engine._background.join()
        training.scrubbing._found.set()  # as if it had been found while that save was written
        with pytest.raises(SaveFailed):
            training.engine.save_if_due(2)
        assert training.engine.save_if_due(2), "it is still to be answered"
        saved = training.engine.wait()
    assert saved is not None
    assert (saved.number, saved.reason) == (2, "the scrub found damage")


def test_without_the_scrub_every_later_generation_would_rest_on_the_damage(tmp_path: Path) -> None:
    with Scrubbed(tmp_path, scrub=None) as training:
        for step in (1, 2, 3, 4):
            training.save(step)
        rot(tmp_path, shared_blob(tmp_path))
        training.save(5)
    assert {one.state for one in oneshot.verify(tmp_path).generations} == {"damaged"}


def test_damage_in_an_older_generation_alone_is_told_and_makes_no_save_due(tmp_path: Path) -> None:
    with Scrubbed(tmp_path) as training:
        for step in (1, 2, 3):
            training.save(step)
        live = read(training.store).live
        [name] = {blob.name for blob in live[2].blobs} - {blob.name for blob in live[3].blobs}
        rot(tmp_path, name)
        training.clock.advance(seconds=4 * DAY_S)
        training.scrubbing.round()
        assert [event["generation"] for event in events(tmp_path, "scrub-found")] == [2]
        assert not training.engine.save_if_due(4)


def test_the_marks_of_retired_generations_go_at_the_next_start_and_those_of_live_ones_stay(tmp_path: Path) -> None:
    with Scrubbed(tmp_path) as training:
        for step in (1, 2, 3, 4):
            training.save(step)
        rot(tmp_path, shared_blob(tmp_path))
        training.clock.advance(seconds=4 * DAY_S)
        training.scrubbing.round()
        for step in (5, 6):
            training.save(step)
    assert {*read(local(tmp_path)).marks} == {2, 3, 4}
    with Training(tmp_path, keep=Keep(last=3)):
        view = read(local(tmp_path))
        assert {*view.marks} == {2, 3, 4} & {*view.live} == {4}


def test_damage_is_told_once_however_often_it_is_read(tmp_path: Path) -> None:
    with Scrubbed(tmp_path) as training:
        training.save(1)
        rot(tmp_path, shared_blob(tmp_path))
        for _ in range(3):
            training.clock.advance(seconds=4 * DAY_S)
            training.scrubbing.round()
        assert len(events(tmp_path, "scrub-found")) == 1


def test_every_blob_is_read_once_in_a_period_and_what_was_written_lately_is_not(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Scrubbed(store) as training:
        asked = lambda: {name for name in store.names_asked("read_into") if name.startswith(layout.BLOBS)}  # noqa: E731
        training.save(1)
        training.clock.advance(seconds=3 * DAY_S)
        training.scrubbing.round()
        assert asked() == set()
        training.save(2)
        training.clock.advance(seconds=1 * DAY_S)
        training.scrubbing.round()
        live = read(local(tmp_path)).live
        assert asked() == {blob.name for blob in live[1].blobs}
        store.operations.clear()
        training.clock.advance(seconds=3 * DAY_S)
        training.scrubbing.round()
        assert asked() == {blob.name for blob in live[2].blobs} - {blob.name for blob in live[1].blobs}


def test_what_all_generations_share_is_read_in_every_period_however_often_is_saved(tmp_path: Path) -> None:
    """It is as old as the run, and not as young as the oldest generation that is kept: this is the file that rots unseen."""
    store = FaultStore(local(tmp_path))
    with Scrubbed(store) as training:
        for step in (1, 2, 3, 4):
            training.save(step)
        name, read_at = shared_blob(tmp_path), [training.clock.wall_ns()]
        for step in range(5, 60):
            training.clock.advance(seconds=DAY_S / 2)
            training.save(step)
            store.operations.clear()
            training.scrubbing.round()
            if name in store.names_asked("read_into"):
                read_at.append(training.clock.wall_ns())
        assert name == shared_blob(tmp_path)
        read_at.append(training.clock.wall_ns())
    gaps_days = [(later - earlier) / 1e9 / DAY_S for earlier, later in pairwise(read_at)]
    assert max(gaps_days) <= 7
    assert len(gaps_days) <= 11, "nor is it read all the time"


def test_it_keeps_its_period_even_where_that_takes_a_higher_rate(tmp_path: Path) -> None:
    with Scrubbed(tmp_path) as training:
        training.save(1)
        clock = FakeClock(epoch_ns=training.clock.wall_ns() + 10 * 10**9)
        training.engine.claim().clock = clock
        slow = Scrubbing(training.engine.claim(), 20.0, lambda: None, bytes_s=1.0, wait=lambda s: clock.advance(seconds=s))
        slow.round()
        assert events(tmp_path, "scrubbed")[0]["bytes"] > 1000
        assert 9 < clock.now_ns / 1e9 <= 10.1


def test_it_reads_nothing_while_a_save_is_in_flight(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Scrubbed(store) as training, ThreadPoolExecutor(1) as pool:
        training.save(1)
        training.clock.advance(seconds=4 * DAY_S)
        asked, saved = threading.Event(), threading.Event()

        def idle() -> None:
            asked.set()
            assert saved.wait(HANG_S)

        session = training.engine.claim()
        work = pool.submit(Scrubbing(session, 7 * DAY_S, idle).round)
        assert asked.wait(HANG_S)
        assert [name for name in store.names_asked("read_into") if name.startswith(layout.BLOBS)] == []
        saved.set()
        work.result(HANG_S)
        assert [name for name in store.names_asked("read_into") if name.startswith(layout.BLOBS)] != []
        assert training.scrubbing._idle == training.engine._background.join


def test_its_thread_looks_by_itself(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Training(store, scrub=0.2) as training:
        gate = store.pause("read_into", "blobs/*")
        training.save(1)
        gate.wait_until_reached()
        gate.release()


def test_a_run_that_is_started_anew_every_few_hours_is_scrubbed_all_the_same(tmp_path: Path) -> None:
    """What is due is on the disk. To wait a twentieth of a week for the first look would be never to look."""
    asked: list[float | None] = []

    class Ended(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            asked.append(timeout)
            return True

    with Training(tmp_path) as training:
        looking = Scrubbing(training.engine.claim(), 7 * DAY_S, lambda: None)
        looking._ended = Ended()
        looking._run()
    assert asked == [600.0]


def test_a_signed_run_is_scrubbed_with_its_key(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("a key of more than sixteen bytes")
    key.chmod(0o600)
    root = tmp_path / "run"
    with Scrubbed(root, key_file=key) as training:
        training.save(1)
        name = next(blob.name for blob in read(training.engine.claim().store).live[1].blobs)
        rot(root, name)
        training.clock.advance(seconds=4 * DAY_S)
        training.scrubbing.round()
        assert len(events(root, "scrub-found")) == 1
        assert training.save(2).healthy
    assert oneshot.verify(root, key_file=key).resume_from == 2


@pytest.mark.parametrize("how", ["close", "drop"])
def test_the_thread_ends_with_its_engine(tmp_path: Path, how: str) -> None:
    training: Scrubbed | None = Scrubbed(tmp_path)
    assert training is not None
    training.save(1)
    assert len(scrub_threads()) == 1
    if how == "close":
        training.engine.close()
    training = None
    gc.collect()
    assert scrub_threads() == []
    Scrubbed(tmp_path).engine.close()


def test_closing_in_the_middle_of_a_scrub_ends_it_and_touches_nothing_after(tmp_path: Path) -> None:
    with Scrubbed(tmp_path) as training:
        for step in (1, 2, 3, 4):
            training.save(step)
        rot(tmp_path, shared_blob(tmp_path))
        training.clock.advance(seconds=4 * DAY_S)
        looking = impatient(training, lambda: looking._ended.set())
        looking._run()  # the loop of the thread itself: it returns
    assert read(local(tmp_path)).marks == {}
    assert events(tmp_path, "scrub-found") == events(tmp_path, "scrubbed") == []


def test_a_forked_child_has_no_scrub(tmp_path: Path) -> None:
    with Scrubbed(tmp_path) as training:
        training.save(1)
        assert scrub_threads() != []
        assert run_in_child(lambda: os._exit(len(scrub_threads()))) == 0
        assert len(scrub_threads()) == 1


def test_a_writer_that_has_been_fenced_marks_nothing(tmp_path: Path) -> None:
    with Scrubbed(tmp_path) as training:
        training.save(1)
        rot(tmp_path, shared_blob(tmp_path))
        training.clock.advance(seconds=4 * DAY_S)
        with Training(tmp_path, take_over=True):
            with pytest.raises(ConflictError):
                training.scrubbing.round()
            assert read(local(tmp_path)).marks == {}
        impatient(training)._run()  # and its thread ends


def test_a_mark_of_another_kind_stands(tmp_path: Path) -> None:
    from milepost.publish import quarantine

    with Scrubbed(tmp_path) as training:
        training.save(1)
        session = training.engine.claim()
        quarantine.mark(
            session.store, training.clock, run_id=session.run_id, term=1, number=1, kind="kills-loader", reason="it crashed"
        )
        rot(tmp_path, shared_blob(tmp_path))
        training.clock.advance(seconds=4 * DAY_S)
        training.scrubbing.round()
        assert read(session.store).marks[1].kind == "kills-loader"


def test_a_disk_that_cannot_be_read_or_marked_is_told_and_stops_nothing(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    broken = StoreError("could not read: Input/output error", kind="io", retryable=True)
    with Scrubbed(store) as training:
        training.save(1)
        rot(tmp_path, shared_blob(tmp_path))
        training.clock.advance(seconds=4 * DAY_S)
        store.fail("read_into", "blobs/*", error=broken)
        store.fail("replace", "quarantine/*", error=broken)

        def until_found() -> None:
            if events(tmp_path, "scrub-found"):
                looking._ended.set()

        looking = impatient(training, until_found)
        looking._run()
    assert [event["kind"] for event in events(tmp_path, "scrub-failed")] == ["io"]
    assert len(events(tmp_path, "scrub-found")) == 1
    assert len(events(tmp_path, "mark-failed")) == 1


@pytest.mark.parametrize("scrub", [0, -1, "0", "x", "7 days", float("nan")])
def test_a_period_that_is_none_is_refused_where_it_is_given(tmp_path: Path, scrub: str | float) -> None:
    with pytest.raises(UsageError):
        Training(tmp_path, scrub=scrub)
    assert not any(tmp_path.iterdir())


def test_a_period_is_a_number_of_seconds_or_a_text() -> None:
    assert (period_of(None), period_of(90), period_of("1.5h")) == (None, 90.0, 5400.0)
