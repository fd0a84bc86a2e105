"""Run a pipeline: start its roles in order, start again what ends too early, carry out orders, and end all in good order.

One thread runs it; `Pipeline.turn` is the story. Who starts again is decided in `milepost.supervise.roles`, how often and
when by the `Policy` of each unit, and what an order means in `milepost.supervise.orders`.
"""

from __future__ import annotations

import signal
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace

from milepost.clock import Clock
from milepost.errors import MilepostError, ServiceError, UsageError
from milepost.lifecycle.stopping import EXIT_CODE, INTERRUPTED
from milepost.supervise import wording
from milepost.supervise.attempt import Tell
from milepost.supervise.cast import Cast
from milepost.supervise.causes import Cause, End, classify
from milepost.supervise.hearing import ENDING
from milepost.supervise.ledger import Ledger, Pending
from milepost.supervise.member import Before, Member, Start
from milepost.supervise.orders import Answer, Look, Order, RestartAll, RestartRole, RestartWorker, Standing, targets
from milepost.supervise.policy import Limits
from milepost.supervise.roles import TERMINATED, Consequence, Plan, decide, leaving_code, over
from milepost.supervise.running import TWICE_S, Ear
from milepost.text import name_of_signal

_TURN_S = 0.05
_PROGRESS_NS = 10**9
_LIMITS = Limits()
_NOTHING = Before()


@dataclass(frozen=True, slots=True)
class PipelineEnd:
    """Say how a pipeline ended."""

    exit_code: int
    why: str
    standings: tuple[Standing, ...] = ()
    starts: int = 0
    error: MilepostError | None = None
    """What could not be begun at all."""
    stderr: str = ""
    """The last that the process said for which it ended."""


class Pipeline:
    """Run the processes of a plan. `run` belongs to one thread; `submit`, `carry_out`, `stop` and `kill` to any."""

    def __init__(
        self,
        plan: Plan,
        start: Start,
        clock: Clock,
        tell: Tell,
        *,
        ear: Ear | None = None,
        limits: Limits = _LIMITS,
        before: Before = _NOTHING,
    ) -> None:
        """``tell`` is told what happens. Of ``limits`` the waits before a restart are taken; how often is each role's own.

        ``ear`` hears the signals of this process; None: whoever runs the pipeline calls `stop`.
        """
        self._plan, self._clock, self._tell = plan, clock, tell
        self._cast = Cast(plan, start, clock, tell, limits, before)
        self._ledger = Ledger()
        self._pending: list[Pending] = []
        self._pause = threading.Event()
        self._ear = ear
        self._runs_in: int | None = None
        self._ending_ns: int | None = None
        self._asked: int | None = None
        self._asked_by = "asked to stop"
        self._is_killed = False
        self._leaving: PipelineEnd | None = None
        self._counted_ns = 0

    def submit(self, order: Order, key: str = "") -> Future[Answer]:
        """Take an order, and return at once; the future is done when it is carried out.

        A ``key`` makes it one order however often it is given. Raises `NotFoundError` (``no-such-role``,
        ``no-such-worker``), `UsageError` (``key-reused``), `ServiceError` (``shutting-down``).
        """
        # Here, in the thread that asks: what does not exist is no order.
        targets(self._plan, order, frozenset())
        return self._ledger.take(order, key)

    def carry_out(self, order: Order, key: str = "", timeout_s: float | None = None) -> Answer:
        """Carry out an order, and return when all that it names was started again and is ready.

        For a service in the same process, from a thread that does not run the pipeline. Raises what `submit` raises, and
        `ServiceError`: ``role-over`` for one that is ended for good, ``no-answer`` after ``timeout_s`` (it may still be
        carried out). `UsageError` (``own-thread``) in the thread that runs it.
        """
        if threading.get_ident() == self._runs_in:
            hint = "submit returns a future, and does not wait"
            raise UsageError("the thread that runs the pipeline cannot wait for it", kind="own-thread", hint=hint)
        try:
            return self.submit(order, key).result(timeout_s)
        except FutureTimeout as error:
            hint = "ask again with the same key"
            raise ServiceError("no answer yet", kind="no-answer", hint=hint, waited_s=timeout_s) from error

    def stop(self, exit_code: int = TERMINATED) -> None:
        """End everything in good order. ``exit_code``: 130 for a Ctrl-C, 143 for a SIGTERM. Safe in a signal handler."""
        self._asked = self._asked or exit_code

    def kill(self) -> None:
        """End everything at once. Safe in a signal handler."""
        self._is_killed = True
        self.stop()

    def run(self) -> PipelineEnd:
        """Run until every role is done, or one has used its budget up, or it is stopped. Nothing of it runs then."""
        self._runs_in = threading.get_ident()
        try:
            while (exit_code := self.exit_code) is None:
                self.turn()
                self._wait()
        finally:
            self._abandon()
            self._ledger.close(_shutting_down())
            for pending in self._pending:  # only where something broke off the run: nobody is to wait for ever
                pending.future.set_exception(_shutting_down())
        assert self._leaving is not None
        return replace(self._leaving, exit_code=exit_code, standings=self.standings, starts=self._cast.starts)

    def _wait(self) -> None:
        if self._ear is None:
            self._pause.wait(_TURN_S)
        elif (number := self._ear.wait(_TURN_S)) is not None:
            self._heard(number)

    def _heard(self, number: int) -> None:
        name, now_ns = name_of_signal(number), self._clock.monotonic_ns()
        if number in ENDING and self._ending_ns is not None:
            if now_ns - self._ending_ns > TWICE_S * 1e9 and not self._is_killed:
                self._tell("cut-short", f"{name} again: everything is killed at once", signal=number)
                self.kill()
            return
        if number in ENDING:
            self._ending_ns = now_ns
        self._asked_by = self._asked_by if self._asked else name
        self.stop(INTERRUPTED if number == signal.SIGINT else TERMINATED)

    def turn(self) -> None:
        """Look once at everything, and do what is due."""
        if self._asked is not None and self._leaving is None:
            self._leave(PipelineEnd(self._asked, self._asked_by))
        if self._is_killed:
            self._cast.kill(self._cast.alive)
        self._count_progress(_PROGRESS_NS)
        for member, end in self._cast.take_ends():
            self._ended(member, end)
        self._let_go()
        self._take_orders()
        self._cast.look_who_is_ready()
        self._cast.stop_who_is_to()
        if self._leaving is None:
            try:
                self._cast.start_who_may()
            except UsageError as error:
                self._leave(PipelineEnd(error.exit_code, error.message, error=error))
        self._answer()

    @property
    def standings(self) -> tuple[Standing, ...]:
        """Return how each process stands, in the order of the plan."""
        return tuple(self._cast.members[place].report for place in self._plan.places)

    @property
    def exit_code(self) -> int | None:
        """Return the exit code once it is over and nothing runs any more; None before."""
        if self._leaving is None or self._cast.alive:
            return None
        if self._asked is None or self._leaving.exit_code != self._asked:
            return self._leaving.exit_code
        # What a role that serves others ended with says nothing of what was trained. What waits for a start, the first or
        # another, wants to go on: a job that ends in the midst of a backoff would otherwise not be put back.
        codes = [member.exit_code for member in self._cast.members.values() if not member.role.until]
        return leaving_code(self._asked, [EXIT_CODE if code is None else code for code in codes])

    def _count_progress(self, after_ns: int) -> None:
        if self._clock.monotonic_ns() - self._counted_ns >= after_ns:
            self._counted_ns = self._clock.monotonic_ns()
            self._cast.count_progress()

    def _leave(self, end: PipelineEnd) -> None:
        if self._leaving is None:
            self._leaving = end
            alive = len(self._cast.alive)
            and_now = f": ending {alive} process{'es' if alive != 1 else ''} in good order" if alive else ""
            self._tell("leaving", f"{end.why}{and_now}", exit_code=end.exit_code)
        self._cast.end(self._cast.alive)

    def _abandon(self) -> None:
        """Leave nothing running, whatever came in between."""
        while alive := self._cast.alive:
            self._cast.kill(alive)
            if not [*self._cast.take_ends()]:
                self._pause.wait(_TURN_S)

    def _ended(self, member: Member, end: End) -> None:
        if self._leaving is not None:
            self._told_of(member, end, "")
        elif member.is_late:
            self._was_never_ready(member, end)
        elif member.fate == "restart":
            self._told_of(member, end, ", to be started again")
        elif member.fate == "end":
            member.is_done = True
            self._told_of(member, end, f": it was to run until {_named(member.role.until)} done")
        else:
            self._judge(member, end, _cause_of(member, end))

    def _told_of(self, member: Member, end: End, and_so: str) -> None:
        how = wording.how_ended(end.exit_code, end.signal)
        self._cast.tell("ended", member, f"{how}{and_so}", exit_code=end.exit_code, signal=end.signal)

    def _judge(self, member: Member, end: End, cause: Cause) -> None:
        """Say what follows from an end that nobody asked for."""
        self._count_progress(0)
        facts = {"exit_code": end.exit_code, "signal": end.signal, "kind": cause.kind, "fault": cause.fault}
        if end.retries is not None and end.retries != member.told_retries:
            member.told_retries = end.retries
            self._cast.tell("retries", member, wording.retries(end.retries, member.role.max_failures), retries=end.retries)
        self._cast.tell("ended", member, wording.ended(end, cause), **facts)
        # What the trainer publishes is everybody's progress: a sampler that fails once a day is no crash loop.
        end = replace(end, published=end.published or self._cast.published > member.published)
        if cause.kind != "done" and not member.exit_code:
            end = replace(end, exit_code=1)  # a pipeline that gives up has not succeeded
        decision = member.unit.policy.decide(end, cause, asked_to_stop=False)
        member.is_done = decision.action == "done"
        if not member.is_done:
            self._cast.tell("next", member, wording.ahead(decision), action=decision.action, wait_s=decision.wait_s)
        if cause.advice and decision.action == "stop":
            self._cast.tell("hint", member, f"hint: {cause.advice}")
        way = member.unit.way.after(published=end.published, resume=decision.resume, skip=decision.skip)
        member.unit.way = way
        consequence = decide(self._plan, member.place, decision.action, decision.exit_code, self._cast.done)
        self._apply(member, consequence, end, f"{member.place}: {cause.text}", round(decision.wait_s * 1e9))

    def _was_never_ready(self, member: Member, end: End) -> None:
        assert member.probe is not None
        text = f"not ready within {member.role.ready_within_s:g} s: {member.probe.describe()}"
        if member.starts > 1:
            # It ended because we asked: what it ended with says nothing.
            self._judge(member, replace(end, exit_code=1, signal=None), Cause("exit", "soft", "user", text))
            return
        self._cast.tell("ended", member, text, exit_code=member.exit_code)
        hint = 'look at what it said last; ready_within = "10m" gives it longer'
        error = ServiceError(f"{member.place} was {text}", kind="never-ready", hint=hint)
        self._leave(PipelineEnd(1, error.message, error=error, stderr=end.stderr))

    def _let_go(self) -> None:
        """End whom nobody needs any more, those that waited to be started again included; leave when all is done."""
        while self._leaving is None:
            found = over(self._plan, self._cast.done)
            places = [place for name in found.finish for place in self._plan[name].places]
            if found.leave is not None:
                self._leave(PipelineEnd(found.leave, "every role is done"))
            elif any(self._cast.members[place].fate != "end" for place in places):
                self._cast.end(places)
            else:
                return

    def _apply(self, member: Member, consequence: Consequence, end: End, why: str, wait_ns: int) -> None:
        if consequence.leave is not None:
            self._leave(PipelineEnd(consequence.leave, why, stderr=end.stderr))
            return
        self._cast.restart(consequence.restart, why, wait_ns, lost=member.place)

    def _take_orders(self) -> None:
        for order, future in self._ledger.taken():
            if isinstance(order, Look):
                future.set_result(Answer("seen", self.standings))
            elif self._leaving is not None:
                future.set_exception(_shutting_down())
            elif gone := self._over_among(order):
                text = f"{gone} is over: whom it served is done"
                future.set_exception(ServiceError(text, kind="role-over", hint="the pipeline ends with the roles that are left"))
            else:
                self._pending.append(self._begin(order, future))

    def _over_among(self, order: Order) -> str:
        """Return the role that an order names, if it is ended for good."""
        named = order.role if isinstance(order, RestartWorker | RestartRole) else ""
        return named if named and all(self._cast.members[place].fate == "end" for place in self._plan[named].places) else ""

    def _begin(self, order: RestartWorker | RestartRole | RestartAll, future: Future[Answer]) -> Pending:
        members = self._cast.members
        gone = frozenset(place.role for place, member in members.items() if member.fate == "end")
        places = targets(self._plan, order, gone | self._cast.finished)
        meant = None if isinstance(order, RestartAll) else order.attempt
        floors = {place: min(members[place].attempt, members[place].attempt if meant is None else meant) for place in places}
        old = [place for place in places if members[place].attempt <= floors[place]]
        if old:
            because = f": {order.why}" if order.why else ""
            self._tell("ordered", f"ordered to {_words(order)}{because}", order=_words(order), why=order.why)
            self._cast.restart(old, f"ordered{because}")
            if order.now:
                self._cast.kill(old)
        return Pending(order, future, floors, "restarted" if old else "already")

    def _answer(self) -> None:
        for pending in [*self._pending]:
            if self._leaving is not None:
                pending.future.set_exception(_shutting_down())
            elif self._is_carried_out(pending):
                reports = tuple(self._cast.members[place].report for place in sorted(pending.floors))
                pending.future.set_result(Answer(pending.outcome, reports))
            else:
                continue
            self._pending.remove(pending)

    def _is_carried_out(self, pending: Pending) -> bool:
        members = [(self._cast.members[place], floor) for place, floor in pending.floors.items()]
        return all(member.attempt > floor and (member.is_ready or member.is_done) for member, floor in members)


def _cause_of(member: Member, end: End) -> Cause:
    if end.exit_code == 0 and member.role.until:
        text = f"it ended with exit code 0, and was to run until {_named(member.role.until)} done"
        return Cause("exit", "soft", "user", text)
    return classify(end)


def _named(roles: tuple[str, ...]) -> str:
    return f"{' and '.join(roles)} {'is' if len(roles) == 1 else 'are'}"


def _words(order: RestartWorker | RestartRole | RestartAll) -> str:
    if isinstance(order, RestartAll):
        return "restart all"
    return f"restart {order.role}" + (f" {order.index}" if isinstance(order, RestartWorker) else "")


def _shutting_down() -> ServiceError:
    return ServiceError("the pipeline is being stopped", kind="shutting-down", hint="nothing is started again now")
