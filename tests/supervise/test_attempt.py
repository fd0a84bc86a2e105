"""One start of a command: what it is told, what of it is heard, and that nothing of it is left, and nothing else is touched."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from milepost.clock import SystemClock
from milepost.supervise.attempt import Attempt, Order
from milepost.supervise.group import adopting, process
from milepost.supervise.printing import Console
from milepost.supervise.starting import start
from milepost.testing.faults import run_in_child
from tests.supervise.attempts import Told, is_alive, is_there, order_of, over, started, until


def test_an_exit_code_is_seen(tmp_path: Path) -> None:
    with started(order_of(tmp_path, "sys.exit(7)")) as attempt:
        end = over(attempt)
    assert (end.exit_code, end.signal) == (7, None)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_the_signal_that_ended_it_is_seen(tmp_path: Path, number: int) -> None:
    with started(order_of(tmp_path, f"os.kill(os.getpid(), {int(number)})")) as attempt:
        end = over(attempt)
    assert (end.exit_code, end.signal) == (None, number)


def test_it_is_told_which_attempt_it_is_and_has_nothing_to_read(tmp_path: Path) -> None:
    script = "made('told', ' '.join([os.environ['MILEPOST_ATTEMPT'], os.environ['MILEPOST_STOP'], repr(sys.stdin.read())]))\n"
    script += "made('folder', str(os.listdir(os.environ['MILEPOST_SUPERVISED'])))"
    with started(order_of(tmp_path, script)) as attempt:
        over(attempt)
    assert (tmp_path / "told").read_text() == "1 1 ''"
    assert (tmp_path / "folder").read_text() == "[]"


def test_a_signal_reaches_its_first_process_and_no_worker(tmp_path: Path) -> None:
    script = '''
signal.signal(signal.SIGTERM, lambda *_: made("trainer"))
worker = """import signal, sys
signal.signal(signal.SIGTERM, lambda *_: open('worker', 'w').close())
print('on', flush=True)
sys.stdin.read()"""
child = subprocess.Popen([sys.executable, "-c", worker], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
made("ready")
while not os.path.exists("trainer"):
    signal.pause()
child.stdin.close()
sys.exit(75 if child.wait() == 0 else 1)
'''
    with started(order_of(tmp_path, script)) as attempt:
        until(is_there(tmp_path / "ready"), attempt.poll)
        attempt.signal(signal.SIGTERM)
        end = over(attempt)
    assert (end.exit_code, end.forwarded) == (75, (signal.SIGTERM,))
    assert not (tmp_path / "worker").exists()


def test_one_that_does_not_end_within_its_grace_period_is_killed(tmp_path: Path) -> None:
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN); made('ready'); wait_for_ever()"
    with started(order_of(tmp_path, script, grace_s=0.2), tell=(told := Told())) as attempt:
        until(is_there(tmp_path / "ready"), attempt.poll)
        attempt.signal(signal.SIGTERM, within_s=0.2)
        end = over(attempt)
    assert (end.signal, end.killed_after_grace) == (signal.SIGKILL, True)
    assert "killed" in told.events


def test_one_that_is_asked_again_with_less_time_is_killed_when_that_is_over(tmp_path: Path) -> None:
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN); made('ready'); wait_for_ever()"
    with started(order_of(tmp_path, script), tell=(told := Told())) as attempt:
        until(is_there(tmp_path / "ready"), attempt.poll)
        attempt.signal(signal.SIGTERM, within_s=600.0)
        attempt.signal(signal.SIGTERM, within_s=0.2)
        attempt.signal(signal.SIGTERM, within_s=600.0)
        end = over(attempt)
    assert (end.signal, end.killed_after_grace) == (signal.SIGKILL, True)
    assert told.facts[told.events.index("killed")]["grace_s"] == 0.2


def test_a_stopped_command_is_woken_so_that_it_can_hear(tmp_path: Path) -> None:
    script = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); made('ready'); wait_for_ever()"
    with started(order_of(tmp_path, script)) as attempt:
        until(is_there(tmp_path / "ready"), attempt.poll)
        os.kill(attempt.pid, signal.SIGSTOP)
        until(lambda: process(attempt.pid).state == "T")  # type: ignore[union-attr]
        attempt.signal(signal.SIGTERM)
        end = over(attempt)
    assert end.exit_code == 75


ESCAPES = {
    "in its group": "subprocess.Popen([sys.executable, '-c', CHILD.format('hidden')])",
    "in a session of its own": "subprocess.Popen([sys.executable, '-c', CHILD.format('hidden')], start_new_session=True)",
    "an orphan in its session, with an environment of its own": """
if os.fork() == 0:
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, '-c', CHILD.format('hidden')], {})
    os._exit(0)
os.wait()
""",
    "daemonized": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid() if os.getpid() != os.getsid(0) else None
        os.execv(sys.executable, [sys.executable, '-c', CHILD.format('hidden')])
    os._exit(0)
os.wait()
""",
    "daemonized, with an environment of its own": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, '-c', CHILD.format('hidden')], {})
    os._exit(0)
os.wait()
""",
}
CHILD = """
CHILD = '''
import os, signal, sys, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open({0!r}, 'w').write(str(os.getpid()))
threading.Event().wait()
'''
"""


def is_open(descriptor: int) -> bool:
    with suppress(OSError):
        return os.fstat(descriptor) is not None
    return False


def test_a_start_that_finds_no_descriptor_free_takes_none_away() -> None:
    # In a process in which no thread of another test's library opens files meanwhile.
    assert run_in_child(check_that_a_start_without_descriptors_takes_none_away) == 0


def check_that_a_start_without_descriptors_takes_none_away() -> None:
    free, before = [each for each in range(1000) if not is_open(each)], resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[2] + 1, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            start(("true",), {}, None, ())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert not any(map(is_open, free))


def test_one_that_cannot_be_seen_is_not_taken_for_one_that_has_ended(tmp_path: Path) -> None:
    script = CHILD + ESCAPES["in its group"] + "\nwhile not (Path('hidden').exists() and Path('hidden').read_text()): pass\n"
    with started(order_of(tmp_path, script, linger_s=0.1)) as attempt:
        pid = int(until(is_there(tmp_path / "hidden"), attempt.poll) and (tmp_path / "hidden").read_text())
        os.waitid(os.P_PID, attempt.pid, os.WEXITED | os.WNOWAIT)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            seen = [attempt.poll() or attempt.beats for _ in range(5)]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert seen == [{}] * 5
        over(attempt)
    assert process(pid) is None


@pytest.mark.parametrize("way", ESCAPES)
@pytest.mark.parametrize("is_alone", [True, False])
def test_what_it_has_started_ends_with_it_wherever_it_hid(tmp_path: Path, way: str, is_alone: bool) -> None:
    if way == "daemonized, with an environment of its own" and not is_alone:
        pytest.skip("nothing tells it from the daemon of another command, unless a look came in between")
    script = (
        CHILD
        + ESCAPES[way]
        + "\nwhile not (Path('hidden').exists() and Path('hidden').read_text()): pass\nos.kill(os.getpid(), 9)"
    )
    with started(order_of(tmp_path, script, linger_s=0.1, is_alone=is_alone)) as attempt:
        over(attempt)
    pid = int((tmp_path / "hidden").read_text())
    assert process(pid) is None, "it runs, or nobody has fetched its status"


def test_what_ends_by_itself_is_given_the_time_to(tmp_path: Path) -> None:
    child = "import sys; sys.stdin.read(); open('cleared', 'w').write('up')"
    script = f"subprocess.Popen([sys.executable, '-c', {child!r}], stdin=subprocess.PIPE)\nos.kill(os.getpid(), 9)"
    with started(order_of(tmp_path, script, linger_s=60.0)) as attempt:
        over(attempt)
    assert (tmp_path / "cleared").read_text() == "up"


def test_shared_memory_of_a_killed_trainer_is_given_back(tmp_path: Path) -> None:
    # Its workers hold the pipe that Python's resource tracker waits on: killed first, it unlinks; killed with them, it leaks.
    script = """
from multiprocessing import shared_memory
memory = shared_memory.SharedMemory(create=True, size=1 << 20)
from multiprocessing import resource_tracker
child = "import signal, threading; open('worker', 'w').write('here'); threading.Event().wait()"
subprocess.Popen([sys.executable, "-c", child], pass_fds=[resource_tracker._resource_tracker._fd])
while not Path("worker").exists(): pass
made("memory", memory.name)
os.kill(os.getpid(), 9)
"""
    with started(order_of(tmp_path, script, linger_s=0.1)) as attempt:
        over(attempt)
    assert not Path("/dev/shm", (tmp_path / "memory").read_text()).exists()


def test_nothing_else_is_touched(tmp_path: Path) -> None:
    # A child of ours, one in a session of its own, and one that another command has started.
    ours = [subprocess.Popen(["sleep", "1000"], start_new_session=apart) for apart in (False, True)]
    try:
        script = CHILD + ESCAPES["daemonized"] + "\nmade('ready'); wait_for_ever()"
        other = order_of(tmp_path, script, folder=tmp_path / "other", is_alone=False)
        with started(other) as neighbour:
            until(is_there(tmp_path / "hidden"), neighbour.poll)
            with started(order_of(tmp_path, "", linger_s=0.1, is_alone=False)) as attempt:
                over(attempt)
            assert is_alive(int((tmp_path / "hidden").read_text()))
            assert is_alive(neighbour.pid)
        assert [each.poll() for each in ours] == [None, None]
    finally:
        for each in ours:
            each.kill()
            each.wait()


def test_a_command_that_cannot_be_started_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    assert run_in_child(lambda: check_that_what_cannot_be_started_leaves_nothing(tmp_path)) == 0


def check_that_what_cannot_be_started_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a program")
    descriptors = os.listdir("/proc/self/fd")
    for command, error in (("no-such-program", FileNotFoundError), (str(tmp_path / "text"), PermissionError)):
        order = Order((command,), tmp_path / command.replace("/", "_"), dict(os.environ))
        with adopting(), pytest.raises(error):
            Attempt(order, SystemClock(), Told(), Console())
    assert os.listdir("/proc/self/fd") == descriptors


def test_its_last_words_are_kept_whatever_they_are(tmp_path: Path) -> None:
    script = "for _ in range(3000): os.write(2, b'x' * 99 + b'\\n')\nos.write(2, b'\\xff\\x00 half a line')"
    console = Heard()
    with started(order_of(tmp_path, script), console=console) as attempt:
        end = over(attempt)
    assert end.stderr.endswith("x\n\\xff\x00 half a line")
    assert 60_000 < len(end.stderr) <= 65536
    assert console.heard == (b"x" * 99 + b"\n") * 3000 + b"\xff\x00 half a line"


class Heard(Console):
    def __init__(self) -> None:
        super().__init__()
        self.heard = b""

    def pass_on(self, data: bytes) -> None:
        self.heard += data


def test_it_is_stopped_when_its_supervisor_is_killed_and_can_still_speak(tmp_path: Path) -> None:
    supervisor = f"""
import os, sys, threading
sys.path[:0] = {[*filter(None, sys.path)]!r}
from pathlib import Path
from tests.supervise.attempts import *
script = '''
def on_term(*_):
    sys.stderr.write("saving" * 1000)
    sys.stderr.flush()
    made("saved")
    sys.exit(75)
signal.signal(signal.SIGTERM, on_term)
made("ready")
wait_for_ever()
'''
with started(order_of(Path({str(tmp_path)!r}), script)) as attempt:
    until(is_there(Path({str(tmp_path / "ready")!r})), attempt.poll)
    os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", supervisor], stderr=subprocess.PIPE)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    until(is_there(tmp_path / "saved"))
    until(lambda: not is_alive(int((tmp_path / "ready").read_text())))


def test_one_that_has_become_somebody_else_cannot_be_signalled_and_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(order_of(tmp_path, "made('ready'); wait_for_ever()"), tell=(told := Told())) as attempt:
        until(is_there(tmp_path / "ready"), attempt.poll)
        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", _refused)
            attempt.signal(signal.SIGTERM, within_s=attempt.order.grace_s)
            attempt.kill()
            attempt.poll()
        assert told.events == ["not-permitted", "not-permitted"]
        assert f"pid {attempt.pid} belongs to another user" in told.lines[0]
        attempt.kill()
        over(attempt)


def _refused(pid: int, number: int) -> None:
    raise PermissionError(1, "Operation not permitted")
