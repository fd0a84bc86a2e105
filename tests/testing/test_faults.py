"""The faults other tests rely on happen exactly where they are asked for."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from milepost.clock import FakeClock
from milepost.errors import ConflictError, StoreError
from milepost.store.base import Store
from milepost.store.local import LocalStore
from milepost.store.memory import MemoryStore
from milepost.store.posix import Posix
from milepost.testing import StoreTests
from milepost.testing.faults import (
    FaultStore,
    FaultyPosix,
    Killed,
    Operation,
    count_operations,
    fail_at,
    kill_before,
    run_and_kill,
    run_in_child,
)


class TestFaultStoreWithoutFaults(StoreTests):
    def make_store(self, tmp_path: Path) -> Store:
        return FaultStore(MemoryStore(str(tmp_path)))

    def raw_read(self, store: Store, name: str) -> bytes | None:
        assert isinstance(store, FaultStore)
        assert isinstance(store.inner, MemoryStore)
        data = store.inner._space.names.get(name)
        return None if data is None else bytes(data)

    def raw_write(self, store: Store, name: str, data: bytes) -> None:
        assert isinstance(store, FaultStore)
        assert isinstance(store.inner, MemoryStore)
        store.inner._space.names[name] = data


@pytest.fixture
def store() -> FaultStore:
    return FaultStore(MemoryStore())


def in_thread(action: object) -> threading.Thread:
    assert callable(action)
    thread = threading.Thread(target=action)
    thread.start()
    return thread


def test_a_paused_operation_has_not_happened_until_it_is_released(store: FaultStore) -> None:
    gate = store.pause("create", "generations/*", nth=2)
    store.create("terms/1", b"x")
    store.create("generations/1", b"x")
    thread = in_thread(lambda: store.create("generations/2", b"x"))
    gate.wait_until_reached()
    assert [entry.name for entry in store.list("generations/")] == ["generations/1"]
    assert store.create("generations/3", b"x")
    gate.release()
    thread.join()
    assert [entry.name for entry in store.list("generations/")] == ["generations/1", "generations/2", "generations/3"]


def test_an_operation_paused_after_has_happened_but_not_answered(store: FaultStore) -> None:
    gate = store.pause("create", after=True)
    answers: list[bool] = []
    thread = in_thread(lambda: answers.append(store.create("a", b"x")))
    gate.wait_until_reached()
    assert store.read("a") == b"x"
    assert answers == []
    gate.release()
    thread.join()
    assert answers == [True]


def test_failures_hit_the_asked_matches_and_do_nothing(store: FaultStore) -> None:
    full = StoreError("full", kind="disk-full", retryable=False)
    store.fail("create", "a*", full, nth=2, times=2)
    outcomes = []
    for name in ("a1", "b", "a2", "a3", "a4"):
        try:
            outcomes.append(store.create(name, b"x"))
        except StoreError as error:
            outcomes.append(error.kind)
    assert outcomes == [True, True, "disk-full", "disk-full", True]
    assert [entry.name for entry in store.list("")] == ["a1", "a4", "b"]


def test_a_failure_without_end_lasts(store: FaultStore) -> None:
    store.fail("write_blob", times=None)
    for number in range(5):
        with store.open_blob(f"blobs/{number}") as blob, pytest.raises(StoreError, match="the network failed"):
            blob.write(b"x")
    assert store.list("") == []


def test_a_lost_answer_was_applied_and_its_outcome_is_unknown(store: FaultStore) -> None:
    store.lose_answer("create", nth=1)
    with pytest.raises(StoreError) as caught:
        store.create("a", b"x")
    assert (caught.value.kind, caught.value.retryable) == ("lost-answer", False)
    assert store.read("a") == b"x"


def test_a_delayed_request_comes_later_with_the_bytes_it_was_sent_with(store: FaultStore) -> None:
    late_create, late_delete = store.delay("create", "a"), store.delay("delete", "b")
    store.create("b", b"kept")
    data = bytearray(b"as sent")
    for ask in (lambda: store.create("a", data), lambda: store.delete("b")):
        with pytest.raises(StoreError, match="no answer in time"):
            ask()
    data[:] = b"changed"
    assert [entry.name for entry in store.list("")] == ["b"]
    assert store.deliver(late_create) is True
    store.deliver(late_delete)
    assert store.read("a") == b"as sent"
    assert [entry.name for entry in store.list("")] == ["a"]
    with pytest.raises(LookupError):
        store.deliver(late_create)


def test_a_late_create_finds_the_name_taken_like_any_other(store: FaultStore) -> None:
    late = store.delay("create", "a")
    with pytest.raises(StoreError):
        store.create("a", b"first")
    assert store.create("a", b"second")
    assert store.deliver(late) is False
    assert store.read("a") == b"second"


@pytest.mark.parametrize("after", [False, True])
def test_the_dead_do_nothing_more_and_tidy_nothing_up(after: bool) -> None:
    inner = MemoryStore()
    store = FaultStore(inner)
    store.kill("write_blob", nth=2, after=after)

    def work() -> None:
        try:
            with store.open_blob("blobs/1") as blob:
                blob.write(b"one")
                blob.write(b"two")
                blob.commit()
        finally:
            store.delete("blobs/1.part")

    with pytest.raises(Killed):
        work()
    assert inner.read("blobs/1.part") == (b"onetwo" if after else b"one")
    with pytest.raises(Killed):
        store.read("blobs/1.part")


def test_a_death_before_every_operation_can_be_tried_one_by_one() -> None:
    left = []
    for number in range(10):
        inner = MemoryStore()
        store = FaultStore(inner)
        store.kill_before(number)
        try:
            store.create("a", b"")
            store.create("b", b"")
            store.delete("a")
        except Killed:
            left.append([entry.name for entry in inner.list("")])
    assert left == [[], ["a"], ["a", "b"]]


def test_the_guard_of_the_dead_is_free() -> None:
    inner = MemoryStore()
    store = FaultStore(inner)
    store.kill("create")

    def work() -> None:
        with store.guard(wait_s=0.0, take_over=False):
            with pytest.raises(ConflictError), inner.guard(wait_s=0.0, take_over=False):
                pass
            store.create("a", b"")

    with pytest.raises(Killed):
        work()
    with inner.guard(wait_s=0.0, take_over=False):
        pass


def test_the_log_tells_all_that_was_asked_in_order(store: FaultStore) -> None:
    store.fail("read")
    with pytest.raises(StoreError):
        store.read("a")
    with store.open_blob("blobs/1") as blob:
        blob.commit()
    assert store.operations == [
        Operation("read", "a"),
        Operation("open_blob", "blobs/1"),
        Operation("commit_blob", "blobs/1"),
        Operation("abort_blob", "blobs/1"),
    ]
    assert store.names_asked("commit_blob") == ["blobs/1"]


def test_a_rule_for_an_operation_that_does_not_exist_is_refused(store: FaultStore) -> None:
    with pytest.raises(ValueError, match="no such operation: put"):
        store.pause("put")


def create(root: Path, posix: Posix) -> None:
    LocalStore(root, FakeClock(), posix=posix).create("a", b"x")


def test_a_kill_before_a_system_call_stops_there_and_says_whether_it_came_to_it(tmp_path: Path) -> None:
    total = len(count_operations(lambda posix: create(tmp_path / "counted", posix)))
    assert run_and_kill(lambda posix: create(tmp_path / "last", posix), total - 1)
    assert (tmp_path / "last" / "a").exists()
    assert run_and_kill(lambda posix: create(tmp_path / "first", posix), 0)
    assert not (tmp_path / "first").exists()
    assert not run_and_kill(lambda posix: create(tmp_path / "whole", posix), total)


def test_a_kill_ends_the_process_as_sigkill_would(tmp_path: Path) -> None:
    assert run_in_child(lambda: create(tmp_path, kill_before(0))) == 137


def test_a_failing_child_is_no_kill(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="exit status 1"):
        run_and_kill(lambda posix: os.stat(tmp_path / "nothing"), 0)
    assert "FileNotFoundError" in capfd.readouterr().err


def test_an_error_comes_at_the_asked_system_call_once(tmp_path: Path) -> None:
    posix = fail_at(0, errno.EIO)
    assert isinstance(posix, FaultyPosix)
    with pytest.raises(StoreError) as caught:
        create(tmp_path / "run", posix)
    assert caught.value.kind == "io"
    create(tmp_path / "run", posix)
