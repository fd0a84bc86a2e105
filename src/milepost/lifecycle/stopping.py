"""Decide at a safe point whether to train on, to save, or to leave: from what is to end the process, and what a save takes.

All is arithmetic on a `StopBy` for each path that has fired. Who listens for them is `milepost.supervise`; who carries the
decision out is the engine.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from milepost.errors import UsageError
from milepost.lifecycle.amounts import seconds_of
from milepost.lifecycle.costs import Costs
from milepost.records import Summary

Decision: TypeAlias = Literal["train", "save", "leave", "leave-essential"]

EXIT_CODE = 75
"""What a process ends with that has saved and is to be started again (``EX_TEMPFAIL``)."""
INTERRUPTED = 130
"""What a process ends with after a Ctrl-C."""
GRACE_S = 30.0
"""What is left after a signal where nobody says: Kubernetes', torchrun's and Docker's common answer, or more than it."""
_RATE = 32 << 20
"""Bytes a second that a save is trusted with before any was measured: a slow network disk."""
_FIXED_S = 0.5
"""What a save takes beside its bytes, before any was measured."""
_SLACK = 1.5
_MARGIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Stop:
    """Say what an engine listens to, and how long it has then. ``CheckpointEngine(..., stop=milepost.Stop(grace="90s"))``.

    Raises `UsageError` (kinds ``bad-setting``, ``bad-duration``) for what cannot be listened to.
    """

    signals: tuple[str, ...] = ("TERM", "INT", "USR1", "USR2")
    """Names without ``SIG``."""
    grace: str | float | None = None
    """What a signal leaves, like ``"90s"``; SIGINT leaves all the time it takes. None: the engine's ``grace``, else
    ``MILEPOST_GRACE``, else 30 seconds; under torchrun never more than that waits itself."""
    notice: str | None = None
    """Where a platform tells that it takes the machine away: a path, a URL, or ``ec2``, ``gcp``, ``azure``. None:
    ``MILEPOST_NOTICE``."""
    limit: str | float | None = None
    """How long this process may run, from the time at which it began to listen. Also ``MILEPOST_STOP_AT``, in Unix seconds."""
    slurm: bool = True
    """Inside a SLURM job its end time is one, too."""

    def __post_init__(self) -> None:
        signals: object = self.signals
        if not isinstance(signals, tuple | list) or not all(_can_be_heard(name) for name in signals):
            hint = 'signals=("TERM", "INT", "USR1", "USR2"), or some of them'
            raise UsageError("these are not signals to listen for", kind="bad-setting", hint=hint, signals=signals)
        for name in ("grace", "limit"):
            setting = getattr(self, name)
            if setting is not None and (isinstance(setting, bool) or seconds_of(setting) <= 0):
                raise UsageError("a length of time is above 0", kind="bad-setting", hint="like 90s or 24h", **{name: setting})


def _can_be_heard(name: object) -> bool:
    found = getattr(signal, f"SIG{name}", None)
    return isinstance(found, signal.Signals) and found not in (signal.SIGKILL, signal.SIGSTOP)


@dataclass(frozen=True, slots=True)
class StopBy:
    """Be one reason to end, and the time that it leaves."""

    path: str
    """Which path fired: ``SIGTERM``, ``notice /run/preempt``, ``limit 24h``."""
    deadline_ns: int | None
    """On the engine's monotonic clock; None: none is known."""
    exit_code: int = EXIT_CODE
    at_once: bool = True
    """Leave at the next safe point; else as late as is safe."""
    early: bool = False
    """Save once at the next safe point, and train on."""


class Stopped(SystemExit):
    """Be raised out of a safe point once all is saved and the run root is given up: the process is to end.

    A `SystemExit`: no ``except Exception`` of a training loop keeps the process alive, and Python ends with ``code`` (75: start
    me again; 130: Ctrl-C) and no traceback. In a thread that is not the main thread it ends that thread, and no more.
    """

    def __init__(self, code: int, path: str = "", summary: Summary | None = None) -> None:
        super().__init__(code)
        self.path = path
        """Which path fired."""
        self.summary = summary
        """The newest generation; None if there is none."""


def leading(requests: Collection[StopBy]) -> StopBy | None:
    """Return the request that decides, with the earliest deadline of all; None for none.

    What is to happen at once comes before what may wait, and then the earlier deadline before the later.
    """
    if not requests:
        return None
    first = min(requests, key=lambda each: (not each.at_once, _or_never(each.deadline_ns)))
    known = [each.deadline_ns for each in requests if each.deadline_ns is not None]
    return StopBy(first.path, min(known, default=None), first.exit_code, first.at_once, any(each.early for each in requests))


def decide(
    requests: Collection[StopBy], now_ns: int, costs: Costs, *, size_bytes: int = 0, gap_s: float = 0.0, saved: Iterable[str] = ()
) -> Decision:
    """Return what to do at a safe point.

    ``size_bytes`` is what a save would write, for the time before any was measured; ``gap_s`` how long it may be until the next
    safe point; ``saved`` the paths for which an early save was made. Pure.
    """
    first = leading(requests)
    if first is None:
        return "train"
    left_s = _left_s(first, now_ns)
    if first.at_once or left_s <= gap_s + longest_s(costs, size_bytes):
        # Past its deadline and still alive: the deadline was wrong. What the next start can go on from is then worth more
        # than the weights alone, which it would pass over for an older generation that is complete.
        return "leave" if left_s <= 0 or expected_s(costs, size_bytes) <= left_s else "leave-essential"
    done = frozenset(saved)
    return "save" if any(each.early and each.path not in done for each in requests) else "train"


def last_call_ns(requests: Collection[StopBy], costs: Costs, size_bytes: int) -> int | None:
    """Return the instant after which a save is not to be relied on to be durable before the deadline; None: there is none."""
    first = leading(requests)
    if first is None or first.deadline_ns is None:
        return None
    return first.deadline_ns - round(longest_s(costs, size_bytes) * 1e9)


def expected_s(costs: Costs, size_bytes: int) -> float:
    """Return how long a save usually takes until it is durable: measured, or guessed from its size."""
    return costs.duration_s if costs.duration_s > 0 else _FIXED_S + size_bytes / _RATE


def longest_s(costs: Costs, size_bytes: int) -> float:
    """Return how long a save is to be given where it must not come too late."""
    return max(costs.slowest_s, _SLACK * expected_s(costs, size_bytes)) + _MARGIN_S


def _left_s(first: StopBy, now_ns: int) -> float:
    return math.inf if first.deadline_ns is None else (first.deadline_ns - now_ns) / 1e9


def _or_never(deadline_ns: int | None) -> float:
    return math.inf if deadline_ns is None else deadline_ns
