"""What stands between `milepost run` and a trainer: a shell, a launcher that passes nothing on, a pipe that hides a code."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from milepost.clock import SystemClock
from milepost.publish.view import read
from milepost.store.local import LocalStore
from tests.supervise.attempts import PRELUDE
from tests.supervise.runs import LOOP, MILEPOST, QUICK, running

AT = 'at(counters["step"])'
TRAINER = LOOP.replace("every(steps=10)", "every(steps=1000)").replace(
    AT,
    """
        if counters["step"] == 15:
            made("there")
            while engine.stopping is None:  # which comes, or the test fails
                threading.Event().wait(0.01)""",
)
SHELL = "os.execvp('sh', ['sh', '-c', f'{sys.executable} trainer.py; exit $?'])"
PIPE = "os.execvp('sh', ['sh', '-c', f'{sys.executable} trainer.py | cat'])"
LAUNCHER = "made('launcher'); sys.exit(subprocess.call([sys.executable, 'trainer.py']))"


def saved(folder: Path) -> list[int]:
    return [each.step for each in read(LocalStore(str(folder / "runs" / "mine"), SystemClock())).live.values()]


def wrapped(folder: Path, wrapper: str, *options: str, **more: Any) -> Any:
    (folder / "trainer.py").write_text(TRAINER)
    return running(folder, PRELUDE + wrapper, *QUICK, *options, **more)


@pytest.mark.parametrize("wrapper", [SHELL, PIPE, LAUNCHER], ids=["shell", "pipe", "launcher"])
def test_a_trainer_behind_a_wrapper_saves_before_it_goes(tmp_path: Path, wrapper: str) -> None:
    with wrapped(tmp_path, wrapper) as run:
        run.gate("there")
        run.send(signal.SIGTERM)
        assert run.ends() == 75
    assert saved(tmp_path) == [16], run.said()
    assert [each["kind"] for each in run.events() if each["event"] == "ended"] == ["preempted"]


def test_a_ctrl_c_reaches_a_trainer_behind_a_shell(tmp_path: Path) -> None:
    with wrapped(tmp_path, SHELL) as run:
        run.gate("there")
        run.send(signal.SIGINT)
        assert run.ends() == 130
    assert saved(tmp_path) == [16], run.said()


def test_an_exit_code_that_a_pipe_hides_is_not_taken_for_the_end_of_training(tmp_path: Path) -> None:
    (tmp_path / "notice").write_text("0")
    with wrapped(tmp_path, PIPE, "--notice", "notice") as run:
        assert run.ends() == 75, run.said()
    assert [each["kind"] for each in run.events() if each["event"] == "ended"] == ["notice"]


def test_a_trainer_whose_launcher_was_killed_saves_and_that_is_no_preemption(tmp_path: Path) -> None:
    with wrapped(tmp_path, LAUNCHER, "--max-infrastructure", "0") as run:
        run.gate("there")
        os.kill(int(run.gate("launcher")), signal.SIGKILL)
        assert run.ends() == 137, run.said()
    assert saved(tmp_path) == [16], run.said()
    assert [each["kind"] for each in run.events() if each["event"] == "ended"] == ["killed"]


def test_a_run_within_a_run_hears_of_the_end_through_a_shell(tmp_path: Path) -> None:
    inner = " ".join(map(shlex.quote, [*MILEPOST, "run", "--", sys.executable, "trainer.py"]))
    with wrapped(tmp_path, f"os.execvp('sh', ['sh', '-c', {inner + '; exit $?'!r}])") as run:
        run.gate("there")
        run.send(signal.SIGTERM)
        assert run.ends() == 75, run.said()
    assert saved(tmp_path) == [16], run.said()
