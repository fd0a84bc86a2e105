"""Say why a command ended, from all that was seen of it. Pure.

The exit code alone is not enough: 137 is the kernel's OOM killer, the end of a grace period or an operator. So what is certain
comes first (it ended well; it left because it was told to; `milepost run` itself ended it), then what the process wrote down
about itself, then what it printed last.
"""

from __future__ import annotations

import errno
import signal
from dataclasses import dataclass, replace
from typing import TypeAlias

from milepost.engine.supervised import STOP_AT
from milepost.lifecycle.stopping import EXIT_CODE, INTERRUPTED
from milepost.records import FaultKind
from milepost.supervise.failure_record import FailureRecord
from milepost.supervise.kinds import KINDS, Budget
from milepost.supervise.symptoms import (
    DEAD_WORKER,
    chained,
    cleaned,
    ending,
    exceptions,
    last_line,
    line_of,
    of_a_worker,
    shown,
    symptom,
)
from milepost.supervise.torchrun import exit_of_the_first
from milepost.text import name_of_signal


@dataclass(frozen=True, slots=True)
class StoppedRecord:
    """Hold what an engine wrote down when it left because it was told to."""

    path: str
    exit_code: int
    generation: int = 0
    step: int = -1
    complete: bool = True


@dataclass(frozen=True, slots=True)
class RetriesRecord:
    """Hold how often a command wants to be started again after failures of its own."""

    retries: int


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
    rank_signal: int | None = None
    """The signal that ended the rank which failed first, where torchrun says so."""
    is_covered: bool = False
    """All that trained left so, behind the first process: an exit code of 0 is that of a wrapper (``| tee``)."""
    phase: str = ""
    step: int = -1
    loading: tuple[str, int] | None = None
    """Run id and number of the generation that was being loaded."""
    resumed: tuple[tuple[str, int], ...] = ()
    """What it went on from, likewise."""
    older: tuple[tuple[str, int], ...] | None = None
    """The live generations before those, likewise; None: nobody has looked."""
    published: bool = False
    """A generation is new since it was started."""
    duration_s: float = 0.0
    retries: int | None = None
    """How often it wants to be started again after failures of its own; None: it does not say."""

    @property
    def ended_by(self) -> int | None:
        """Return the signal that ended it: also where a shell between has turned it into 128 + N."""
        if self.signal is not None:
            return self.signal
        number = (self.exit_code or 0) - 128
        return number if number in _SIGNALS else None


@dataclass(frozen=True, slots=True)
class Cause:
    """Say why it ended, who pays for that, and what to do."""

    kind: str
    """A row of `milepost.supervise.kinds.KINDS`."""
    fault: FaultKind
    budget: Budget
    text: str
    advice: str = ""


Found: TypeAlias = tuple[str, str]
"""A kind, and in words what speaks for it."""

_SIGNALS = frozenset(map(int, signal.valid_signals()))
_CRASHES = {
    signal.SIGSEGV: "it read or wrote memory that is not its own (SIGSEGV)",
    signal.SIGBUS: "memory behind an address was gone (SIGBUS): a full /dev/shm, or a mapped file that was cut",
    signal.SIGILL: "it ran an instruction that this processor does not have (SIGILL): built for another machine?",
    signal.SIGFPE: "native code divided by zero (SIGFPE)",
    signal.SIGABRT: "native code gave up (SIGABRT)",
    signal.SIGTRAP: "native code stopped at a trap (SIGTRAP)",
    signal.SIGSYS: "a system call is forbidden here (SIGSYS): seccomp?",
}
_MILEPOST = {
    "disk-full": "disk-full",
    "quota": "disk-full",
    "stale": "stale",
    "timeout": "stale",
    "vanished": "stale",
    "io": "io",
    "read-only": "read-only",
    "permission": "permission",
    "held": "another-writer",
    "claim-race": "another-writer",
    "fenced": "fenced",
    "replaced": "fenced",
    "nothing-valid": "nothing-valid",
    "missing-extra": "import",
    "rank-lost": "connection",
    "half-loaded": "exception",  # a UsageError that the next start heals
}
_EXIT_CODES = {
    2: "usage",
    11: "another-writer",
    12: "permission",
    13: "damaged",
    14: "nothing-valid",
    15: "mismatch",
    16: "disk-full",
}
_TYPES = {
    "ImportError": "import",
    "ModuleNotFoundError": "import",
    "MissingExtraError": "import",
    "SyntaxError": "syntax",
    "IndentationError": "syntax",
    "TabError": "syntax",
    "MemoryError": "memory",
    "InternalError": "internal",
    "KeyboardInterrupt": "interrupted",
    "EOFError": "connection",
    "BrokenPipeError": "connection",
    "ConnectionError": "connection",
    "ConnectionResetError": "connection",
    "ConnectionRefusedError": "connection",
    "ConnectionAbortedError": "connection",
    "TimeoutError": "connection",
}
_OURS = {
    "milepost.errors.ConflictError": "another-writer",
    "milepost.errors.MismatchError": "mismatch",
    "milepost.errors.CorruptError": "damaged",
    "milepost.errors.UsageError": "usage",
}
"""What is known of an error of milepost by its name alone: raised before the process listened, it has left no record."""
_ERRNOS = {
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-full",
    errno.ESTALE: "stale",
    errno.EIO: "io",
    getattr(errno, "EREMOTEIO", -1): "io",
    errno.EROFS: "read-only",
    errno.ENOMEM: "memory",
    **dict.fromkeys(
        (errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH),
        "connection",
    ),
    **dict.fromkeys((errno.EPIPE, errno.ENETRESET, errno.ENOTCONN, errno.EHOSTDOWN), "connection"),
}
_ITS_TIME = ("limit", "SLURM", "its time limit")
_BENEATH = ("device-memory", "device-assert", "device", "nccl", "disk-full", "stale", "read-only", "memory", "connection", "io")
"""What may be the cause of another exception and decides then; a missing module, say, is tried and caught all the time."""
_PEERS = ("connection", "nccl")
"""What a process fails of where another that it works with is gone."""
_WRAPPERS = ("ChildFailedError", "SignalException")
"""Exceptions that only say that another process has failed: that one's is the cause."""


def classify(end: End) -> Cause:
    """Return why a command ended. Any end has a cause; nothing is raised."""
    text = cleaned(end.stderr)
    kind, why = _by_the_end(end, text) or _of_memory(end, text) or _of_a_signal(end, text) or _of_a_failure(end, text)
    row = KINDS[kind]
    hint = shown(end.failure.hint) if end.failure is not None and end.failure.kind else ""
    return Cause(kind, row.fault, row.budget, why, hint or row.advice)


def _by_the_end(end: End, text: str) -> Found | None:
    """Return what is certain: it ended well, it left when told to, or `milepost run` ended it."""
    if end.exit_code == 0 and not _is_covered(end):
        return "done", "it ended with exit code 0"
    if end.hung and not (end.stopped is not None and not end.stopped.path.startswith("SIG")):
        # It may still have saved, when the SIGTERM that ended it reached it; that it hung is what somebody wants to know.
        where = f" in phase {shown(end.phase)!r}" if end.phase else ""
        return "hang", f"its heartbeat stopped{where}{_at(end.step)}; it was ended"
    # Whatever the exit is then: torchrun's is 1, and a device's library may crash when all is saved. But an engine that could
    # not save says so, and only a peer that fails because this process has left says nothing.
    if end.stopped is not None and (end.failure is None or _of_a_record(end.failure, text)[0] in _PEERS):
        left = _of_a_stop(end.stopped)
        if left is not None:
            return left
    return ("grace-too-short", "it did not end within its grace period, and was killed") if end.killed_after_grace else None


def _is_covered(end: End) -> bool:
    """Say whether an exit code of 0 is a wrapper's. One that has itself ended what it had started means it."""
    if not end.is_covered or end.stopped is None:
        return False
    return bool(end.forwarded) or end.stopped.path.startswith(("notice", *_ITS_TIME))


def _of_a_stop(stopped: StoppedRecord) -> Found | None:
    """Return why it left; None if the program itself chose another exit code: then that is what it wants to say."""
    path = shown(stopped.path)
    if path == STOP_AT:
        path = f"its time limit ({STOP_AT})"  # that is what --limit sets
    left = f"it left after {path}{_at(stopped.step)}" + ("" if stopped.complete else ", without its replay")
    if stopped.exit_code == INTERRUPTED:
        return "interrupted", left
    if path.startswith("notice"):
        return "notice", left
    if path.startswith(_ITS_TIME):
        return "time-up", left
    return ("preempted", left) if stopped.exit_code == EXIT_CODE else None


def _of_memory(end: End, text: str) -> Found | None:
    """Return the kernel's OOM killer, where its count grew and what ended says that it was hit."""
    if not end.oom_kills:
        return None
    count = f"oom_kill +{end.oom_kills}"
    if end.ended_by == signal.SIGKILL:
        return "host-memory", f"the kernel killed it for memory (SIGKILL, {count})"
    spoken = text if end.failure is None else f"{end.failure.type}: {end.failure.message}"
    if DEAD_WORKER.search(spoken) and end.ended_by is None:
        return "host-memory", f"the kernel killed one of its processes for memory ({count}): {last_line(spoken)}"
    return None


def _of_a_signal(end: End, text: str) -> Found | None:
    number = end.ended_by
    if number is None:
        return None
    name = name_of_signal(number)
    if number in end.forwarded:
        if number == signal.SIGINT:
            return "interrupted", "SIGINT, which milepost run passed on, ended it before it saved"
        return "stopped-unsaved", f"{name}, which milepost run passed on, ended it before it saved"
    if number == signal.SIGINT:
        return "interrupted", "it was interrupted (SIGINT)"
    if number == signal.SIGKILL:
        return "killed", "somebody killed it (SIGKILL), and no count of OOM kills grew"
    if number in _CRASHES:
        return _of_a_crash(number, text)
    if number in (signal.SIGXCPU, signal.SIGXFSZ):
        return "exit", f"it went over a limit of its own (ulimit): {name}"
    return "terminated", f"{name} ended it, and milepost run did not send it"


def _of_a_crash(number: int, text: str) -> Found:
    # CUDA and NCCL abort the process; the reason is what they printed.
    kind = symptom(text)
    if kind in ("device", "device-assert", "device-memory", "nccl", "memory", "shared-memory"):
        return kind, f"{line_of(kind, text)} ({name_of_signal(number)})"
    return "native", _CRASHES[signal.Signals(number)]


def _of_a_failure(end: End, text: str) -> Found:
    """Return what an exception says: that which the process wrote down, else the one it printed, else its exit code."""
    rank = exit_of_the_first(text) if end.exit_code == 1 else None
    if end.failure is not None and end.failure.type.rpartition(".")[2] not in _WRAPPERS:
        found = _of_a_record(end.failure, text)
        if found[0] not in _PEERS or rank in (None, 0, 1):
            return found  # else it failed since another rank was gone, and it is known what that one died of
    if rank not in (None, 0, 1):
        return _of_a_rank(end, rank, text)
    if end.exit_code == EXIT_CODE:
        return "requeue-asked", "it asked to be started again (exit code 75)"
    if end.exit_code == 1 and (printed := list(exceptions(text))):  # what Python gives to an exception that nobody caught
        own = [each for each in printed if each[0].rpartition(".")[2] not in _WRAPPERS]
        if own and printed[-1][0] in ending(text):  # and not one that was caught, and told, an hour before
            # Of ranks that fail one after another the first is the cause; of one process what it printed last.
            return _of_an_exception(*(own[-1] if own[-1] is printed[-1] else own[0]), text)
    return _of_a_code(end, text)


def _of_a_rank(end: End, code: int, text: str) -> Found:
    """Return what the rank died of that failed first, where torchrun says only how it ended."""
    rank = replace(end, exit_code=code if code > 0 else None, signal=-code if code < 0 else None, failure=None)
    kind, why = _of_memory(rank, text) or _of_a_signal(rank, text) or _of_a_failure(rank, "")
    return kind, f"the rank that failed first: {why}"


def _of_a_record(failure: FailureRecord, text: str) -> Found:
    words = shown(f"{failure.type}: {failure.message}" if failure.message else failure.type)
    words = (words or "an exception without a name") + _at(failure.step)
    if failure.kind:
        kind = _MILEPOST.get(failure.kind) or _EXIT_CODES.get(failure.exit_code or 0)
        kind = kind or _TYPES.get(failure.type.rpartition(".")[2], "exception")
        return kind, words
    if failure.errno in _ERRNOS:
        return _unless_a_worker_says(_ERRNOS[failure.errno], words, text)
    return _of_an_exception(failure.type, failure.message, text, words)


def _of_an_exception(name: str, message: str, text: str, words: str = "") -> Found:
    words = words or shown(f"{name}: {message}" if message else name)
    short = name.rpartition(".")[2]
    kind = _TYPES.get(short) or _OURS.get(name) or symptom(f"{name}: {message}") or "exception"
    if message.startswith("EOF when reading a line"):
        kind = "exception"  # input(), and nobody is there
    if kind == "exception":
        # "could not save" from "no space left on device": the first knows more.
        kind = next((found for each in chained(text) if (found := symptom(each)) in _BENEATH), kind)
    return _unless_a_worker_says(kind, words, text)


def _unless_a_worker_says(kind: str, words: str, text: str) -> Found:
    """Return what a worker process died of, where the trainer only noticed that it was gone."""
    if kind == "connection" and (worker := of_a_worker(text)) is not None:
        name, message = worker
        found = _TYPES.get(name.rpartition(".")[2]) or symptom(f"{name}: {message}") or "exception"
        return found, shown(f"a worker process failed: {name}: {message}")
    return kind, words


def _of_a_code(end: End, text: str) -> Found:
    code = end.exit_code
    if code in (126, 127):
        return "not-started", f"the command could not be started (exit code {code}): {last_line(text)}"
    if code == 120:
        return "output", "it ended, but the last of its output could not be written (exit code 120)"
    if code in _EXIT_CODES and (end.phase or "milepost" in text):
        return _EXIT_CODES[code], f"it ended with exit code {code}: {last_line(text)}"
    text = ending(text)
    kind = symptom(text)
    if kind and (kind not in ("usage", "not-started") or code == 2):
        return kind, f"{line_of(kind, text)} (exit code {code})"
    line = last_line(text)
    return "exit", f"it ended with exit code {code}" + (f"; its last words: {line}" if line else "")


def _at(step: int) -> str:
    return f" at step {step:,}" if step >= 0 else ""
