"""What the children of a trainer do when it, or its whole group, is told to end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from milepost.store.process import process_start_time
from tests.supervise.told import Told, steps_of

TERM, INT, USR1, USR2 = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2

FORK = """
def forked():
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(theirs, repr([signal.getsignal(n) for n in (15, 2, 10, 12)]).encode() + b"\\n")
        while True:
            signal.pause()
    os.close(theirs)
    with open(ours) as file:
        return child, file.readline()
"""


def trainer(root: Path, settings: str = "stop=True", *, before: str = "", group: bool = False) -> Told:
    told = Told(group=group)
    told.do(f"{before}\nengine = engine_at({str(root)!r}, {settings})\nengine.save_if_due(1)")
    return told


def test_a_forked_child_leaves_to_its_parent_when_to_end_and_can_be_terminated(tmp_path: Path) -> None:
    with trainer(tmp_path / "run", before=FORK) as told:
        answer = told.ask("forked()")
        assert isinstance(answer, tuple)
        child, handlers = answer
        assert [name in handlers for name in ("SIG_DFL", "SIG_IGN")] == [True, True]
        for signum in (INT, USR1, USR2, TERM):
            os.kill(child, signum)
        assert told.ask(f"os.waitpid({child}, 0)[1]") == TERM
        assert told.ask("engine.stopping") is None


def test_handlers_that_were_there_before_are_there_in_a_forked_child(tmp_path: Path) -> None:
    before = FORK + "def mine(*_): pass\nfor n in (signal.SIGTERM, signal.SIGUSR1): signal.signal(n, mine)"
    with trainer(tmp_path / "run", before=before) as told:
        answer = told.ask("forked()")
        assert isinstance(answer, tuple)
        assert answer[1].count("mine") == 2
        told.do(f"os.kill({answer[0]}, 9); os.waitpid({answer[0]}, 0)")


def test_a_child_that_is_terminated_as_it_is_forked_ends_and_its_parent_hears_nothing(tmp_path: Path) -> None:
    code = """
for _ in range(200):
    child = os.fork()
    if child == 0:
        signal.pause()
    os.kill(child, signal.SIGTERM)
    assert os.waitpid(child, 0)[1] == signal.SIGTERM
answer = engine.stopping
"""
    with trainer(tmp_path / "run") as told:
        assert told.do(code) is None


def test_a_program_that_is_started_inherits_no_ignored_and_no_blocked_signal_and_no_descriptor(tmp_path: Path) -> None:
    look = "import subprocess\ndef run(*command): return subprocess.run(command, capture_output=True, text=True).stdout"
    masks = "[line for line in run('cat', '/proc/self/status').splitlines() if line.startswith(('SigBlk', 'SigIgn'))]"
    files = "run('ls', '/proc/self/fd')"
    with trainer(tmp_path / "run", before=f"{look}\nbefore = {masks}, {files}") as told:
        assert told.ask(f"before == ({masks}, {files})") is True


def test_a_trainer_in_a_forked_child_of_one_that_listens_hears_what_its_parent_told_it_to_ignore(tmp_path: Path) -> None:
    code = f"""
ours, theirs = os.pipe()
child = os.fork()
if child == 0:
    mine = engine_at({str(tmp_path / "child")!r}, stop=True)
    os.write(theirs, b"training")
    while not mine.stopping:
        pass
    mine.save_if_due(5)
os.close(theirs)
answer = child, os.read(ours, 100)
"""
    with trainer(tmp_path / "run") as told:
        answer = told.do(code)
        assert isinstance(answer, tuple)
        os.kill(answer[0], USR1)
        assert told.ask(f"os.waitstatus_to_exitcode(os.waitpid({answer[0]}, 0)[1])") == 75
        assert told.ask("engine.stopping") is None
        assert steps_of(tmp_path / "child") == [5]


WORKERS = """
import gymnasium, numpy
def make():
    return gymnasium.make("CartPole-v1")
"""
GYMNASIUM = """
envs = gymnasium.vector.AsyncVectorEnv([make] * 2, context={!r})
envs.reset()
"""
SB3 = """
from stable_baselines3.common.vec_env import SubprocVecEnv, VecMonitor
envs = VecMonitor(SubprocVecEnv([make] * 2, start_method={!r}))
envs.reset()
"""
TRAINING = """
engine = CheckpointEngine({!r}, state={{"policy": {{"weights": weights}}, "envs": envs}}, stop=True)
engine.resume()
"""


def signalled_and_stepped(told: Told, signum: signal.Signals) -> int:
    """Send a signal to the whole group, take steps, come to a safe point, and return how it ended."""
    os.killpg(told.process.pid, signum)
    told.logged(f"{signum.name}: training stops")
    told.do("for _ in range(20): envs.step(numpy.zeros(2, int))")
    told.tell("engine.save_if_due(2)")
    return told.ended()


@pytest.mark.parametrize(
    ("vector", "method", "signum"),
    [
        (GYMNASIUM, "fork", INT),
        (GYMNASIUM, "spawn", USR1),
        (SB3, "fork", USR1),
        (SB3, "forkserver", INT),
        (SB3, "forkserver", USR1),
    ],
    ids=["gymnasium-fork-int", "gymnasium-spawn-usr1", "sb3-fork-usr1", "sb3-forkserver-int", "sb3-forkserver-usr1"],
)
def test_envs_workers_outlive_a_signal_to_the_whole_group_until_all_is_saved(
    tmp_path: Path, vector: str, method: str, signum: signal.Signals
) -> None:
    with Told(group=True) as told:
        told.do(WORKERS + vector.format(method))
        told.do(TRAINING.format(str(tmp_path / "run")))
        assert signalled_and_stepped(told, signum) == (130 if signum == INT else 75)
        assert steps_of(tmp_path / "run") == [2]
        assert "KeyboardInterrupt" not in told.said
        assert "not-spared" not in told.said


@pytest.mark.parametrize(
    ("vector", "method", "signum"), [(GYMNASIUM, "fork", USR1), (SB3, "forkserver", INT)], ids=["gymnasium", "sb3"]
)
def test_workers_that_are_made_later_and_are_not_the_engines_outlive_it_as_well(
    tmp_path: Path, vector: str, method: str, signum: signal.Signals
) -> None:
    with trainer(tmp_path / "run", before=WORKERS, group=True) as told:
        told.do(vector.format(method))
        assert signalled_and_stepped(told, signum) == (130 if signum == INT else 75)
        assert steps_of(tmp_path / "run") == [2]


def test_workers_that_were_there_before_and_cannot_be_told_are_named(tmp_path: Path) -> None:
    with trainer(tmp_path / "run", before=WORKERS + GYMNASIUM.format("fork")) as told:
        assert "2 worker processes were there before" in told.logged("not-spared")


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_can_be_terminated_and_leave_with_the_trainer(tmp_path: Path, method: str) -> None:
    code = f"""
import multiprocessing
context = multiprocessing.get_context({method!r})
first, left = (context.Process(target=signal.pause, daemon=True) for _ in range(2))
first.start()
left.start()
first.terminate()
first.join()
answer = first.exitcode
"""
    with trainer(tmp_path / "run") as told:
        assert told.do(code) == -TERM
        left = told.ask("left.pid")
        told.send(TERM)
        told.logged("SIGTERM: training")
        told.tell("engine.save_if_due(2)")
        assert told.ended() == 75
        assert process_start_time(int(str(left))) is None


def test_workers_made_once_nobody_listens_are_as_ever(tmp_path: Path) -> None:
    code = """
import multiprocessing
engine.close()
worker = multiprocessing.get_context("spawn").Process(target=signal.pause)
worker.start()
os.kill(worker.pid, signal.SIGUSR1)
worker.join()
answer = worker.exitcode
"""
    with trainer(tmp_path / "run") as told:
        assert told.do(code) == -USR1
