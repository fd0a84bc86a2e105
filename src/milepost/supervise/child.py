"""Run a command in a session of its own, and let a kill reach all that it has started, in whichever session."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from milepost.engine.supervised import ATTEMPT, RESUME, SKIP, STOP_AT, SUPERVISED
from milepost.errors import UsageError
from milepost.store.resolve import REDIRECT
from milepost.supervise.group import LEADERS, Group, is_a_writer, kill

_TAIL_BYTES = 16 << 10
_PR_SET_PDEATHSIG = 1
_LOOKS = 200
_OF_A_SUPERVISOR = (SUPERVISED, RESUME, SKIP, STOP_AT, ATTEMPT)
"""What is said to this process, and is not meant for what it tries out."""


class Child:
    """Be one start of a command. What it prints goes to files of its own in ``log``, never to a pipe that may fill."""

    def __init__(self, command: Sequence[str], *, cwd: Path, environment: Mapping[str, str], log: Path) -> None:
        log.mkdir(parents=True)
        self._stderr = log / "stderr.txt"
        try:
            with open(log / "stdout.txt", "wb") as out, open(self._stderr, "wb") as err:
                self._process = subprocess.Popen(  # noqa: S603 - the user's own command, as given
                    list(command),
                    cwd=cwd,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                    preexec_fn=_ends_with(os.getpid()),
                )
        except OSError as error:
            raise UsageError(
                f"the command cannot be started: {error.strerror}",
                kind="no-such-command",
                hint="after -- write it as you would at the prompt: -- python train.py",
                command=command[0],
            ) from error
        LEADERS.add(self._process.pid)
        self._group = Group(self._process.pid, Path(environment.get(SUPERVISED) or log), is_alone=True)

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, negative for the signal that ended it; None while it runs."""
        if self._process.returncode is None:
            # Looked at and not reaped: until the group is killed its number must not become that of somebody else.
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return None
            return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        return self._process.returncode

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to the command, or to all of its group; not if it has ended."""
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                (os.killpg if group else os.kill)(self._process.pid, number)

    def kill(self) -> bool:
        """Kill all of it with SIGKILL and wait for its end. Return whether that is what ended the command.

        Whoever made a session of its own is found where this process adopts orphans (`milepost.supervise.group.adopting`). A
        writer process is left: it outlives its trainer, and publishes what was staged.
        """
        was_running = self.exit_code is None
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._kill_the_rest()
            self._process.wait()
            LEADERS.discard(self._process.pid)
        return self._process.returncode == -signal.SIGKILL and was_running

    def _kill_the_rest(self) -> None:
        # Under `milepost run`, or setsid, a trainer would train on, and what a kill costs would be told of nothing.
        for _ in range(_LOOKS):
            seen = self._group.left()
            left = [each for each in seen or () if each.pid != self._process.pid and not is_a_writer(each)]
            if seen is not None and not left:
                return
            kill(left)
            threading.Event().wait(0.01)

    def complaint(self, lines: int = 12) -> tuple[str, ...]:
        """Return the last lines that it wrote to stderr."""
        with open(self._stderr, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
        return tuple(line.rstrip() for line in text.splitlines() if line.strip())[-lines:]


def from_elsewhere(words: Sequence[str]) -> list[str]:
    """Return a command with the files that it names made absolute: it runs in another directory."""
    return [os.path.abspath(word) if os.path.isfile(word) else word for word in words]


def redirected_environment(words: Sequence[str], roots: Path, *, here: bool) -> dict[str, str]:
    """Return this process's environment for a command whose run roots are to lie in ``roots``. ``here``: it runs where we do."""
    environment = {name: value for name, value in os.environ.items() if name not in _OF_A_SUPERVISOR} | {REDIRECT: str(roots)}
    if not here and not {"-m", "-c"}.isdisjoint(words):
        # Python finds modules in the working directory then, which is another one here.
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (os.getcwd(), environment.get("PYTHONPATH"))))
    return environment


def _ends_with(parent: int) -> Callable[[], None] | None:
    """Return what a child does before anything else, so that it is killed when this process is: nobody would ever end it."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)

    def bind() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(1)

    return bind
