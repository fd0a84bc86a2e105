"""`milepost run` as a program, with real processes and signals: what it passes on, when it starts again, what it leaves."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import milepost
from milepost.supervise.group import process
from tests.supervise.attempts import PRELUDE, is_alive, until
from tests.supervise.runs import LOOP, MILEPOST, QUICK, ran, running

COUNTS = PRELUDE + "attempt = int(os.environ['MILEPOST_ATTEMPT'])\nmade(f'attempt-{attempt}')\n"
DIES = {
    "kill -9": "os.kill(os.getpid(), 9)",
    "a crash": "os.kill(os.getpid(), signal.SIGSEGV)",
    "an exception": "raise ValueError('a loss of nan') if attempt == 1 else KeyError(attempt)",
    "asked to be started again": "sys.exit(75)",
}


@pytest.mark.parametrize("how", DIES)
def test_what_dies_is_started_again_and_told_how_often(tmp_path: Path, how: str) -> None:
    run = ran(tmp_path, COUNTS + f"if attempt < 3:\n    {DIES[how]}\n", *QUICK, "--max-failures", "5")
    assert run.process.returncode == 0, run.said()
    assert "exit code 0 after 3 attempts" in run.said()
    assert not (tmp_path / "attempt-4").exists()


WANTS = (
    COUNTS
    + """
from milepost.engine import supervised
supervised.leave_record(os.environ["MILEPOST_SUPERVISED"], f"retries-{os.getpid()}", {"retries": 1})
sys.exit(5)
"""
)


@pytest.mark.parametrize(
    ("options", "attempts", "says"),
    [
        ((), 2, "it wants 1 restart after failures of its own (retries)\n"),
        (
            ("--max-failures", "2"),
            3,
            "it wants 1 restart after failures of its own (retries); max-failures 2 was given, and counts",
        ),
        (("--max-failures", "0"), 1, "max-failures 0 was given, and counts"),
    ],
)
def test_a_command_says_how_many_failures_it_may_have_unless_it_is_told(
    tmp_path: Path, options: tuple[str, ...], attempts: int, says: str
) -> None:
    run = ran(tmp_path, WANTS, *QUICK, *options)
    assert run.process.returncode == 5, run.said()
    assert run.said().count("it wants 1 restart") == 1, "it is told once"
    assert says in run.said()
    assert f"exit code 5 after {attempts} attempt" in run.said()


@pytest.mark.parametrize(("end", "code"), [("sys.exit(0)", 0), ("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)])
def test_in_the_end_it_exits_as_its_command_did(tmp_path: Path, end: str, code: int) -> None:
    options = ("--max-failures", "0", "--max-infrastructure", "0")
    run = ran(tmp_path, COUNTS + end, *QUICK, *options)
    assert run.process.returncode == code, run.said()
    assert f"exit code {code} after 1 attempt" in run.said()


def test_its_output_is_the_commands_own_and_its_words_are_on_stderr(tmp_path: Path) -> None:
    run = ran(tmp_path, "import sys\nprint('return 12.5')\nprint('warning: half', end='', file=sys.stderr)\n")
    assert run.out() == "return 12.5\n"
    # A line of its own begins a line, also behind half a line of the command's.
    assert "warning: half\n[run] " in run.said()


def test_nothing_is_left_of_it_in_the_temporary_directory(tmp_path: Path) -> None:
    ran(tmp_path, LOOP.replace("at(counters", "(counters"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "runs", "stderr", "stdout", "train.py"]


def test_what_happens_is_in_the_log_as_json(tmp_path: Path) -> None:
    script = LOOP.replace('at(counters["step"])', "(attempt == 1 and counters['step'] == 25) and os.kill(os.getpid(), 9)")
    run = ran(tmp_path, script, *QUICK)
    events = run.events()
    assert [each["event"] for each in events] == [
        *("started", "ended", "newest", "hint", "next"),
        *("started", "resumed", "ended", "newest", "over"),
    ]
    assert [each["attempt"] for each in events] == [1] * 5 + [2] * 5
    assert events[2] | {"generation": 2, "step": 20} == events[2]
    assert events[1] | {"signal": 9, "kind": "killed", "fault": "soft", "published": True, "step": 25} == events[1]
    assert "5 steps lost" in run.said()
    assert "went on from g000002 of runs/mine" in run.said()


def test_a_summary_for_programs_is_the_last_line_of_stdout(tmp_path: Path) -> None:
    run = ran(tmp_path, COUNTS + "print('trained')\nsys.exit(attempt == 1 and 75)\n", *QUICK, "--json")
    trained, again, document = run.out().splitlines()
    assert trained == again == "trained"
    found = json.loads(document)
    assert (found["message_type"], found["exit_code"]) == ("run", 0)
    assert [each["kind"] for each in found["attempts"]] == ["requeue-asked", "done"]
    for line in run.said().splitlines():
        assert json.loads(line)["message_type"] == "run_event"


HANGS_IN_A_ROLLOUT = LOOP.replace('at(counters["step"])', "counters['step'] == 15 and (made('in-rollout'), wait_for_ever())")
SAVES = LOOP.replace(
    'at(counters["step"])', "counters['step'] == 15 and Path('go').exists() is False and (made('ready'), stand())"
).replace("np.random.seed", "def stand():\n    while not Path('go').exists(): pass\n\nnp.random.seed")


@pytest.mark.parametrize(("number", "code"), [("TERM", 75), ("HUP", 75), ("USR1", 75), ("USR2", 75), ("INT", 130)])
def test_a_signal_has_the_command_save_at_its_next_safe_point_and_leave(tmp_path: Path, number: str, code: int) -> None:
    with running(tmp_path, SAVES) as run:
        run.gate("ready")
        run.send(getattr(signal, f"SIG{number}"))
        run.hears(f"SIG{number}: passed on")
        (tmp_path / "go").touch()
        assert run.ends() == code, run.said()
    assert milepost.load(tmp_path / "runs" / "mine")["counters"]["step"] == 16


def test_one_that_hangs_in_a_rollout_is_killed_when_its_grace_period_is_over(tmp_path: Path) -> None:
    with running(tmp_path, HANGS_IN_A_ROLLOUT, "--grace", "0.5s") as run:
        run.gate("in-rollout")
        run.send(signal.SIGTERM)
        assert run.ends() == 75, run.said()
    assert "the grace period is over: killed" in run.said()
    assert milepost.load(tmp_path / "runs" / "mine")["counters"]["step"] == 10


def test_a_second_signal_kills_at_once(tmp_path: Path) -> None:
    with running(tmp_path, PRELUDE + "signal.signal(signal.SIGTERM, signal.SIG_IGN); made('ready'); wait_for_ever()") as run:
        pid = int(run.gate("ready"))
        run.send(signal.SIGTERM)
        run.hears("SIGTERM: passed on")
        # Sent again and again: those within a second of the first are the same one to it.
        until(lambda: run.process.poll() is not None, lambda: run.process.poll() is None and run.send(signal.SIGTERM))
        assert run.ends() == 143
    assert "SIGTERM again: killed at once" in run.said()
    assert not is_alive(pid)


def test_a_signal_while_it_waits_to_start_again_ends_it(tmp_path: Path) -> None:
    with running(tmp_path, COUNTS + "os.kill(os.getpid(), 9)", "--backoff", "10d") as run:
        run.hears("starts again in")
        run.send(signal.SIGTERM)
        assert run.ends() == 75
    assert not (tmp_path / "attempt-2").exists()


def test_a_ctrl_c_at_the_terminal_reaches_the_command_once_and_its_workers_not_at_all(tmp_path: Path) -> None:
    worker = "import signal, sys\nsignal.signal(signal.SIGINT, lambda *_: open('worker', 'w').close())\n"
    worker += "print(flush=True)\nsys.stdin.read()"
    script = LOOP.replace(
        'at(counters["step"])',
        f"""
        if counters["step"] == 15:
            child = subprocess.Popen([sys.executable, "-c", {worker!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            child.stdout.readline()
            made("ready")
            while not Path("go").exists(): pass
""",
    )
    leader, follower = os.openpty()
    try:
        # The kernel turns the byte of a Ctrl-C into a signal to the foreground group of the terminal.
        with running(tmp_path, script, preexec_fn=lambda: _take_terminal(follower)) as run:
            run.gate("ready")
            os.write(leader, b"\x03")
            run.hears("SIGINT: passed on")
            (tmp_path / "go").touch()
            assert run.ends() == 130, run.said()
    finally:
        os.close(leader)
        os.close(follower)
    assert not (tmp_path / "worker").exists()
    assert milepost.load(tmp_path / "runs" / "mine")["counters"]["step"] == 16


def _take_terminal(follower: int) -> None:
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(follower, termios.TIOCSCTTY, 0)


def test_what_is_ignored_under_nohup_stays_so(tmp_path: Path) -> None:
    script = (
        PRELUDE + "made('ready', str(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN))\nwhile not Path('go').exists(): pass\n"
    )
    with running(tmp_path, script, before=("nohup",)) as run:
        assert run.gate("ready") == "True"
        run.send(signal.SIGHUP)
        (tmp_path / "go").touch()
        assert run.ends() == 0


def test_a_command_that_does_not_exist_is_one_error(tmp_path: Path) -> None:
    done = subprocess.run([*MILEPOST, "run", "--", "no-such-trainer"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "error: the command cannot be started: No such file or directory"
    assert "hint: write it as you would at the prompt" in done.stderr


BINARY = "import os\nfor _ in range(64): os.write(2, bytes(range(256)) * 64)\n"


def test_a_flood_on_stderr_comes_through_byte_by_byte(tmp_path: Path) -> None:
    run = ran(tmp_path, BINARY)
    assert run.process.returncode == 0
    assert bytes(range(256)) * 64 * 64 in (tmp_path / "stderr").read_bytes()


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full 2>&1"])
def test_streams_that_are_closed_or_full_change_nothing_for_the_command(tmp_path: Path, closed: str) -> None:
    script = BINARY + "made = open('made', 'w')\nmade.write(str(made.fileno()))\nmade.close()\nos._exit(3)\n"
    (tmp_path / "train.py").write_text(script)
    options = ["run", "--log", "log", "--max-failures", "0", "--json", "--", sys.executable, "train.py"]
    done = subprocess.run(["sh", "-c", f"{shlex.join([*MILEPOST, *options])} {closed}"], cwd=tmp_path)
    assert done.returncode == 3
    # What is opened next does not take the place of a stream that is closed: it would get all that is printed.
    assert int((tmp_path / "made").read_text()) > 2
    assert {json.loads(line)["message_type"] for line in (tmp_path / "log").read_text().splitlines()} == {"run_event"}


def test_a_reader_that_has_gone_stops_nobody(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with running(tmp_path, PRELUDE + "made('ready')\nwhile not Path('go').exists(): pass\n" + BINARY, stderr=writing) as run:
        os.close(writing)
        run.gate("ready")
        os.close(reading)
        (tmp_path / "go").touch()
        assert run.ends() == 0


def test_a_reader_that_does_not_read_keeps_the_command_waiting_but_no_signal(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        with running(tmp_path, PRELUDE + "made('ready')\nos.write(2, b'x' * (8 << 20))\n", stderr=writing) as run:
            os.close(writing)
            run.gate("ready")
            run.send(signal.SIGTERM)
            assert run.ends() == 75
    finally:
        os.close(reading)


def test_a_reader_that_has_never_read_hides_no_signal(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        with suppress(BlockingIOError):
            while os.write(writing, b"x" * 4096):
                pass
        os.set_blocking(writing, True)
        with running(tmp_path, PRELUDE + "made('ready'); wait_for_ever()", stderr=writing) as run:
            os.close(writing)
            run.gate("ready")
            run.send(signal.SIGTERM)
            assert run.ends() == 75
    finally:
        os.close(reading)


def test_a_log_on_a_full_disk_is_told_once_and_stops_nobody(tmp_path: Path) -> None:
    run = ran(tmp_path, COUNTS + "sys.exit(attempt == 1 and 75)", "--log", "/dev/full", *QUICK)
    assert run.process.returncode == 0
    assert run.said().count("the log cannot be written") == 1


def test_a_parent_that_ignores_the_end_of_its_children_takes_no_status_away(tmp_path: Path) -> None:
    deaf = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"
    before = (sys.executable, "-c", deaf)
    with running(tmp_path, COUNTS + "sys.exit(5)", "--max-failures", "0", before=before) as run:
        assert run.ends() == 5, run.said()


def test_a_child_that_it_had_before_it_was_milepost_run_is_none_of_its_own(tmp_path: Path) -> None:
    # A script that starts a service, which daemonizes another, and becomes milepost run.
    service = (
        "setsid sh -c 'sleep 1000 & echo $! > daemon; exec sleep 1000' & echo $! > service; while ! [ -s daemon ]; do :; done"
    )
    before = ("sh", "-c", service + '; exec "$@"', "sh")
    with running(tmp_path, COUNTS + "os.kill(os.getpid(), 9) if attempt == 1 else None", *QUICK, before=before) as run:
        pids = [int(run.gate(name)) for name in ("service", "daemon")]
        try:
            assert run.ends() == 0
            assert [is_alive(pid) for pid in pids] == [True, True]
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)


def test_no_secret_of_the_command_line_is_written_down(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    words = [*MILEPOST, "run", "--", sys.executable, "train.py", "--url", "https://me:hunter2@tracker.example/run"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0
    assert "hunter2" not in done.stderr


def test_one_that_was_stopped_itself_hears_what_came_meanwhile(tmp_path: Path) -> None:
    with running(tmp_path, SAVES) as run:
        run.gate("ready")
        run.send(signal.SIGSTOP)
        until(lambda: process(run.process.pid).state == "T")  # type: ignore[union-attr]
        run.send(signal.SIGTERM)
        run.send(signal.SIGCONT)
        run.hears("SIGTERM: passed on")
        (tmp_path / "go").touch()
        assert run.ends() == 75, run.said()


def test_a_grace_in_the_environment_that_is_none_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEPOST_GRACE", "0")
    done = subprocess.run([*MILEPOST, "run", "--", "true"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "MILEPOST_GRACE is not a length of time above 0" in done.stderr


def test_what_supervises_does_not_import_what_trains() -> None:
    # numpy would cost each start a tenth of a second, and bring threads that hear signals.
    script = "import sys, milepost.cli.run, milepost.cli.up; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
