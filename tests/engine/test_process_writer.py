"""A save that was staged outlives its trainer; a writer that dies is replaced; nothing is left of either. B4, B9, B17, A13"""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from milepost.clock import SystemClock
from milepost.engine import oneshot, process_writer, writer_child
from milepost.engine.capture import copy_each, stage
from milepost.engine.messages import Hello
from milepost.engine.writer_process import WriterProcess
from milepost.errors import ConflictError, SaveFailed, StoreError, UsageError
from milepost.lifecycle.retain import Keep
from milepost.publish.view import read
from milepost.store.base import Store
from milepost.store.local import LocalStore
from milepost.store.lock import read_record
from milepost.store.process import has_ended, process_start_time
from tests.engine import gated_writer
from tests.engine.gated_writer import Gate
from tests.engine.process_trainer import Trainer, Training
from tests.engine.training import bits, local, state_at

EVERY = 3
"""A writer is killed before every third of its operations here, and before each in the long runs."""


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Return a gate for the writers of this process, and of those that it starts."""
    place = tmp_path / "gate"
    place.mkdir()
    monkeypatch.setenv(gated_writer.PLACE, str(place))
    monkeypatch.setattr(writer_child, "START", gated_writer.START)
    monkeypatch.setattr(writer_child, "_NEEDED", (*writer_child._NEEDED, "tests"))
    made = Gate(place)
    yield made
    made.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Hold every test to it: no process, descriptor or memory file of this process is left."""
    gc.collect()
    before = descriptors(), children()
    yield
    gc.collect()
    assert (descriptors(), children()) == before
    assert "memfd:milepost" not in Path("/proc/self/maps").read_text()


def children() -> set[str]:
    """Return the processes of this one, ended ones for which nobody waited too; other tests' trackers of resources live on."""
    return {pid for listed in Path("/proc/self/task").glob("*/children") for pid in listed.read_text().split()}


def descriptors() -> dict[str, str]:
    links = {name: f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")}
    return {name: os.readlink(link) for name, link in links.items() if os.path.lexists(link)}


def is_at(root: Path, step: int) -> bool:
    loaded = oneshot.load(root)
    return bits({name: loaded[name] for name in state_at(0)}) == bits(state_at(step))


def started_again(root: Path | Store, **settings: Any) -> int:
    """Start as the next process would, and return the step that it resumes from."""
    training = Training(root, writer="inline", **settings)
    with training.engine as engine:
        restored = engine.resume()
        assert restored is None or bits({n: training.state[n] for n in state_at(0)}) == bits(state_at(restored.step))
        return restored.step if restored else 0


def events(root: Path) -> list[str]:
    lines = [line for path in sorted((root / "events").iterdir()) for line in path.read_text().splitlines()]
    return [line.partition('"event":"')[2].partition('"')[0] for line in lines]


def blobs_that_nobody_names(root: Path) -> set[str]:
    named = {blob.name for each in read(local(root)).listing.summaries.values() for blob in each.blobs}
    # Half-written records are small, and the next claim sweeps them: another thread of the trainer may be writing one.
    return {f"blobs/{path.name}" for path in (root / "blobs").iterdir() if path.suffix != ".tmp"} - named


def test_what_is_saved_is_the_state_at_the_call_whatever_training_does_next(root: Path, gate: Gate) -> None:
    gate.set("hang", "write", "*/blobs/*")
    training = Training(root)
    with training.engine as engine:
        training.save(1)
        gate.reached()
        training.state["policy"]["w"][:] = 99
        gate.go()
        engine.wait()
        assert is_at(root, 1)


def test_a_trainer_that_is_killed_right_after_save_has_saved(root: Path) -> None:
    with Trainer(root) as trainer:
        trainer.do("save 1")
        assert trainer.do("wait") == "1"
        assert trainer.do("save-and-die 2") == ""
        assert started_again(root) == 2
    assert oneshot.verify(root).ok


def test_a_trainer_that_is_killed_before_its_writer_has_even_begun_has_saved(root: Path) -> None:
    with Trainer(root) as trainer:
        assert trainer.do("save-and-die 1") == ""
        assert started_again(root) == 1


def test_half_a_copy_is_discarded(root: Path) -> None:
    with Trainer(root) as trainer:
        trainer.do("save 1")
        trainer.do("wait")
        assert trainer.do("stage-and-hang 2") == "staging"
        trainer.kill()
        assert started_again(root) == 1
    assert "trainer-gone" not in events(root)


POINTS = {
    "before it notes the step": ("*", "*"),
    "before its blob has a byte": ("write", "*/blobs/*.part"),
    "before its blob is durable": ("fsync", "*/blobs/*.part"),
    "before the blob has its name": ("replace", "*/blobs/*.safetensors"),
    "before the manifest": ("link", "*/generations/*"),
    "before the manifest's name is durable": ("sync_directory", "*/generations"),
    "after it, before LATEST": ("replace", "*/LATEST"),
    "before it is told": ("open_append", "*/events/*"),
}


@pytest.mark.parametrize("point", POINTS.values(), ids=list(POINTS))
def test_wherever_its_writer_is_when_a_trainer_is_killed_a_start_at_once_finds_the_save(
    root: Path, gate: Gate, caplog: pytest.LogCaptureFixture, point: tuple[str, str]
) -> None:
    with Trainer(root) as trainer:
        trainer.do("save 1")
        trainer.do("wait")
        gate.set("hang", *point)
        trainer.do("save 2")
        gate.reached()
        trainer.kill()
        # The next start finds the lock held, and only then does the writer go on.
        assert started_again(local(root, wait=going_on(gate))) == 2
    assert oneshot.verify(root).ok
    assert "60 s at most" in caplog.text
    assert blobs_that_nobody_names(root) == set()


def going_on(gate: Gate) -> Callable[[float], object]:
    return lambda seconds: (gate.go(), threading.Event().wait(seconds))


def test_a_start_says_for_which_step_it_waits_and_the_log_of_events_that_it_was_needed(
    root: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    with Trainer(root) as trainer:
        gate.set("hang", "replace", "*/blobs/*")
        trainer.do("save 7")
        gate.reached()
        pid = trainer.process.pid
        trainer.kill()

        while "trainer-gone" not in events(root):
            threading.Event().wait(0.01)
        assert started_again(local(root, wait=going_on(gate))) == 7
    assert f"waiting for the writer of pid {pid}, which is gone, to publish step 7; 60 s at most" in caplog.text


def test_a_writer_that_does_not_end_by_its_deadline_ends_by_itself_and_publishes_nothing(root: Path, gate: Gate) -> None:
    with Trainer(root, "0.1") as trainer:
        trainer.do("save 1")
        trainer.do("wait")
        gate.set("hang", "link", "*/generations/*")
        trainer.do("save 2")
        writer = gate.reached()
        ended = os.pidfd_open(writer)
        trainer.kill()
        assert has_ended(ended, 60)
        os.close(ended)
        assert started_again(root) == 1


def test_a_start_stops_a_writer_that_stands_still_after_its_deadline(root: Path, gate: Gate) -> None:
    with Trainer(root, "0.2") as trainer:
        trainer.do("save 1")
        trainer.do("wait")
        gate.set("stop", "link", "*/generations/*")
        trainer.do("save 2")
        writer = gate.reached()
        trainer.kill()
        assert started_again(root) == 1
        assert process_start_time(writer) is None


def test_a_writer_killed_anywhere_is_replaced_and_the_save_is_there(
    root: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(root)
    with training.engine as engine:
        for number in itertools.count(1, EVERY):
            gate.set("kill", nth=number)
            training.save(2 * number)
            saved = engine.wait()
            assert saved is not None
            assert saved.step == 2 * number
            assert is_at(root, 2 * number)
            gate.open()
            training.save(2 * number + 1)  # one that is left alone: what the dead one had still to delete goes now
            engine.wait()
            if not gate.was_reached():
                break
    assert number > 20
    assert events(root).count("writer-restarted") == number // EVERY
    assert "was killed by SIGKILL" in caplog.text
    assert oneshot.verify(root).ok
    assert blobs_that_nobody_names(root) == set()
    assert len(read(local(root)).live) == 2


def test_a_writer_that_dies_again_and_again_fails_the_save_and_not_the_training(root: Path, gate: Gate) -> None:
    training = Training(root)
    with training.engine as engine:
        gate.set("kill", "replace", "*/blobs/*.safetensors", times=4)
        training.save(1)
        with pytest.raises(SaveFailed) as caught:
            engine.wait()
        assert (caught.value.kind, caught.value.facts["ended"]) == ("writer-gone", "was killed by SIGKILL")
        training.save(2)
        assert engine.wait().number == 1
    assert is_at(root, 2)
    assert blobs_that_nobody_names(root) == set()


def test_a_writer_that_died_while_it_had_nothing_to_do_is_replaced_before_save_returns(root: Path) -> None:
    with Trainer(root) as trainer:
        trainer.do("save 1")
        trainer.do("wait")
        ended = os.pidfd_open(trainer.writer.pid)
        os.kill(trainer.writer.pid, signal.SIGKILL)
        assert has_ended(ended, 60)
        os.close(ended)
        assert trainer.do("save-and-die 2") == ""
        assert started_again(root) == 2


def test_an_error_of_the_disk_is_told_as_it_is_where_a_thread_writes(root: Path, gate: Gate) -> None:
    training = Training(root)
    with training.engine as engine:
        gate.set("eio", "fsync", "*/blobs/*", times=1)
        training.save(1)
        assert engine.wait().number == 1  # written anew under another name, once
        gate.set("eio", "link", "*/generations/*", times=9)
        training.save(2)
        with pytest.raises(SaveFailed) as caught:
            engine.wait()
        cause = caught.value.__cause__
        assert isinstance(cause, StoreError)
        assert cause.kind == caught.value.kind == "io"
        gate.open()
        training.save(3)
        assert engine.wait().step == 3
    assert is_at(root, 3)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"])
def test_what_stops_a_job_does_not_stop_the_writer_of_what_it_has_staged(root: Path, gate: Gate, name: str) -> None:
    with Trainer(root) as trainer:
        gate.set("hang", "write", "*/blobs/*.part")
        trainer.do("save 1")
        writer = gate.reached()
        assert os.getpgid(writer) == writer
        trainer.kill()
        os.kill(writer, signal.Signals[name])
        gate.go()
        assert started_again(root) == 1


def test_while_a_trainer_lives_its_writer_is_left_alone_and_nobody_else_may_write(root: Path, gate: Gate) -> None:
    with Trainer(root) as trainer:
        gate.set("hang", "write", "*/blobs/*.part")
        trainer.do("save 1")
        gate.reached()
        with pytest.raises(ConflictError) as caught:
            started_again(root)
        assert caught.value.facts["pid"] == trainer.process.pid
        gate.go()
        assert trainer.do("wait") == "1"
        assert trainer.writer.is_alive


def test_a_trainer_that_was_taken_over_is_told_by_its_writer(root: Path) -> None:
    training = Training(root)
    training.engine.claim()
    training.save(1)
    training.engine.wait()
    assert started_again(root, take_over=True) == 1
    training.save(2)
    with pytest.raises(ConflictError) as caught:
        training.engine.wait()
    assert caught.value.kind == "fenced"
    with pytest.raises(ConflictError):
        training.save(3)
    training.engine.close()
    assert started_again(root) == 1


def test_an_environment_worker_that_outlives_its_trainer_keeps_neither_socket_nor_memory_nor_lock(root: Path) -> None:
    with Trainer(root) as trainer:
        trainer.do("save 1")
        trainer.do("wait")
        worker = int(trainer.do("fork"))
        try:
            assert trainer.do("save-and-die 2") == ""
            held = {os.readlink(f"/proc/{worker}/fd/{name}") for name in os.listdir(f"/proc/{worker}/fd")}
            assert not [name for name in held if name.startswith(("socket:", "/memfd:")) or name.endswith("writer.lock")]
            assert "memfd:milepost" not in Path(f"/proc/{worker}/maps").read_text()
            assert started_again(root) == 2
        finally:
            os.kill(worker, signal.SIGKILL)


def test_an_engine_that_is_dropped_ends_its_writer(root: Path) -> None:
    training = Training(root)
    training.engine.claim()
    training.save(1)
    training.engine.wait()
    training.engine.adopt()
    pid = writer_of(root)
    del training
    gc.collect()
    assert process_start_time(pid) is None
    assert started_again(root) == 1


def test_a_program_that_ends_without_a_word_ends_its_writer_when_all_is_written(root: Path) -> None:
    with Trainer(root) as trainer:
        trainer.do("save 1")
        pid = trainer.writer.pid
        assert trainer.process.stdin is not None
        trainer.process.stdin.close()
        assert trainer.process.wait() == 0
        assert process_start_time(pid) is None
    assert is_at(root, 1)
    assert (root / "writer.lock").read_bytes() == b""


def test_leaving_with_an_exception_flushes_what_is_staged(root: Path) -> None:
    training = Training(root)

    def train() -> None:
        with training.engine:
            training.save(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert is_at(root, 1)


def test_a_writer_that_stands_still_with_nothing_to_do_is_not_waited_for_for_ever(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_writer, "_IDLE_S", 0.1)
    training = Training(root)
    training.engine.claim()
    training.save(1)
    training.engine.adopt()  # waits until nothing at all of the save is left to be done
    os.kill(writer_of(root), signal.SIGSTOP)
    training.engine.close()
    assert is_at(root, 1)


def test_a_signed_run_is_signed_by_its_writer_and_the_key_is_in_no_argument(root: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"a-key-that-nobody-knows")
    key.chmod(0o600)
    training = Training(root, key_file=key)
    with training.engine as engine:
        training.save(1)
        engine.wait()
        shown = Path(f"/proc/{writer_of(root)}/cmdline").read_bytes() + Path(f"/proc/{writer_of(root)}/environ").read_bytes()
        assert key.read_bytes() not in shown
    assert started_again(root, key_file=key) == 1


def test_going_back_starting_anew_and_sharing_are_as_with_a_thread(root: Path) -> None:
    training = Training(root, keep=Keep(last=5))
    with training.engine as engine:
        for step in (1, 2, 3):
            training.save(step)
            engine.wait()
        engine.resume(1)
        training.save(9)
        saved = engine.wait()
        assert (saved.number, saved.rollback_to, saved.line) == (4, 1, (1, 4))
    assert is_at(root, 9)


def test_only_directories_can_be_written_to_by_a_process(root: Path) -> None:
    with pytest.raises(UsageError) as caught:
        Training("memory://process-writer")
    assert caught.value.kind == "no-process-writer"
    for deadline in (0, -1, "11m", "soon"):
        with pytest.raises(UsageError):
            Training(root, writer_deadline=deadline)


def writer_of(root: Path) -> int:
    found = read_record(str(root / "writer.lock"))
    assert found is not None
    assert found[1] is not None
    return found[1].pid


@pytest.mark.parametrize("wave", [0, 2])
def test_an_error_of_a_device_in_any_wave_fails_that_save_and_no_other(
    root: Path, wave: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []

    def copy(leaves: Any, memory: memoryview) -> Any:
        copied.append(len(leaves))
        arrived = copy_each(leaves, memory)
        return lost if len(copied) == wave + 1 else arrived

    def lost() -> None:
        raise RuntimeError("the device is gone")

    training = Training(root, staging_bytes=40)
    with training.engine as engine:
        training.save(1)
        engine.wait()
        with monkeypatch.context() as patched:
            patched.setitem(stage.__kwdefaults__, "copy", copy)
            training.save(2)
            with pytest.raises(SaveFailed, match="the device is gone"):
                engine.wait()
        assert len(copied) > wave
        training.save(3)
        newest = engine.wait()
    assert newest is not None
    assert (newest.number, newest.step) == (2, 3)


def test_a_store_that_does_otherwise_than_the_process_would_is_refused(root: Path) -> None:
    class Own(LocalStore):
        pass

    with pytest.raises(UsageError) as caught:
        Training(Own(root, SystemClock()))
    assert caught.value.kind == "no-process-writer"


def test_a_save_that_is_taken_up_after_the_trainer_has_died_is_told_of_once(root: Path) -> None:
    writer, told = object.__new__(WriterProcess), []
    writer._lock, writer._untold, writer._orphaned, writer._step = None, [True], True, None
    writer._hello = Hello(str(root), None, "run", 1, 1, 1000, None)
    writer._events = type("Told", (), {"write": lambda _, name, **facts: told.append((name, facts["step"]))})()  # type: ignore[assignment]
    writer._tell_that_the_trainer_is_gone()
    assert told == [], "nothing is being written"
    writer._step = 7
    writer._tell_that_the_trainer_is_gone()
    writer._tell_that_the_trainer_is_gone()
    assert told == [("trainer-gone", 7)]
