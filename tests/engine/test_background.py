"""One thread writes all saves of an engine, and is gone with the engine and with the program; deletions keep nobody waiting."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from milepost.engine import oneshot
from milepost.engine.background import Background
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.errors import StoreError
from milepost.lifecycle.retain import Keep
from milepost.publish.view import read
from milepost.testing.faults import HANG_S, FaultStore
from tests.engine.training import Training, bits, local, state_at

BROKEN = StoreError("could not delete: Input/output error", kind="io", retryable=False)


def writers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "milepost-writer"]


def run(tmp_path: Path, program: str) -> str:
    """Run a program of its own to its end, which must come, and return what it printed."""
    head = """
        import threading, numpy as np, milepost
        state = {"policy": {"w": np.zeros(1000)}, "counters": {"step": 0}}
        engine = milepost.CheckpointEngine(ROOT, state=state)
    """
    text = textwrap.dedent(head.replace("ROOT", repr(str(tmp_path)))) + textwrap.dedent(program)
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert ended.returncode in (0, 1), ended.stderr
    return ended.stdout + ended.stderr


def test_one_thread_makes_all_saves_and_ends_with_the_engine(tmp_path: Path) -> None:
    with Training(tmp_path, writer="thread") as training:
        assert not writers(), "an engine that has saved nothing yet has no thread, and a program may fork"
        training.save(1)
        [thread] = writers()
        for step in (2, 3, 4):
            training.save(step)
        assert writers() == [thread]
    thread.join(HANG_S)
    assert not writers()


def test_who_has_waited_for_a_save_gives_its_lock_up_itself_whatever_the_thread_does_meanwhile() -> None:
    # A signal's handler may run between taking it and giving it up, and the deletions end in that time: to give it up for
    # somebody else would end training with "release unlocked lock".
    background, deletions = Background("thread"), threading.Lock()
    deletions.acquire()
    job = background.start(lambda: None, deletions.acquire)
    with job.done:
        deletions.release()
        background.settle()
        assert job.done.locked()
    background.close()


def test_a_save_is_handed_over_without_waiting_for_its_thread() -> None:
    background, gate = Background("thread"), threading.Lock()
    gate.acquire()
    background.start(gate.acquire)
    assert background.busy
    gate.release()
    background.join()
    background.start(lambda: None)
    background.settle()
    assert not background.busy
    background.close()


def test_an_engine_that_is_dropped_ends_its_thread(tmp_path: Path) -> None:
    engine = CheckpointEngine(local(tmp_path), state=state_at(1))
    engine.save(1)
    [thread] = writers()
    del engine
    gc.collect()
    thread.join(HANG_S)
    assert not thread.is_alive()
    assert read(local(tmp_path)).head is not None
    with local(tmp_path).guard(wait_s=0.0, take_over=False):
        pass


@pytest.mark.parametrize("end", ["", "raise RuntimeError('boom')", "import sys; sys.exit(1)"])
def test_a_program_that_never_closes_its_engine_ends_and_its_last_save_counts(tmp_path: Path, end: str) -> None:
    run(tmp_path, f"engine.save(1); engine.wait(); engine.save(2)\n{end}")
    head = read(local(tmp_path)).head
    assert head is not None
    assert head.step == 2
    with local(tmp_path).guard(wait_s=0.0, take_over=False):
        pass


def test_a_thread_that_trains_on_after_the_main_thread_ended_still_saves(tmp_path: Path) -> None:
    told = run(
        tmp_path,
        """
        def train():
            threading.main_thread().join()
            for step in (2, 3):
                engine.save(step)
                engine.wait()
            engine.close()
            print("closed")
        engine.save(1)
        engine.wait()
        threading.Thread(target=train).start()
        """,
    )
    assert "closed" in told
    head = read(local(tmp_path)).head
    assert head is not None
    assert head.step == 3


def test_what_a_save_drops_is_deleted_after_it_is_acknowledged_and_before_the_next_writes(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Training(store, writer="thread", keep=Keep(last=1)) as training:
        training.save(1)
        training.engine._background.settle()
        gate = store.pause("delete", "generations/*")
        saved = training.save(2)
        assert saved.number == 2, "nobody waits for the deletion"
        gate.wait_until_reached()
        training.train_to(3)
        start = len(store.operations)
        training.engine.save(3)
        assert training.engine._background.busy
        assert [asked.name for asked in store.operations[start:] if asked.operation == "open_blob"] == []
        gate.release()
        training.engine.wait()
    assert sorted(entry.name for entry in store.list("generations/")) == ["generations/000003.json"]
    assert bits(oneshot.load(local(tmp_path))) == bits(state_at(3))


def test_closing_and_resuming_wait_for_the_deletions(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    for verb in ("resume", "close"):
        with Training(store, writer="thread", keep=Keep(last=1)) as training:
            training.engine.resume()
            training.save(1)
            training.engine._background.settle()
            gate = store.pause("delete", "blobs/*")
            training.save(2)
            gate.wait_until_reached()
            threading.Timer(0.02, gate.release).start()
            getattr(training.engine, verb)()
            named = {blob.name for summary in read(local(tmp_path)).live.values() for blob in summary.blobs}
            assert {entry.name for entry in store.list("blobs/")} == named


def test_a_deletion_that_fails_is_told_and_made_up_for_by_the_next(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Training(store, writer="thread", keep=Keep(last=1)) as training:
        training.save(1)
        training.engine._background.settle()
        store.fail("delete", "generations/*", error=BROKEN, times=1)
        assert training.save(2).number == 2
        training.engine._background.settle()
        assert len(list(store.list("generations/"))) == 2
        training.save(3)
    assert [entry.name for entry in store.list("generations/")] == ["generations/000003.json"]
