"""Leave to a trainer when its workers end, also where they are programs of their own (``spawn``, ``forkserver``).

A Ctrl-C, and what SLURM sends to a whole job, reach the workers, too. One that ends before the trainer is at its safe point takes
the step with it that the trainer is in. A forked worker is seen to as it is forked; a spawned one is told by what it is given.
"""

from __future__ import annotations

import multiprocessing.process as processes
import signal
from collections.abc import Iterable
from typing import Any

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


def spare_no_more() -> None:
    """Let workers that are made from now on be as ever."""
    _configuration().pop(_WORDS, None)


def _configuration() -> dict[str, Any]:
    return processes.current_process()._config  # type: ignore[attr-defined,no-any-return]
