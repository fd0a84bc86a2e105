"""A writer that outlives its trainer is waited for, then stopped, and nobody else ever is. A13, B4"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from milepost.clock import FakeClock, SystemClock
from milepost.errors import ConflictError
from milepost.store.local import LocalStore
from milepost.store.lock import LONGEST_DEADLINE_S, FileGuard, Holder, read_holder, read_record, rewrite, sealed
from milepost.store.posix import Posix
from milepost.store.process import Writer, process_start_time

P = ParamSpec("P")
T = TypeVar("T")

IGNORE_ALL_BUT_THE_PIPE = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); sys.stdin.read()"


@contextmanager
def process(*inherited: int) -> Iterator[subprocess.Popen[str]]:
    """Run a process that lives until its standard input ends, and does not listen to SIGTERM."""
    command = [sys.executable, "-I", "-S", "-c", IGNORE_ALL_BUT_THE_PIPE]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, pass_fds=inherited) as started:
        assert started.stdout is not None
        started.stdout.readline()
        try:
            yield started
        finally:
            started.kill()


def named(pid: int, deadline_s: float = 60.0, step: int | None = None) -> Writer:
    return Writer(pid, process_start_time(pid) or 0, round(deadline_s * 1000), step)


def gone() -> Holder:
    """Return the record of a trainer of this machine that is gone."""
    return replace(Holder.of_this_process(SystemClock()), pid=2**22 + 1)


class Scene:
    """Be a root whose lock is held by a writer process, beside a clock that only waiting moves."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock = root / "writer.lock"
        self.clock = FakeClock()
        self.on_wait: Callable[[], object] = lambda: None

    @contextmanager
    def held_by_a_writer(self, holder: Holder, **facts: float | int | None) -> Iterator[subprocess.Popen[str]]:
        with self.lock.open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with process(file.fileno()) as writer:
                self.lock.write_bytes(sealed(holder, named(writer.pid, **facts)))  # type: ignore[arg-type]
                os.close(os.dup(file.fileno()))
                file.close()  # closing does not unlock: the writer holds it now, as after the death of its trainer
                yield writer

    def guard(self, *, take_over: bool = False) -> FileGuard:
        store = LocalStore(self.root, self.clock, wait=self._wait)
        return store.guard(wait_s=0.0, take_over=take_over)

    def _wait(self, seconds: float) -> None:
        self.clock.advance(seconds=seconds)
        self.on_wait()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_start_waits_for_the_writer_of_a_trainer_that_is_gone(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    with scene.held_by_a_writer(gone(), step=7) as writer:
        waits = []

        def publish() -> None:
            waits.append(1)
            if len(waits) == 5:
                writer.kill()
                writer.wait()

        scene.on_wait = publish
        guard = scene.guard()
        with guard:
            assert guard.abandoned
            assert not guard.forced
    assert len(waits) == 5
    assert f"waiting for the writer of pid {gone().pid}, which is gone, to publish step 7; 60 s at most" in caplog.text


def test_a_writer_that_never_ends_is_stopped_at_its_deadline_and_no_later(scene: Scene) -> None:
    with scene.held_by_a_writer(gone(), deadline_s=3.0) as writer:
        os.kill(writer.pid, signal.SIGSTOP)
        with scene.guard():
            assert 3.0 <= scene.clock.monotonic_ns() / 1e9 < 3.5
        assert writer.wait() == -signal.SIGKILL


def test_whoever_takes_over_waits_for_what_was_staged_as_well(scene: Scene) -> None:
    with scene.held_by_a_writer(gone(), deadline_s=3.0) as writer:
        guard = scene.guard(take_over=True)
        with guard:
            assert not guard.forced
        assert writer.wait() == -signal.SIGKILL


@pytest.mark.parametrize("take_over", [False, True])
def test_the_writer_of_a_trainer_that_lives_is_never_touched(scene: Scene, take_over: bool) -> None:
    with process() as trainer:
        alive = replace(gone(), pid=trainer.pid, start_time=process_start_time(trainer.pid))
        with scene.held_by_a_writer(alive) as writer:
            guard = scene.guard(take_over=take_over)
            if take_over:
                with guard:
                    assert guard.forced
            else:
                with pytest.raises(ConflictError) as caught, guard:
                    pytest.fail("two writers at once")
                assert (caught.value.kind, caught.value.facts["pid"]) == ("held", trainer.pid)
            assert scene.clock.monotonic_ns() == 0
            assert writer.poll() is None


def test_a_trainer_that_was_killed_and_that_nobody_has_waited_for_yet_is_gone(scene: Scene) -> None:
    with process() as trainer:
        killed = replace(gone(), pid=trainer.pid, start_time=process_start_time(trainer.pid))
        trainer.kill()
        os.waitid(os.P_PID, trainer.pid, os.WEXITED | os.WNOWAIT)
        with scene.held_by_a_writer(killed, deadline_s=1.0), scene.guard():
            pass


@pytest.mark.parametrize("changes", [{"host": "node-17"}, {"boot_id": "another"}])
def test_the_writer_of_another_machine_is_neither_waited_for_nor_stopped(scene: Scene, changes: dict[str, str]) -> None:
    with scene.held_by_a_writer(replace(gone(), **changes)) as writer:  # type: ignore[arg-type]
        with pytest.raises(ConflictError), scene.guard():
            pytest.fail("two writers at once")
        assert writer.poll() is None


def test_a_record_that_names_a_process_without_the_lock_has_nobody_killed(scene: Scene) -> None:
    # Whoever can write to a shared directory could name any process of whoever starts here next.
    with process() as innocent, scene.held_by_a_writer(gone()) as writer:
        scene.lock.write_bytes(sealed(gone(), named(innocent.pid, deadline_s=1.0)))
        with pytest.raises(ConflictError) as caught, scene.guard():
            pytest.fail("two writers at once")
        assert innocent.poll() is None
        assert writer.poll() is None
        assert str(writer.pid) in str(caught.value.facts["held_by"]).split()


def test_a_process_that_got_the_pid_of_a_writer_is_not_killed_for_it(scene: Scene) -> None:
    with scene.held_by_a_writer(gone()) as writer:
        other = Writer(writer.pid, 1, 1000)
        assert not other.is_alive
        assert other.kill(0.0)
        assert writer.poll() is None
        scene.lock.write_bytes(sealed(gone(), other))
        with pytest.raises(ConflictError), scene.guard():
            pytest.fail("two writers at once")
        assert writer.poll() is None


def test_a_writer_that_ended_in_the_very_moment_is_not_waited_for(scene: Scene) -> None:
    with scene.held_by_a_writer(gone()) as writer:
        writer.kill()
        writer.wait()
    with scene.guard():
        assert scene.clock.monotonic_ns() == 0


def test_no_record_makes_a_start_wait_for_longer_than_ten_minutes(scene: Scene) -> None:
    with scene.held_by_a_writer(gone(), deadline_s=10**9), scene.guard():
        assert scene.clock.monotonic_ns() / 1e9 < LONGEST_DEADLINE_S + 1


def test_a_start_always_reads_the_old_record_or_the_new_one_while_it_is_rewritten(scene: Scene) -> None:
    seen: list[Writer | None] = []

    class Watched(Posix):
        def perform(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
            answer = function(*args, **kwargs)
            found = read_record(str(scene.lock))
            assert found is not None
            seen.append(found[1])
            return answer

    holder, long, short = gone(), Writer(4711, 815, 60_000, None), Writer(4711, 815, 60_000, 3)
    scene.lock.write_bytes(sealed(holder, long))
    with scene.lock.open("r+b") as file:
        rewrite(file.fileno(), sealed(holder, short), Watched())
    assert set(seen) == {short}
    assert scene.lock.read_bytes() == sealed(holder, short)


def test_the_record_names_the_writer_and_a_damaged_one_names_nobody(scene: Scene) -> None:
    guard = scene.guard()
    writer = Writer(4711, 815, 60_000, 12)
    with guard:
        guard.name_writer(writer)
        found = read_record(str(scene.lock))
        assert found is not None
        assert found[1] == writer
        assert guard.descriptor is not None
    whole = sealed(gone(), writer)
    for damaged in (
        whole.replace(b"4711", b"4712"),
        whole.replace(b'"step": 12', b'"step": -1'),
        whole.replace(b'"step"', b'"stop"'),
    ):
        scene.lock.write_bytes(damaged)
        assert read_holder(str(scene.lock)) is None
    for said in ({"pid": "x", "start_time": 1, "deadline_ms": 1}, {"pid": 1}, [], 3):
        scene.lock.write_bytes(
            sealed(gone())[:-1].partition(b',"digest"')[0] + b', "writer": ' + repr(said).replace("'", '"').encode() + b"}\n"
        )
        assert read_holder(str(scene.lock)) is None
