"""Notices, limits and deadlines, in real processes that train."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from milepost.errors import UsageError
from milepost.lifecycle.stopping import Stop
from milepost.store.process import has_ended
from milepost.supervise.failure_record import read_failures
from milepost.supervise.listening_record import read_listening
from milepost.supervise.signals import grace_s, listen
from tests.supervise.told import PATIENCE_S, Told, steps_of

TERM, INT = signal.SIGTERM, signal.SIGINT

OFTEN = "from milepost.supervise import lookout\nlookout.EVERY_S = 0.02"


def trainer(root: Path, settings: str, *, before: str = OFTEN, environment: dict[str, str] | None = None) -> Told:
    told = Told(environment=environment)
    told.do(f"{before}\nengine = engine_at({str(root)!r}, {settings})\nengine.save_if_due(1)")
    return told


def test_a_notice_saves_once_trains_on_and_leaves_before_its_deadline(tmp_path: Path) -> None:
    notice = tmp_path / "preempt"
    with trainer(tmp_path / "run", f"stop=Stop(notice={str(notice)!r})") as told:
        notice.write_text("1h")  # it may be found while it is still empty
        told.logged("notice .*preempt: this machine goes in 3600 s")
        told.do("for step in range(2, 9): engine.save_if_due(step)")
        assert told.ask("(engine.wait().step, engine.stopping.at_once, engine.stopping.exit_code)") == (2, False, 75)
        notice.write_text("1s")
        told.do("while engine.stopping.deadline_ns > engine._clock.monotonic_ns() + 10**10: pass")
        told.tell("engine.save_if_due(9)")
        assert told.ended() == 75
        assert steps_of(tmp_path / "run") == [2, 9]


def test_a_notice_that_says_its_deadline_only_at_the_second_look_has_that_deadline(tmp_path: Path) -> None:
    notice = tmp_path / "preempt"
    notice.touch()
    with trainer(tmp_path / "run", f"stop=Stop(notice={str(notice)!r}, grace=40)") as told:
        told.logged("this machine goes in 40 s")
        notice.write_text("1h")
        told.logged("this machine goes in 3600 s")
        left_s = told.ask("(engine.stopping.deadline_ns - engine._clock.monotonic_ns()) / 1e9")
        assert isinstance(left_s, float)
        assert left_s > 1000


def test_a_notice_that_is_withdrawn_lets_training_go_on(tmp_path: Path) -> None:
    notice = tmp_path / "preempt"
    notice.write_text("")
    with trainer(tmp_path / "run", f"stop=Stop(notice={str(notice)!r}, grace='1h')") as told:
        told.logged("this machine goes in 3600 s")
        notice.unlink()
        told.logged("was withdrawn")
        told.do("engine.save_if_due(2)")
        assert told.ask("engine.stopping") is None


def test_a_notice_is_found_by_the_environment_too(tmp_path: Path) -> None:
    environment = {"MILEPOST_NOTICE": str(tmp_path / "preempt"), "MILEPOST_STOP": "1"}
    with trainer(tmp_path / "run", "", environment=environment) as told:
        (tmp_path / "preempt").write_text("0s")
        told.logged("this machine goes in 0 s")
        told.tell("engine.save_if_due(2)")
        assert told.ended() == 75


def test_a_limit_and_a_time_to_stop_at_are_told_to_the_engine(tmp_path: Path) -> None:
    environment = {"MILEPOST_STOP_AT": str(time.time() + 1800)}
    with trainer(tmp_path / "run", "stop=Stop(limit='1h')", environment=environment) as told:
        assert told.ask("sorted(engine._stops._requests)") == ["MILEPOST_STOP_AT", "limit 1h"]
        assert told.ask("engine.stopping.path") == "MILEPOST_STOP_AT"
        left = told.ask("(engine.stopping.deadline_ns - engine._clock.monotonic_ns()) / 1e9")
        assert isinstance(left, float)
        assert 1000 < left <= 1800


def test_a_limit_counts_from_when_the_process_began_to_listen_and_not_from_the_next_engine(tmp_path: Path) -> None:
    with trainer(tmp_path / "run", "stop=Stop(limit='1h')") as told:
        told.do("first = engine.stopping.deadline_ns\nengine.close()")
        told.do("from milepost.supervise import signals\nsignals._process.began_ns -= 1800 * 10**9")  # half an hour later
        told.do(f"engine = engine_at({str(tmp_path / 'more')!r}, stop=Stop(limit='1h'))")
        earlier_s = told.ask("(first - engine.stopping.deadline_ns) / 1e9")
        assert isinstance(earlier_s, float)
        assert 1700 < earlier_s < 1900


@pytest.mark.parametrize("text", ["soon", "nan", "-1", "inf"])
def test_a_time_to_stop_at_that_is_none_is_refused_before_anything_is_changed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEPOST_STOP_AT", text)
    before = signal.getsignal(TERM)
    with pytest.raises(UsageError) as caught:
        listen(Stop(), object())  # type: ignore[arg-type]
    assert caught.value.kind == "bad-environment"
    assert signal.getsignal(TERM) is before


def test_slurms_end_time_is_told_by_the_environment_or_by_slurm(tmp_path: Path) -> None:
    job = {"SLURM_JOB_ID": "41", "SLURM_JOB_END_TIME": str(int(time.time()) + 3600)}
    with trainer(tmp_path / "run", "stop=True", environment=job) as told:
        assert told.ask("(engine.stopping.path, engine.stopping.at_once)") == ("SLURM end time", False)
    (tmp_path / "squeue").write_text("#!/bin/sh\necho 10:00\n")
    (tmp_path / "squeue").chmod(0o755)
    job = {"SLURM_JOB_ID": "41", "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    with trainer(tmp_path / "asked", "stop=True", environment=job) as told:
        told.logged("SLURM end time: this job ends in 600 s")
        told.do("while engine.stopping is None: pass")
        assert told.ask("engine.stopping.path") == "SLURM end time"
    with trainer(tmp_path / "not", "stop=Stop(slurm=False)", environment=job) as told:
        assert told.ask("engine.stopping") is None


GRACE = "grace=1e-9, stop=Stop(grace={!r})"
"""Every rollout outlasts it: each safe point is kept staged from the second on."""


STUCK = """
import ctypes
libc, waited, got = ctypes.CDLL(None), (ctypes.c_ulong * 16)(), ctypes.c_int()
libc.sigemptyset(waited)
libc.sigaddset(waited, 63)
print("'stuck'", flush=True)
libc.sigwait(waited, ctypes.byref(got))
"""
"""Be as in a kernel or a simulator: no handler that is Python is called. A wait for a signal that nobody sends is not
interrupted by one that has a handler."""

TURNS = (
    OFTEN
    + """
from milepost.supervise import listening
listening._AGAIN_S = 0.01
turns, real = [], lookout.Lookout.turn
def turn(self):
    turns.append(1)
    return real(self)
lookout.Lookout.turn = turn
def let_it_look():
    seen = len(turns)
    while len(turns) < seen + 5: pass
"""
)


@pytest.mark.parametrize("writer", ["thread", "process"])
def test_in_the_midst_of_a_rollout_what_is_staged_is_made_durable_and_at_the_deadline_the_process_ends(
    tmp_path: Path, writer: str
) -> None:
    environment = {"MILEPOST_SUPERVISED": str(tmp_path / "attempt"), "PYTHONUNBUFFERED": ""}
    (tmp_path / "attempt").mkdir()
    with trainer(tmp_path / "run", f"writer={writer!r}, " + GRACE.format(0.5), environment=environment) as told:
        told.do("weights += 1\nengine.save_if_due(2)\nengine.save_if_due(3)")
        told.tell("import threading\nsys.stdout.write('held back')\nthreading.Event().wait()")
        told.send(TERM)
        assert told.ended() == 75
        assert steps_of(tmp_path / "run") == [3]
        assert "SIGTERM: the last safe point is durable, as generation 1 of step 3" in told.said
        assert "the process ends here with 75" in told.said
        assert told.process.stdout is not None
        assert told.process.stdout.read() == "held back"
    stopped = json.loads((tmp_path / "attempt" / f"stopped-{told.process.pid}.json").read_bytes())
    assert (stopped["exit_code"], stopped["step"], stopped["generation"], stopped["path"]) == (75, 3, 1, "SIGTERM")


def test_a_rollout_in_which_no_python_runs_is_ended_as_well(tmp_path: Path) -> None:
    with trainer(tmp_path / "run", GRACE.format(0.5)) as told:
        told.do("engine.save_if_due(2)\nengine.save_if_due(3)")
        told.tell(STUCK)
        assert told.answer() == "stuck"
        told.send(TERM)
        assert told.ended() == 75
        assert steps_of(tmp_path / "run") == [3]


def test_a_second_signal_ends_a_process_in_which_no_python_runs(tmp_path: Path) -> None:
    before = OFTEN + "\nfrom milepost.supervise import dispositions\ndispositions.TWICE_NS = lookout.TWICE_NS = 0"
    with trainer(tmp_path / "run", "stop=True", before=before + "\nlookout.MARGIN_S = 0.1") as told:
        told.tell(STUCK)
        assert told.answer() == "stuck"
        told.send(INT)
        told.logged("SIGINT: training stops")
        told.send(INT)
        assert told.ended() == 130


def test_with_nothing_staged_the_process_never_ends_by_itself(tmp_path: Path) -> None:
    with trainer(tmp_path / "run", "stop=Stop(grace=0.01)", before=TURNS) as told:
        told.send(TERM)
        told.logged("SIGTERM: training stops")
        told.do("let_it_look()")
        told.tell("engine.save_if_due(2)")
        assert told.ended() == 75
        assert steps_of(tmp_path / "run") == [2]


def test_a_process_does_not_end_while_one_of_its_engines_has_nothing_staged(tmp_path: Path) -> None:
    with trainer(tmp_path / "actor", GRACE.format(0.01), before=TURNS) as told:
        told.do("engine.save_if_due(2)\nengine.save_if_due(3)")
        told.do(f"critic = engine_at({str(tmp_path / 'critic')!r}, stop=Stop(grace=0.01))")
        told.send(TERM)
        told.logged("is durable, as generation 1 of step 3")
        told.do("let_it_look()")
        told.do("critic.save_if_due(5)")
        told.tell("engine.save_if_due(5)")
        assert told.ended() == 75
        assert (steps_of(tmp_path / "critic"), steps_of(tmp_path / "actor")) == ([5], [3, 5])


def test_after_a_ctrl_c_it_is_waited_for_the_safe_point_however_long_that_takes(tmp_path: Path) -> None:
    with trainer(tmp_path / "run", GRACE.format(0.01), before=TURNS) as told:
        told.do("engine.save_if_due(2)\nengine.save_if_due(3)")
        told.send(INT)
        told.logged("SIGINT: training stops")
        told.do("let_it_look()")
        told.tell("engine.save_if_due(4)")
        assert told.ended() == 130
        assert steps_of(tmp_path / "run") == [4]


def test_what_fails_in_the_listening_thread_is_told_and_training_goes_on(tmp_path: Path) -> None:
    fault = "\nlookout.Lookout._keep_deadlines = lambda self: 1 / 0"
    with trainer(tmp_path / "run", "stop=True", before=OFTEN + fault) as told:
        told.logged("listening for what is to end this process failed")
        told.send(TERM)
        told.logged("SIGTERM: training stops")
        told.tell("engine.save_if_due(2)")
        assert told.ended() == 75
        assert told.said.count("ZeroDivisionError") == 1


def test_a_save_that_took_longer_than_the_grace_is_told(tmp_path: Path) -> None:
    with trainer(tmp_path / "run", "stop=Stop(grace=1e-6)") as told:
        told.do("engine.save(1)\nengine.save(2)\nengine.save_if_due(3)")
        assert "a signal leaves 1e-06 s" in told.logged("grace-too-short")


def test_under_torchrun_a_grace_is_no_longer_than_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    run = {"TORCHELASTIC_RUN_ID": "x"}
    assert grace_s(120.0, run) == 30.0
    assert "torchrun-kills-sooner" in caplog.text
    caplog.clear()
    assert [grace_s(20.0, run), grace_s(120.0, {}), grace_s(120.0, run | {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "300"})] == [
        20.0,
        120.0,
        120.0,
    ]
    assert caplog.text == ""


# What a supervisor finds.


def test_a_supervisor_finds_what_is_listened_to_and_how_to_ask_for_stacks(tmp_path: Path) -> None:
    environment = {"MILEPOST_SUPERVISED": str(tmp_path)}
    with trainer(tmp_path / "run", "stop=Stop(limit='1h')", environment=environment) as told:
        (record,) = read_listening(tmp_path)
        assert (record.pid, record.start_time > 0) == (told.process.pid, True)
        assert record.paths == ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "limit 1h")
        told.tell("def stuck_here():\n    print(1, flush=True)\n    threading.Event().wait()\nimport threading\nstuck_here()")
        assert told.answer() == 1
        os.kill(told.process.pid, record.stack_signal)
        stacks = ""
        while "stuck_here" not in stacks:
            stacks = Path(record.stacks).read_text()
            assert told.process.poll() is None
        assert told.process.poll() is None


def test_a_supervisor_finds_what_training_died_of_also_when_the_engine_was_closed_by_it(tmp_path: Path) -> None:
    environment = {"MILEPOST_SUPERVISED": str(tmp_path)}
    with trainer(tmp_path / "run", "stop=True", environment=environment) as told:
        told.tell("with engine:\n    engine.save_if_due(7)\n    raise RuntimeError('too hot')")
        assert told.ended() == 1
        (record,) = read_failures(tmp_path)
        assert (record.type, record.message, record.step) == ("RuntimeError", "too hot", 7)
        assert "RuntimeError: too hot" in told.said


def test_workers_end_with_a_trainer_that_is_ended_beside_its_training_thread(tmp_path: Path) -> None:
    workers = "import multiprocessing\nworker = multiprocessing.get_context('fork').Process(target=signal.pause, daemon=True)"
    with trainer(tmp_path / "run", GRACE.format(0.5)) as told:
        told.do(f"{workers}\nworker.start()\nengine.save_if_due(2)\nengine.save_if_due(3)")
        pidfd = os.pidfd_open(int(str(told.ask("worker.pid"))))
        told.tell("import threading\nthreading.Event().wait()")
        told.send(TERM)
        assert told.ended() == 75
    assert has_ended(pidfd, PATIENCE_S)
    os.close(pidfd)


def test_a_program_that_ends_without_closing_its_engine_ends_as_ever(tmp_path: Path) -> None:
    with trainer(tmp_path / "run", "stop=True") as told:
        assert told.process.stdin is not None
        told.process.stdin.close()
        assert told.ended() == 0
        assert told.said == ""
