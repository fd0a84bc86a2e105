"""A Ctrl-C before any line of a stop: what is durable stays, the next safe point stops it after all, and the root is free. B11"""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost import Keep, Stopped
from milepost.clock import FakeClock
from milepost.engine import oneshot
from milepost.publish.view import read
from milepost.store.posix import Posix
from milepost.testing.faults import count_operations, run_and_kill
from tests.engine.test_ctrl_c_anywhere import CtrlC, lines_of, roots
from tests.engine.training import Training, bits, local, state_at, with_logs

_POINTS = {"thread": 25, "process": 10}
"""How many lines are struck, evenly spread. To start a writer process takes its time, each time."""


def about_to_stop(root: Path, writer: str) -> Training:
    training = Training(root, writer=writer)
    training.engine.resume()
    training.engine.stop_by("30s", path="SIGTERM")
    return training


def stop_at(training: Training, step: int) -> None:
    training.train_to(step)
    with pytest.raises(Stopped):
        training.engine.save_if_due(step)


@pytest.mark.parametrize("writer", ["thread", "process"])
def test_after_a_ctrl_c_anywhere_in_a_stop_all_is_saved_at_the_next_safe_point(tmp_path: Path, writer: str) -> None:
    copies = roots(tmp_path)
    for root in (next(copies), next(copies)):  # the first time there are imports to be done
        training = about_to_stop(root, writer)
        total = lines_of(lambda: stop_at(training, 3))  # noqa: B023 - called at once
    tried = 0
    for at, root in zip(range(0, total, max(1, total // _POINTS[writer])), copies, strict=False):
        training = about_to_stop(root, writer)
        struck = CtrlC(at)
        tried += struck.strikes(lambda: stop_at(training, 3))  # noqa: B023
        expected = 3 if training.engine._closed else 4  # struck after the last save, while the root was given up, or before
        if expected == 4:
            stop_at(training, 4)
        training.engine.close()
        with local(root).guard(wait_s=0.0, take_over=False):
            pass
        view = read(local(root))
        assert view.head is not None, struck.where
        assert view.head.step == expected, struck.where
        for number, summary in view.live.items():
            assert bits(oneshot.load(local(root), which=number)) == bits(state_at(summary.step))
    assert tried >= _POINTS[writer] / 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("within", ["30s", 0.001], ids=["all", "without replay"])
def test_a_kill_before_any_file_operation_of_a_stop_loses_no_complete_generation(tmp_path: Path, within: str | float) -> None:
    def train(root: Path, posix: Posix) -> None:
        training = Training(local(root, posix), keep=Keep(last=1), clock=FakeClock(prefix="a"))
        training.engine.resume()
        training.save(1)
        training.engine.stop_by(within, path="SIGTERM")
        stop_at(training, 2)

    with with_logs():
        total = len(count_operations(lambda posix: train(tmp_path / "whole", posix)))
        reached: set[int] = set()
        for number in range(0, total, 5):
            root = tmp_path / f"{number}"
            if not run_and_kill(lambda posix: train(root, posix), number):  # noqa: B023 - called at once
                break
            with Training(root, keep=Keep(last=1)) as again:
                restored = again.engine.resume()
                step = restored.step if restored else 0
                assert again.is_at(step)
                reached.add(step)
                again.save(9)
            assert bits(oneshot.load(root)) == bits(state_at(9))
            assert oneshot.verify(root).ok
    assert reached == ({0, 1, 2} if within == "30s" else {0, 1})
