"""A signal before every line of what listens: it is heard or has its old effect, once, and nothing is left behind."""

from __future__ import annotations

import linecache
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from milepost import CheckpointEngine, Stop, Stopped
from milepost.supervise import dispositions, listening, lookout, signals

USR1 = signal.SIGUSR1
FILES = [module.__file__ for module in (signals, dispositions, listening, lookout)]


@pytest.fixture
def seen() -> Iterator[list[int]]:
    """Handle SIGUSR1 as a user does who was there before, and say how often it came."""
    came: list[int] = []
    old = signal.signal(USR1, lambda signum, _: came.append(signum))
    yield came
    signal.signal(USR1, old)


class Strike:
    """Send a signal to this process before one line of what runs of a file, counted from 0."""

    def __init__(self, at: int, file: str) -> None:
        self.left, self.file = at + 1, file

    def __call__(self, frame: Any, event: str, _: object) -> Any:
        if frame.f_code.co_filename != self.file:
            return None
        # Python runs handlers where a call has returned or a loop goes round, and so never between a lock and the ``with`` that
        # releases it. A trace function runs there, too.
        at_an_edge = linecache.getline(self.file, frame.f_lineno).lstrip().startswith(("with ", "try:"))
        if event == "line" and self.left and not at_an_edge:
            self.left -= 1
            if not self.left:
                signal.raise_signal(USR1)  # to this thread: another might take its time to hear of it
        return self

    def during(self, work: Callable[[], object]) -> object:
        sys.settrace(self)
        try:
            return work()
        finally:
            sys.settrace(None)


def engine_at(root: Path) -> CheckpointEngine:
    where = f"memory://{root.parent.name}-{root.name}"  # no disk: it is begun a hundred times
    return CheckpointEngine(where, state={"policy": {"weights": np.zeros(4)}}, stop=Stop(signals=("USR1",)), writer="inline")


@pytest.mark.parametrize("file", FILES, ids=[os.path.basename(str(file)) for file in FILES])
def test_a_signal_while_an_engine_begins_to_listen_or_comes_to_a_safe_point_is_not_lost(
    tmp_path: Path, seen: list[int], file: str
) -> None:
    before, at = signal.getsignal(USR1), 0
    while True:
        strike, engine = Strike(at, file), engine_at(tmp_path / str(at))

        def train(engine: CheckpointEngine = engine) -> str:
            engine.resume()
            engine.save_if_due(1)
            engine.save_if_due(2)
            return "trained on"

        try:
            ended = strike.during(train)
        except Stopped as stopped:
            ended = stopped.path
        if strike.left:
            engine.close()
            break
        assert seen == [USR1], at
        heard = signals._process.lookout is not None and bool(signals._process.lookout.dispositions.heard)
        if ended == "trained on" and heard:
            with pytest.raises(Stopped):
                engine.save_if_due(3)
        elif ended == "trained on":
            engine.close()  # it came before anybody listened: it was the old handler's
        assert (signal.getsignal(USR1), signals._process.lookout) == (before, None), at
        seen.clear()
        at += 1
    assert at > (5 if file == lookout.__file__ else 10)


@pytest.mark.parametrize("file", FILES, ids=[os.path.basename(str(file)) for file in FILES])
def test_a_signal_while_an_engine_is_closed_reaches_who_was_there_before(tmp_path: Path, seen: list[int], file: str) -> None:
    before, at = signal.getsignal(USR1), 0
    while True:
        strike, engine = Strike(at, file), engine_at(tmp_path / str(at))
        engine.resume()
        strike.during(engine.close)
        assert (signal.getsignal(USR1), signals._process.lookout, signal.set_wakeup_fd(-1)) == (before, None, -1), at
        if strike.left:
            break
        assert seen == [USR1], at
        seen.clear()
        at += 1
    assert at > 0 or file == listening.__file__


class Mine(Exception):
    """Be what a user's own handler raises."""


@pytest.mark.parametrize("file", FILES, ids=[os.path.basename(str(file)) for file in FILES])
def test_whatever_a_handler_that_was_there_raises_while_an_engine_begins_and_ends_all_is_as_before_once_it_is_closed(
    tmp_path: Path, file: str
) -> None:
    def raise_mine(*_: object) -> None:
        raise Mine

    old, at, left = signal.signal(USR1, raise_mine), 0, 0
    try:
        while not left:
            strike, engine = Strike(at, file), engine_at(tmp_path / str(at))

            def train(engine: CheckpointEngine = engine) -> None:
                engine.resume()
                engine.save_if_due(1)
                engine.close()

            try:
                strike.during(train)
            except (Mine, Stopped):
                engine.close()
            assert (signal.getsignal(USR1), signals._process.lookout, signal.set_wakeup_fd(-1)) == (raise_mine, None, -1), at
            at, left = at + 1, strike.left
    finally:
        signal.signal(USR1, old)
