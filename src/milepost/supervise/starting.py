"""Start a command without a shell: in a session of its own, its stderr a pipe; SIGTERM tells it that this process was killed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_PIPE_BYTES = 1 << 20

# A program of its own and no code between fork and exec: threads run here, and a lock that one of them holds would be held
# for ever there. It tells on a pipe why it could not, and takes nothing else along.
_START = """
import ctypes, os, signal, sys
parent, told, mask, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
try:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
except (AttributeError, OSError):
    pass
if os.getppid() != parent:
    os._exit(143)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, [int(each) for each in mask.split(",") if each])
os.set_inheritable(told, False)
try:
    os.execvp(command[0], command)
except OSError as error:
    os.write(told, str(error.errno).encode())
    os._exit(127)
"""


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path | None,
    mask: Collection[int],
    *,
    stdout_too: bool = False,
) -> tuple[subprocess.Popen[bytes], int]:
    """Start it with these signals blocked; return it, and what reads its stderr. Raises `OSError` if it cannot be started.

    To be called by the main thread: the command gets SIGTERM when the thread that started it ends.
    """
    reading, writing = os.pipe()
    try:
        heard, told = os.pipe()
    except OSError:  # it is tried again later, and is not to have fewer descriptors each time
        os.close(reading)
        os.close(writing)
        raise
    with suppress(OSError, AttributeError):
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    words = [str(os.getpid()), str(told), ",".join(str(int(each)) for each in mask), *command]
    try:
        process = subprocess.Popen(  # noqa: S603 - the user's own command, as given
            [sys.executable, "-I", "-S", "-c", _START, *words],
            stdin=subprocess.DEVNULL,
            stdout=writing if stdout_too else None,
            stderr=writing,
            # It holds the reading end, too: if we are killed, its next line would be a BrokenPipeError in the midst of training,
            # before it has saved.
            pass_fds=(told, reading),
            cwd=cwd,
            env=dict(environment),
            start_new_session=True,  # a Ctrl-C at the terminal reaches us, and is passed on to the first process alone
        )
    except BaseException:
        for each in (reading, heard):
            os.close(each)
        raise
    finally:
        os.close(writing)
        os.close(told)
    try:
        failed = _hear(heard)
    except BaseException:
        process.kill()
        process.wait()
        os.close(reading)
        raise
    if failed:
        process.wait()
        os.close(reading)
        raise OSError(failed, os.strerror(failed), command[0])
    return process, reading


def _hear(descriptor: int) -> int:
    with open(descriptor, "rb") as file:
        return int(file.read() or b"0")


def status_of(pid: int) -> tuple[int | None, int | None] | None:
    """Return exit code or signal of a child that has ended, one of them; None while it runs. It stays a zombie.

    Looked at and not reaped: until all that it started is killed its number must not become that of somebody else.
    """
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return (ended.si_status, None) if ended.si_code == os.CLD_EXITED else (None, ended.si_status)
