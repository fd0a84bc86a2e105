"""A Ctrl-C at the worst moment: no save is staged over one in flight, and nothing is given up before it is done."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from milepost.engine import oneshot
from milepost.engine.background import Background
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.errors import ConflictError
from milepost.publish.view import read
from milepost.testing.faults import FaultStore
from tests.engine.training import Training, bits, local, state_at


@contextmanager
def ctrl_c_soon() -> Iterator[None]:
    """Interrupt the main thread once it waits for something."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_ctrl_c_while_a_save_is_waited_for_lets_no_other_save_over_its_arena(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Training(store, writer="thread") as training:
        gate = store.pause("commit_blob")
        training.train_to(1)
        training.engine.save(1)
        gate.wait_until_reached()
        with ctrl_c_soon(), pytest.raises(KeyboardInterrupt):
            training.engine.wait()
        training.train_to(2)
        # In Python 3.11 and 3.12 Thread.is_alive() is False by now, and Thread.join() returns at once.
        assert training.engine._background.busy
        threading.Timer(0.05, gate.release).start()
        training.engine.save(2)
        training.engine.wait()
    for number in (1, 2):
        assert bits(oneshot.load(local(tmp_path), which=number)) == bits(state_at(number))


def test_a_ctrl_c_while_an_engine_closes_keeps_its_lock_until_the_save_is_done(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    training = Training(store, writer="thread")
    training.engine.claim()
    gate = store.pause("commit_blob")
    training.train_to(1)
    training.engine.save(1)
    gate.wait_until_reached()
    with ctrl_c_soon(), pytest.raises(KeyboardInterrupt):
        training.engine.close()
    with pytest.raises(ConflictError):
        Training(local(tmp_path)).engine.claim()
    gate.release()
    training.engine.close()
    assert read(local(tmp_path)).head is not None
    with Training(local(tmp_path)) as next_one:
        next_one.engine.resume()
        assert next_one.is_at(1)


@pytest.mark.parametrize("started", [False, True])
def test_an_interrupt_inside_the_start_of_the_thread_leaves_it_usable(started: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    background, done = Background("thread"), threading.Event()
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if started:
            start(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            background.start(done.set)
    background.join()
    background.settle()
    assert not done.is_set()
    background.start(done.set)
    background.join()
    assert done.is_set()
    background.close()


def test_a_save_for_which_no_thread_is_to_be_had_has_failed_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Training(tmp_path, writer="thread", on_save_error="warn") as training:
        training.engine.report(1, {"return": 1.0})
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            training.engine.save(1)
            assert training.engine.wait() is None
        saved = training.save(2)
    assert (saved.number, saved.metrics["return"].step) == (1, 1)


def test_an_engine_that_is_dropped_without_close_gives_its_root_up(tmp_path: Path) -> None:
    def attempt(step: int) -> None:
        engine = CheckpointEngine(tmp_path, state=state_at(step))
        engine.resume()
        engine.save(step)
        raise RuntimeError

    for step in (1, 2, 3):
        with suppress(RuntimeError):
            attempt(step)
        gc.collect()
        for thread in threading.enumerate():
            if thread.name == "milepost-writer":
                thread.join()
        gc.collect()
    assert read(local(tmp_path)).head.step == 3  # type: ignore[union-attr]


def test_an_engine_that_is_dropped_while_it_saves_holds_its_root_until_the_save_is_there(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    gate = store.pause("commit_blob")

    def attempt() -> None:
        engine = CheckpointEngine(store, state=state_at(1))
        engine.resume()
        engine.save(1)

    attempt()
    gate.wait_until_reached()
    gc.collect()
    with pytest.raises(ConflictError), local(tmp_path).guard(wait_s=0.0, take_over=False):
        pytest.fail("the next start would fence a save that was staged")
    [thread] = [thread for thread in threading.enumerate() if thread.name == "milepost-writer"]
    gate.release()
    thread.join()
    with local(tmp_path).guard(wait_s=0.0, take_over=False):
        assert read(local(tmp_path)).head.step == 1  # type: ignore[union-attr]
