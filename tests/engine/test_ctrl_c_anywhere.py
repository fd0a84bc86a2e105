"""A Ctrl-C before any line of what an engine does in the main thread: it can be used on, or closed, and frees its root."""

from __future__ import annotations

import dis
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import milepost
from milepost.engine import background, oneshot
from milepost.publish.view import read
from milepost.testing.faults import HANG_S, FaultStore
from tests.engine.training import Training, bits, local, state_at, without_git

_HERE = os.path.dirname(milepost.__file__)
_POINTS = 25
"""How many lines of each verb are struck, evenly spread."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    without_git(monkeypatch)


class CtrlC:
    """Raise `KeyboardInterrupt` before line ``at`` of what runs, counted from 0, in whichever function that is."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.seen = 0
        self.where = ""

    def __call__(self, frame: FrameType, event: str, _argument: object) -> Any:
        name = frame.f_code.co_name
        file = frame.f_code.co_filename
        if not file.startswith(_HERE) and os.path.basename(file) not in ("contextlib.py", "threading.py", "weakref.py"):
            return None  # of what others do only what holds something of ours
        if _is_below(frame, subprocess.__file__):
            # A process that was started, and that nobody has heard of yet: it ends with its socket, and Python warns of it.
            return None
        if name in ("__del__", "__call__", "<lambda>", "_close", "release", "_started") or (
            file == background.__file__ and name in ("join", "settle", "_launch")
        ):
            # What is raised in a finalizer is lost; a writer process that was started and not noted ends with its socket; and no
            # signal strikes between the taking of a plain lock and its ``with``.
            return None
        if event == "line" and not _leaves_a_with(frame) and not _begins_a_try(frame):
            self.seen += 1
            if self.seen > self._at:
                sys.settrace(None)
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self

    def strikes(self, action: Callable[[], object]) -> bool:
        """Run ``action``; return False if it had ended before."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            action()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


def _is_below(frame: FrameType | None, file: str) -> bool:
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame is not None


def _leaves_a_with(frame: FrameType) -> bool:
    """Return whether the next thing that runs is the call of ``__exit__``: a trace function can strike there, a signal cannot."""
    at, consts = frame.f_lasti, frame.f_code.co_consts
    if frame.f_code.co_code[at] == dis.opmap["SWAP"]:
        at += 2  # what is returned from within it is put aside first
    code = frame.f_code.co_code[at : at + 6]
    return len(code) == 6 and all(
        operation == dis.opmap["LOAD_CONST"] and consts[argument] is None
        for operation, argument in zip(code[::2], code[1::2], strict=True)
    )


def _begins_a_try(frame: FrameType) -> bool:
    """Return whether the line is a bare ``try:``: no signal strikes there, and the ``with`` around it does not cover it."""
    return frame.f_code.co_code[frame.f_lasti] == dis.opmap["NOP"]


def lines_of(action: Callable[[], object]) -> int:
    counting = CtrlC(sys.maxsize)
    assert not counting.strikes(action)
    return counting.seen


def roots(place: Path) -> Iterator[Path]:
    """Yield fresh copies of a run with two generations."""
    origin = place / "origin"
    with Training(origin) as training:
        training.save(1)
        training.save(2)
    while True:
        shutil.copytree(origin, place / "run")
        yield place / "run"
        shutil.rmtree(place / "run")


def verb(training: Training, name: str) -> Callable[[], object]:
    """Return what is to be struck, with all that comes before it done."""
    if name in ("save", "close", "flush_staged"):
        training.engine.resume()
        training.train_to(3)
    if name == "flush_staged":
        training.engine.save_if_due(3)
        assert training.engine.overhead.stagings
    if name == "close":
        training.engine.save(3)
    return (lambda: training.engine.save(3)) if name == "save" else getattr(training.engine, name)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["claim", "resume", "save", "close", "flush_staged"])
@pytest.mark.parametrize("writer", ["thread", "process"])
def test_after_a_ctrl_c_anywhere_the_engine_goes_on_or_closes_and_its_root_is_free(
    tmp_path: Path, name: str, writer: str
) -> None:
    copies = roots(tmp_path)
    for root in (next(copies), next(copies)):  # the first time there are imports to be done, and more to be found out
        training = Training(root, writer=writer, grace=1e-9)
        total = lines_of(verb(training, name))
        training.engine.close()
    assert total > _POINTS / 2
    tried = 0
    for at, root in zip(range(0, total, max(1, total // _POINTS)), copies, strict=False):
        training = Training(root, writer=writer, grace=1e-9)
        struck = CtrlC(at).strikes(verb(training, name))
        if name != "close":
            if name not in ("save", "flush_staged"):
                training.engine.resume()
                assert training.is_at(2)
            assert training.save(4).step == 4
        training.engine.close()
        with local(root).guard(wait_s=0.0, take_over=False):
            pass
        view = read(local(root))
        assert view.head is not None
        assert view.head.step == (3 if name == "close" else 4)
        for number, summary in view.live.items():
            assert bits(oneshot.load(local(root), which=number)) == bits(state_at(summary.step))
        tried += struck
    assert tried >= _POINTS / 2


def test_a_program_that_ends_waits_for_the_save_that_is_staged(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Training(store, writer="thread") as training:
        gate = store.pause("commit_blob")
        training.train_to(1)
        training.engine.save(1)
        gate.wait_until_reached()
        [writer] = [thread for thread in threading.enumerate() if thread.name == "milepost-writer"]
        assert not writer.daemon
        gate.release()
    writer.join(HANG_S)
    assert not writer.is_alive()


class Opened:
    """Note in a list of whoever opens it whether it was left."""

    def __init__(self, left: list[bool]) -> None:
        self._left = left

    def __enter__(self) -> None:
        self._left.append(False)

    def __exit__(self, *_: object) -> None:
        self._left[-1] = True


def test_what_returns_from_within_a_with_is_struck_only_where_a_signal_can_strike() -> None:
    # Between the last line within and the call of ``__exit__`` no signal is looked at: what was opened would stay open.
    left: list[bool] = []

    def reads() -> int:
        with Opened(left):
            return len(left)

    seen: list[bool] = []

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code is reads.__code__:
            if event == "line":
                seen.append(_leaves_a_with(frame))
            return trace
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        reads()
    finally:
        sys.settrace(before)
    assert seen == [False, False, True]
    assert left == [True]


def test_no_strike_passes_by_the_with_around_a_try() -> None:
    left: list[bool] = []

    def reads() -> None:
        with Opened(left):
            for number in range(2):
                if number < 0:
                    continue
                try:
                    len(left)
                except OSError:
                    continue

    def struck_at(at: int) -> bool:
        seen = 0

        def trace(frame: FrameType, event: str, _argument: object) -> Any:
            nonlocal seen
            if frame.f_code is not reads.__code__:
                return None
            if event == "line" and not _leaves_a_with(frame) and not _begins_a_try(frame):
                seen += 1
                if seen > at:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            reads()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False

    strikes = 0
    while struck_at(strikes):
        strikes += 1
    assert strikes > 5
    assert all(left)
