"""Start scripts as processes of their own, and tell how each of them ended."""

from __future__ import annotations

import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

LONGEST_S = 150.0
"""How long one start of a script may take: it hangs, if it takes longer."""


class ChildFailedError(Exception):
    """Say that a script ended otherwise than it was to."""


def in_child(work: Callable[[], object], said: Path) -> bool:
    """Run ``work`` in a forked child and return whether it was killed by SIGKILL. ``said`` receives what it prints.

    What else was started by it (environments' workers) may outlive it, as it does when a trainer is killed; `bury` ends that.
    Raises `ChildFailedError` with the end of what it said, if it failed or hung.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _be_child(work, said)
    _alive.append(pid)
    descriptor = os.pidfd_open(pid)
    try:
        ended = bool(select.select([descriptor], [], [], LONGEST_S)[0])
    finally:
        os.close(descriptor)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if ended and code == -signal.SIGKILL:
        return True
    if not ended or code != 0:
        how = f"exit code {code}" if ended else f"it took longer than {LONGEST_S:.0f} s"
        lines = said.read_text(errors="replace").strip().splitlines()
        raise ChildFailedError(f"{how}: {' | '.join(lines[-2:])}")
    return False


_alive: list[int] = []
"""The children whose groups may still hold somebody."""


def bury() -> None:
    """End whatever the children have left behind."""
    while _alive:
        try:
            os.killpg(_alive.pop(), signal.SIGKILL)
        except ProcessLookupError:
            continue


def _be_child(work: Callable[[], object], said: Path) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        file = os.open(said, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        # A test runner may have put streams of its own in their place.
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115 - until the end
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, it must not unwind into the parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
