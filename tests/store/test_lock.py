"""One writer at a time, and an error that says who: between processes, threads, orphans and the dead. A13"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from milepost.clock import FakeClock, SystemClock
from milepost.errors import ConflictError, StoreError
from milepost.store.local import LocalStore
from milepost.store.lock import Holder, read_holder
from milepost.store.posix import Posix
from milepost.store.process import boot_id, host_name, process_start_time
from milepost.testing.faults import run_in_child

HOLD = """
import os, signal, sys
from milepost.clock import SystemClock
from milepost.store.local import LocalStore
with LocalStore(sys.argv[1], SystemClock()).guard(wait_s=0.0, take_over=False):
    # The child speaks for itself: before it has run at all, it cannot have let go of anything.
    if sys.argv[2] == "with-a-child":
        if os.fork() == 0:
            print(os.getpid(), flush=True)
    else:
        print(0, flush=True)
    signal.pause()
"""


@contextmanager
def holder_process(root: Path, kind: str = "alone") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run another process that holds the guard on ``root``; yield it and the PID of the child it forked, if any."""
    command = [sys.executable, "-c", HOLD, str(root), kind]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        yield process, child
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
        process.kill()
        process.wait()
        process.stdout.close()


def local(root: Path, clock: FakeClock | None = None, wait: Callable[[float], object] | None = None) -> LocalStore:
    return LocalStore(root, clock or SystemClock(), wait=wait)


def why_held(store: LocalStore) -> ConflictError:
    with pytest.raises(ConflictError) as caught, store.guard(wait_s=0.0, take_over=False):
        pytest.fail("two writers at once")
    assert caught.value.kind == "held"
    return caught.value


def take(store: LocalStore) -> None:
    with store.guard(wait_s=0.0, take_over=False):
        pass


def test_another_process_is_named_with_its_host_and_age_and_what_to_do(tmp_path: Path) -> None:
    with holder_process(tmp_path) as (process, _):
        error = why_held(local(tmp_path))
    assert (error.facts["pid"], error.facts["host"], error.facts["root"]) == (process.pid, host_name(), str(tmp_path))
    assert error.facts["age_s"] in range(300)
    for word in (f"kill {process.pid}", "lease_wait", "take_over=True", "--take-over"):
        assert word in error.hint


def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path: Path) -> None:
    with holder_process(tmp_path) as (process, _):
        process.kill()
        process.wait()
        take(local(tmp_path))


def test_a_child_forked_by_a_killed_holder_does_not_keep_the_lock(tmp_path: Path) -> None:
    # Environment workers outlive a trainer that is killed; the restarted trainer must not find its root locked by them.
    with holder_process(tmp_path, "with-a-child") as (process, child):
        process.kill()
        process.wait()
        assert process_start_time(child) is not None
        take(local(tmp_path))


def test_what_a_forked_child_does_with_the_guard_leaves_its_parent_the_holder(tmp_path: Path) -> None:
    store = local(tmp_path)
    guard = store.guard(wait_s=0.0, take_over=False)
    with guard:
        held = (tmp_path / "writer.lock").read_bytes()
        assert run_in_child(lambda: guard.__exit__(None, None, None)) == 0
        assert run_in_child(lambda: why_held(local(tmp_path))) == 0
        why_held(local(tmp_path))
        assert (tmp_path / "writer.lock").read_bytes() == held


def test_a_second_guard_of_this_process_is_told_so(tmp_path: Path) -> None:
    with local(tmp_path).guard(wait_s=0.0, take_over=False):
        error = why_held(local(tmp_path / ".." / tmp_path.name))
    assert "this process writes to this run root already" in error.message
    take(local(tmp_path))


def test_waiting_ends_when_its_time_is_over_and_not_much_later(tmp_path: Path) -> None:
    clock = FakeClock()
    with local(tmp_path).guard(wait_s=0.0, take_over=False):
        late = local(tmp_path, clock, lambda seconds: clock.advance(seconds=seconds))
        with pytest.raises(ConflictError), late.guard(wait_s=2.0, take_over=False):
            pytest.fail("two writers at once")
    assert clock.monotonic_ns() == 2_000_000_000


def test_a_waiting_writer_goes_on_when_the_first_one_leaves(tmp_path: Path) -> None:
    first = local(tmp_path).guard(wait_s=0.0, take_over=False)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            first.__exit__(None, None, None)

    first.__enter__()
    with local(tmp_path, FakeClock(), wait).guard(wait_s=60.0, take_over=True) as entered:
        assert entered is None
    assert len(waits) == 3


def test_a_stopped_holder_can_be_taken_over_without_its_help_and_keeps_its_lock(tmp_path: Path) -> None:
    with holder_process(tmp_path) as (process, _):
        os.kill(process.pid, signal.SIGSTOP)
        guard = local(tmp_path).guard(wait_s=0.0, take_over=True)
        with guard:
            assert guard.forced
            named = read_holder(str(tmp_path / "writer.lock"))
            assert named is not None
            assert named.pid == process.pid
        why_held(local(tmp_path))


@contextmanager
def locked_by(root: Path, record: bytes) -> Iterator[None]:
    """Hold the lock without milepost, with ``record`` in the lock file: as a child does that native code forked."""
    (root / "writer.lock").write_bytes(record)
    with (root / "writer.lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_lock_kept_by_a_foreign_child_of_a_dead_writer_names_who_keeps_it(tmp_path: Path) -> None:
    dead = replace(Holder.of_this_process(SystemClock()), pid=2**22 + 1)
    with locked_by(tmp_path, json.dumps(asdict(dead)).encode() + b"\n"):
        error = why_held(local(tmp_path))
    assert "is gone" in error.message
    assert str(os.getpid()) in str(error.facts["held_by"]).split()


def test_a_process_that_got_the_pid_of_a_dead_writer_is_not_taken_for_it(tmp_path: Path) -> None:
    earlier = replace(Holder.of_this_process(SystemClock()), start_time=1)
    assert not earlier.is_alive
    with locked_by(tmp_path, json.dumps(asdict(earlier)).encode() + b"\n"):
        assert "is gone" in why_held(local(tmp_path)).message


@pytest.mark.parametrize("changes", [{"host": "node-17"}, {"boot_id": "another"}])
def test_a_holder_on_another_machine_or_before_a_reboot_is_not_to_be_killed_here(tmp_path: Path, changes: dict[str, str]) -> None:
    there = replace(Holder.of_this_process(SystemClock()), pid=os.getpid() + 1, **changes)  # type: ignore[arg-type]
    with locked_by(tmp_path, json.dumps(asdict(there)).encode() + b"\n"):
        error = why_held(local(tmp_path))
    assert error.facts["host"] == there.host
    assert "kill" not in error.hint


@pytest.mark.parametrize("record", [b"", b"{", b"[]", b"{}", b"\xff\n", b'{"pid": "x"}\n', b"null\n"])
def test_a_lock_file_that_says_nothing_still_locks(tmp_path: Path, record: bytes) -> None:
    with locked_by(tmp_path, record):
        assert "another process" in why_held(local(tmp_path)).message
    take(local(tmp_path))


def test_leaving_a_guard_frees_the_lock_although_a_child_forked_by_native_code_has_the_file_open(tmp_path: Path) -> None:
    lock = str(tmp_path / "writer.lock")
    with local(tmp_path).guard(wait_s=0.0, take_over=False):
        links = [f"/proc/self/fd/{descriptor}" for descriptor in os.listdir("/proc/self/fd")]
        opened = [int(link.rpartition("/")[2]) for link in links if os.path.lexists(link) and os.readlink(link) == lock]
        inherited = [os.dup(descriptor) for descriptor in opened]
    take(local(tmp_path))
    for descriptor in inherited:
        os.close(descriptor)
    assert len(inherited) == 1


def test_a_guard_that_is_left_names_nobody_any_more(tmp_path: Path) -> None:
    take(local(tmp_path))
    assert (tmp_path / "writer.lock").read_bytes() == b""


def test_the_record_holds_the_script_and_none_of_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/home/u/train.py", "--api-key=secret"])
    clock = FakeClock()
    with local(tmp_path, clock).guard(wait_s=0.0, take_over=False):
        text = (tmp_path / "writer.lock").read_text()
        clock.advance(seconds=90)
        assert why_held(local(tmp_path, clock)).facts["age_s"] == 90
    assert '"train.py"' in text
    assert "secret" not in text


def test_a_shorter_record_does_not_keep_the_tail_of_a_longer_one(tmp_path: Path) -> None:
    (tmp_path / "writer.lock").write_bytes(b"x" * 2000)
    with local(tmp_path).guard(wait_s=0.0, take_over=False):
        assert read_holder(str(tmp_path / "writer.lock")) is not None
        assert (tmp_path / "writer.lock").stat().st_size < 1000


class NoLocks(Posix):
    """A parallel file system that was mounted without them."""

    def flock(self, descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")


def test_a_file_system_without_locks_is_refused_unless_the_user_takes_it_upon_himself(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, SystemClock(), posix=NoLocks())
    with pytest.raises(StoreError) as caught, store.guard(wait_s=0.0, take_over=False):
        pytest.fail("unguarded")
    assert caught.value.kind == "no-locks"
    guard = store.guard(wait_s=0.0, take_over=True)
    with guard:
        assert guard.forced


def test_replace_if_gives_up_on_a_stopped_process_instead_of_hanging(tmp_path: Path) -> None:
    clock = FakeClock()
    store = local(tmp_path, clock, lambda seconds: clock.advance(seconds=seconds))
    (tmp_path / "cas.lock").touch()
    with (tmp_path / "cas.lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(StoreError) as caught:
            store.replace_if("lease.json", None, b"x")
    assert (caught.value.kind, caught.value.retryable) == ("timeout", True)
    assert store.replace_if("lease.json", None, b"x")


def test_forks_while_other_threads_lock_leave_no_lock_behind_in_the_child(tmp_path: Path) -> None:
    stop, failures = threading.Event(), []

    def lock_on_and_on() -> None:
        try:
            while not stop.is_set():
                local(tmp_path).replace_if("lease.json", None, b"x")
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=lock_on_and_on)
    thread.start()
    for _ in range(20):
        assert run_in_child(lambda: check_that_no_lock_file_is_open(tmp_path)) == 0
    stop.set()
    thread.join()
    assert not failures


def check_that_no_lock_file_is_open(below: Path) -> None:
    for descriptor in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{descriptor}"
        file = os.readlink(path) if os.path.lexists(path) else ""
        assert not (file.startswith(f"{below}/") and file.endswith(".lock"))


def test_this_process_is_known_by_start_time_and_boot(tmp_path: Path) -> None:
    assert Holder.of_this_process(SystemClock()).is_alive
    assert process_start_time(os.getpid()) is not None
    assert process_start_time(2**22 + 1) is None
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
