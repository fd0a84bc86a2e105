"""Say why a command ended, from all that was seen of it. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from milepost.records import FaultKind
from milepost.supervise.kinds import KINDS, Budget


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """Hold what a process wrote down about the exception that ended it."""

    type: str = ""
    message: str = ""
    errno: int | None = None
    kind: str = ""
    """Of a `MilepostError`; else empty."""
    exit_code: int | None = None
    hint: str = ""
    trace: str = ""
    """A digest over the exception's type and its frames: equal for the same failure at the same place."""
    frames: str = ""
    step: int = -1


@dataclass(frozen=True, slots=True)
class StoppedRecord:
    """Hold what an engine wrote down when it left because it was told to."""

    path: str
    exit_code: int
    generation: int = 0
    step: int = -1
    complete: bool = True


@dataclass(frozen=True, slots=True)
class End:
    """Hold what was seen of one attempt."""

    exit_code: int | None
    signal: int | None
    """One of the two is set."""
    forwarded: tuple[int, ...] = ()
    """Signals that `milepost run` passed on."""
    hung: bool = False
    stacks: str = ""
    killed_after_grace: bool = False
    """`milepost run` itself sent SIGKILL when the grace period was over."""
    oom_kills: int = 0
    """By how much the kernel's count of OOM kills grew."""
    stderr: str = ""
    """The last of it."""
    failure: FailureRecord | None = None
    stopped: StoppedRecord | None = None
    phase: str = ""
    step: int = -1
    loading: tuple[str, int] | None = None
    """Run id and number of the generation that was being loaded."""
    resumed: tuple[tuple[str, int], ...] = ()
    """What it went on from, likewise."""
    published: bool = False
    """A generation is new since it was started."""
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Cause:
    """Say why it ended, who pays for that, and what to do."""

    kind: str
    fault: FaultKind
    budget: Budget
    text: str
    advice: str = ""


def classify(end: End) -> Cause:
    """Return why a command ended. Any end has a cause; nothing is raised."""
    kind, text = _found(end)
    row = KINDS[kind]
    return Cause(kind, row.fault, row.budget, text, row.advice)


def _found(end: End) -> tuple[str, str]:
    if end.exit_code == 0:
        return "done", "it ended with exit code 0"
    if end.stopped is not None and end.stopped.exit_code == 75:
        return "preempted", f"it left after {end.stopped.path}"
    if end.exit_code == 130 or end.signal == signal.SIGINT:
        return "interrupted", "it was interrupted"
    if end.exit_code == 75:
        return "requeue-asked", "it asked to be started again (exit code 75)"
    if end.killed_after_grace:
        return "grace-too-short", "it did not end within the grace period and was killed"
    if end.hung:
        return "hang", "it hung"
    if end.signal in end.forwarded:
        return "stopped-unsaved", "the signal ended it before it saved"
    if end.signal == signal.SIGKILL:
        return ("host-memory", "the kernel killed it for memory") if end.oom_kills else ("killed", "somebody killed it")
    if end.signal is not None:
        return "native", f"signal {end.signal} ended it"
    if end.failure is not None:
        return "exception", f"{end.failure.type}: {end.failure.message}"
    return "exit", f"it ended with exit code {end.exit_code}"
