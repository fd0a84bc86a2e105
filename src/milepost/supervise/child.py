"""Run a command in a process group of its own, so that a kill reaches all that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from milepost.errors import UsageError

_TAIL_BYTES = 16 << 10


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
                )
        except OSError as error:
            raise UsageError(
                f"the command cannot be started: {error.strerror}",
                kind="no-such-command",
                hint="write it as you would at the prompt: milepost selftest -- python train.py",
                command=command[0],
            ) from error

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

    def kill(self) -> bool:
        """Kill the whole group with SIGKILL and wait for its end. Return whether that is what ended the command."""
        was_running = self.exit_code is None
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait() == -signal.SIGKILL and was_running

    def complaint(self, lines: int = 12) -> tuple[str, ...]:
        """Return the last lines that it wrote to stderr."""
        with open(self._stderr, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
        return tuple(line.rstrip() for line in text.splitlines() if line.strip())[-lines:]
