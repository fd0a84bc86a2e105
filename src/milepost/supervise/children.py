"""Leave to a trainer when its workers end, also where they are programs of their own (``spawn``, ``forkserver``).

A Ctrl-C, and what SLURM sends to a whole job, reach the workers, too. One that ends before the trainer is at its safe point takes
the step with it that the trainer is in. A forked worker is seen to as it is forked; a spawned one is told by what it is given.
"""

from __future__ import annotations

import logging
import multiprocessing.process as processes
import signal
from collections.abc import Iterable
from typing import Any

from milepost.errors import MilepostError

log = logging.getLogger("milepost")

_WORDS = "milepost-ignores"


class Ignored:
    """Be a signal, here; in a process that unpickles it, be that signal ignored from then on."""

    def __init__(self, signum: int) -> None:
        self.signum = signum

    def __reduce__(self) -> tuple[Any, ...]:
        # Nothing of milepost's: a worker imports no more than it would have.
        return signal.signal, (int(self.signum), signal.SIG_IGN)


def spare(signums: Iterable[int]) -> None:
    """Have the worker processes that `multiprocessing` makes from now on ignore these signals, but for SIGTERM: that ends them.

    What each of them is configured with is a copy of what this process is configured with.
    """
    _configuration()[_WORDS] = tuple(Ignored(signum) for signum in signums if signum != signal.SIGTERM)


def spare_workers_of(env: Any, signums: Iterable[int]) -> None:
    """Have the workers that an environment has by now ignore them as well: most are made before anybody listens."""
    from milepost.envs.workers import have_workers_ignore

    try:
        have_workers_ignore(env, [int(signum) for signum in signums if signum != signal.SIGTERM])
    except MilepostError as error:
        log.warning("the env's workers could not be told to leave it to the trainer when to end: %s", error)


def unspared(signums: Iterable[int]) -> list[int]:
    """Return the PIDs of worker processes that such a signal ends, if it comes to all of this process's group."""
    wanted = [signum for signum in signums if signum != signal.SIGTERM]
    pids = [child.pid for child in processes.active_children() if child.pid is not None]
    return [pid for pid in pids if not all(_ignored(pid) >> (signum - 1) & 1 for signum in wanted)]


def _ignored(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            return next((int(line.split()[1], 16) for line in file if line.startswith("SigIgn:")), 0)
    except OSError:  # gone, or a system that does not say
        return -1


def spare_no_more() -> None:
    """Let workers that are made from now on be as ever."""
    _configuration().pop(_WORDS, None)


def _configuration() -> dict[str, Any]:
    return processes.current_process()._config  # type: ignore[attr-defined,no-any-return]
