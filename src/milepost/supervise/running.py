"""Keep a command running: start it, pass signals on, find out why it ended, start it again, until it is done or nothing helps.

`run` is the story. What came of an attempt is decided in `milepost.supervise.policy`; here it is carried out.
"""

from __future__ import annotations

import errno
import os
import shlex
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from milepost.clock import Clock, draw
from milepost.engine.redact import redacted
from milepost.engine.supervised import RESUME, SKIP
from milepost.errors import UsageError
from milepost.lifecycle.stopping import EXIT_CODE, INTERRUPTED
from milepost.supervise import wording
from milepost.supervise.attempt import Attempt, Order, forget
from milepost.supervise.beating import Pulse
from milepost.supervise.causes import Cause, End, classify
from milepost.supervise.environment import Way, environment_of
from milepost.supervise.group import adopting
from milepost.supervise.hearing import ENDING
from milepost.supervise.journal import Journal
from milepost.supervise.policy import Decision, Limits, Policy
from milepost.supervise.printing import Console
from milepost.supervise.requeue import attempts_before
from milepost.supervise.roots import Newest
from milepost.text import name_of_signal

POLL_S = 0.1
TWICE_S = 1.0
"""Platforms send one signal to a process and to its group: what comes so soon after the first is the same one."""
NOT_STARTED = 71
"""What an attempt ends with that the system had no room for (``EX_OSERR``): a program that does not exist is an error instead."""
NO_SUCH = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR, errno.E2BIG, errno.ELOOP, errno.ENAMETOOLONG)


class Ear(Protocol):
    """Hear what is sent to this process: `milepost.supervise.hearing.Hearing`."""

    @property
    def before(self) -> Collection[int]: ...

    def wait(self, seconds: float) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Request:
    """Say what is to be kept running, and how."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    limits: Limits = field(default_factory=Limits)
    grace_s: float = 30.0
    pulse: Callable[[], Pulse] | None = Pulse
    notice: str | None = None
    limit_s: float | None = None
    """How long all of it may take; None: without end."""
    linger_s: float = 3.0


@dataclass(slots=True)
class Bench:
    """Hold what a run works with."""

    clock: Clock
    ear: Ear
    console: Console
    journal: Journal
    folder: Path
    """In which each attempt has its own; removed at the end."""
    oom_kills: Callable[[], int] = lambda: 0
    requeue: Callable[[], str] = lambda: ""
    """Have the scheduler start the job again; return what was done, empty where exit code 75 is all there is to do."""


@dataclass(frozen=True, slots=True)
class Report:
    """Say how one attempt went."""

    number: int
    end: End
    cause: Cause
    decision: Decision
    newest: tuple[Newest, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Say what came of all of it."""

    exit_code: int
    why: str
    reports: tuple[Report, ...] = ()


def run(request: Request, bench: Bench) -> Outcome:
    """Keep the command running until it is done, and return what came of it.

    Raises `UsageError` (kind ``no-such-command``) if there is nothing to be started.
    """
    with adopting():
        try:
            return _Run(request, bench).to_its_end()
        finally:
            forget(bench.folder)


@dataclass(slots=True)
class _Run:
    """Be one `milepost run`, from its first attempt to its last."""

    request: Request
    bench: Bench
    policy: Policy = field(init=False)
    way: Way = field(init=False)
    stop_at_s: float | None = field(init=False)
    reports: list[Report] = field(default_factory=list)
    asked: int | None = None
    """The signal that asked for an end; the first, if several have."""
    ending_ns: int | None = None
    """When the first came that is meant at once if it comes twice."""
    cut_short: int | None = None
    """The one that came twice."""
    told_retries: int | None = None
    """How often the command wants to be started again, as that was told last."""

    def __post_init__(self) -> None:
        clock = self.bench.clock
        self.policy = Policy(self.request.limits, partial(draw, clock))
        self.way = Way.given(self.request.environment)
        self.stop_at_s = None if self.request.limit_s is None else clock.wall_ns() / 1e9 + self.request.limit_s

    def to_its_end(self) -> Outcome:
        while True:
            report = self._attempt()
            decision = report.decision
            if self.cut_short is not None:
                return self._over(128 + self.cut_short, f"{name_of_signal(self.cut_short)} came twice")
            if decision.action in ("done", "stop"):
                return self._over(decision.exit_code, decision.why)
            if decision.action == "requeue" and self.asked == signal.SIGINT:
                # It had ended before the Ctrl-C could be passed on. Nobody who presses that wants another start.
                return self._over(INTERRUPTED, "it was interrupted")
            if decision.action == "requeue":
                return self._over(decision.exit_code, self.bench.requeue() or decision.why)
            self.way = self.way.after(published=report.end.published, resume=decision.resume, skip=decision.skip)
            if not self._waited(decision.wait_s):
                why = f"{name_of_signal(self.asked or 0)} came before it was started again"
                if self.asked == signal.SIGINT:
                    return self._over(INTERRUPTED, why)
                return self._over(EXIT_CODE, "; ".join(filter(None, (why, self.bench.requeue()))))

    def _attempt(self) -> Report:
        number = self.bench.journal.attempt = attempts_before(self.request.environment) + len(self.reports) + 1
        attempt = self._started(number)
        end = attempt if isinstance(attempt, End) else self._watched(attempt)
        newest = () if isinstance(attempt, End) else attempt.newest
        cause = classify(end)
        decision = self.policy.decide(end, cause, asked_to_stop=self.asked is not None)
        report = Report(number, end, cause, decision, newest)
        self.reports.append(report)
        self._tell(report)
        return report

    def _started(self, number: int) -> Attempt | End:
        request, bench = self.request, self.bench
        environment = environment_of(
            request.environment,
            number=number,
            grace_s=request.grace_s,
            way=self.way,
            notice=request.notice,
            stop_at_s=self.stop_at_s,
        )
        order = Order(
            request.command,
            bench.folder / f"attempt-{number}",
            environment,
            grace_s=request.grace_s,
            pulse=request.pulse,
            linger_s=request.linger_s,
            mask=bench.ear.before,
        )
        try:
            attempt = Attempt(order, bench.clock, bench.journal, bench.console, oom_kills=bench.oom_kills)
        except OSError as error:
            if error.errno in NO_SUCH:
                raise _no_such_command(request.command, error) from error
            bench.journal("not-started", f"attempt {number} could not be started: {error.strerror}")
            return End(NOT_STARTED, None, stderr=str(error))
        told = [f"{name}={value}" for name, value in environment.items() if name in (RESUME, SKIP)]
        words = redacted(" ".join([*told, shlex.join(request.command)]))
        bench.journal("started", f"attempt {number}: {words} (pid {attempt.pid})", pid=attempt.pid, told=told)
        return attempt

    def _watched(self, attempt: Attempt) -> End:
        while (end := attempt.poll()) is None:
            number = self.bench.ear.wait(POLL_S)
            if number is not None:
                self._heard(number, attempt)
        return end

    def _heard(self, number: int, attempt: Attempt) -> None:
        name, now_ns = name_of_signal(number), self.bench.clock.monotonic_ns()
        if number in ENDING and self.ending_ns is not None:
            if now_ns - self.ending_ns > TWICE_S * 1e9:
                self.cut_short = self.cut_short or number
                self.bench.journal("cut-short", f"{name} again: killed at once", signal=number)
                attempt.kill()
            return
        if number in ENDING:
            self.ending_ns = now_ns
        self.asked = self.asked or number
        # A hangup ends who does not expect it, and to milepost's own ears it says nothing.
        passed = signal.SIGTERM if number == signal.SIGHUP else number
        attempt.signal(passed, within_s=self.request.grace_s if passed == signal.SIGTERM else None)
        left = f": it has {wording.span(self.request.grace_s)}" if passed == signal.SIGTERM else ""
        as_what = "" if passed == number else f" as {name_of_signal(passed)}"
        self.bench.journal("signal", f"{name}: passed on{as_what}{left}", signal=number)

    def _waited(self, seconds: float) -> bool:
        """Wait before the next attempt; return whether nobody asked for an end meanwhile."""
        clock = self.bench.clock
        until_ns = clock.monotonic_ns() + round(seconds * 1e9)
        while self.asked is None:
            left_s = (until_ns - clock.monotonic_ns()) / 1e9
            self.asked = self.bench.ear.wait(max(0.0, left_s))
            if left_s <= 0:
                break
        return self.asked is None

    def _tell(self, report: Report) -> None:
        journal, end, cause, decision = self.bench.journal, report.end, report.cause, report.decision
        facts = {"exit_code": end.exit_code, "signal": end.signal, "kind": cause.kind, "fault": cause.fault, "step": end.step}
        if end.retries is not None and end.retries != self.told_retries:
            self.told_retries = end.retries
            journal("retries", wording.retries(end.retries, self.request.limits.failures), retries=end.retries)
        journal("ended", f"attempt {report.number}: {wording.ended(end, cause)}", **facts, published=end.published)
        for newest, line in zip(report.newest, wording.standing(report.newest, end), strict=True):
            journal("newest", line, root=newest.root, generation=newest.number, step=newest.step)
        before = self.reports[-2].cause.kind if len(self.reports) > 1 else ""
        if cause.advice and cause.kind != before:
            journal("hint", f"hint: {cause.advice}")
        if decision.action == "restart":
            text, wait_s = wording.ahead(decision), decision.wait_s
            journal("next", text, action=decision.action, wait_s=wait_s, resume=decision.resume, skip=decision.skip)

    def _over(self, code: int, why: str) -> Outcome:
        attempts = f"{len(self.reports)} attempt{'s' * (len(self.reports) != 1)}"
        self.bench.journal("over", f"exit code {code} after {attempts}: {why}", exit_code=code)
        return Outcome(code, why, tuple(self.reports))


def _no_such_command(command: Sequence[str], error: OSError) -> UsageError:
    return UsageError(
        f"the command cannot be started: {os.strerror(error.errno or 0)}",
        kind="no-such-command",
        hint="write it as you would at the prompt: milepost run -- python train.py",
        command=command[0],
    )
