"""Run a pipeline: start its roles in order, start again what ends too early, carry out orders, and end all in good order.

One thread runs it; `turn` is the story. Who starts again is decided in `milepost.supervise.roles`, how often and when by
each unit's `Policy`, and what an order means in `milepost.supervise.orders`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace

from milepost.clock import Clock
from milepost.errors import MilepostError, ServiceError, UsageError
from milepost.supervise.causes import Cause, End, classify
from milepost.supervise.ledger import Ledger, Pending
from milepost.supervise.member import Launch, Member, Start
from milepost.supervise.orders import Answer, Look, Order, RestartAll, RestartRole, RestartWorker, Standing, targets
from milepost.supervise.policy import Limits, Policy
from milepost.supervise.readiness import Probe, free_port
from milepost.supervise.roles import Consequence, Place, Plan, Role, decide, leaving_code

_TURN_S = 0.05
_PROGRESS_S = 1.0
_LIMITS = Limits()
_LOST_S = 5.0
"""What the other ranks get when one is lost: they wait for it in some collective, and come to no safe point without it."""


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
        *,
        say: Tell,
        limits: Limits = _LIMITS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``say`` is told what happens: an event's name, a line, facts. ``limits``: how long a restart waits."""
        self._plan, self._start, self._clock, self._say = plan, start, clock, say
        self._environment = dict(environment or {})
        self._members = {
            place: Member(place, plan[place.role], self._policy_of(plan[place.role], limits)) for place in plan.places
        }
        for role in plan.roles:
            if role.is_ranks or role.restart != "worker":
                shared = self._members[role.places[0]].policy
                for place in role.places:
                    self._members[place].policy = shared
        self._ledger = Ledger()
        self._pending: list[Pending] = []
        self._woken = threading.Event()
        self._asked: int | None = None
        self._is_killed = False
        self._leaving: PipelineEnd | None = None
        self._codes: dict[Place, int] = {}
        self._ports: set[int] = set()
        self._starts = 0
        self._published = 0
        self._counted_ns = 0

    # --- for any thread ------------------------------------------------------------------------------------------------

    def submit(self, order: Order, key: str = "") -> Future[Answer]:
        """Take an order, and return at once; the future is done when it is carried out.

        A ``key`` makes it one order however often it is given. Raises `NotFoundError` (``no-such-role``,
        ``no-such-worker``), `UsageError` (``key-reused``), `ServiceError` (``shutting-down``).
        """
        targets(self._plan, order, frozenset())
        future = self._ledger.take(order, key)
        self._woken.set()
        return future

    def carry_out(self, order: Order, key: str = "", timeout_s: float | None = None) -> Answer:
        """Carry out an order, and return when all that it names was started again and is ready.

        For a service in the same process, from a thread that does not run the pipeline. Raises what `submit` raises, and
        `ServiceError` (``no-answer``) after ``timeout_s``: it may still be carried out.
        """
        try:
            return self.submit(order, key).result(timeout_s)
        except FutureTimeout as error:
            hint = "ask again with the same key"
            raise ServiceError("no answer yet", kind="no-answer", hint=hint, waited_s=timeout_s) from error

    def stop(self, exit_code: int) -> None:
        """End everything in good order. ``exit_code``: 130 for a Ctrl-C, 143 for a SIGTERM. Safe in a signal handler."""
        self._asked = self._asked or exit_code

    def kill(self) -> None:
        """End everything at once. Safe in a signal handler."""
        self._is_killed = True
        self.stop(143)

    # --- the story -----------------------------------------------------------------------------------------------------

    def run(self) -> PipelineEnd:
        """Run until every role is done, or one has used its budget up, or it is stopped. Nothing of it runs then."""
        for role in self._plan.roles:
            self._starting(role.places, "")
        try:
            while not self._is_over:
                self.turn()
                self._woken.wait(_TURN_S)
                self._woken.clear()
        finally:
            self._abandon()
            self._ledger.close(_shutting_down())
        assert self._leaving is not None
        return replace(self._leaving, exit_code=self._exit_code, standings=self.standings, starts=self._starts)

    def turn(self) -> None:
        """Look once at everything, and do what is due."""
        if self._asked is not None and self._leaving is None:
            self._leave(PipelineEnd(self._asked, "Ctrl-C" if self._asked == 130 else "asked to stop"))
        self._count_progress(_PROGRESS_S)
        self._take_ends()
        self._take_orders()
        self._look_who_is_ready()
        self._stop_who_is_to()
        self._start_who_may()
        self._answer()

    @property
    def standings(self) -> tuple[Standing, ...]:
        """Return how each process stands, in the order of the plan."""
        return tuple(self._members[place].report for place in self._plan.places)

    @property
    def _is_over(self) -> bool:
        return self._leaving is not None and not self._alive

    @property
    def _exit_code(self) -> int:
        assert self._leaving is not None
        if self._asked is None or self._leaving.exit_code != self._asked:
            return self._leaving.exit_code
        wanted = {place: code for place, code in self._codes.items() if not self._plan[place.role].until}
        never_begun = [
            self._asked for place in self._plan.places if not self._plan[place.role].until and place not in self._codes
        ]
        return leaving_code(self._asked, [*wanted.values(), *never_begun])

    @property
    def _alive(self) -> list[Place]:
        return [place for place, member in self._members.items() if member.running is not None]

    @property
    def _done(self) -> frozenset[Place]:
        return frozenset(place for place, member in self._members.items() if member.is_done)

    @property
    def _finished(self) -> frozenset[str]:
        return frozenset(role.name for role in self._plan.roles if self._done.issuperset(role.places))

    # --- ends ----------------------------------------------------------------------------------------------------------

    def _take_ends(self) -> None:
        for member in self._members.values():
            if member.running is None:
                continue
            if self._is_killed:
                member.running.kill()
            end = member.running.poll()
            if end is not None:
                self._ended(member, end)

    def _ended(self, member: Member, end: End) -> None:
        was_late, fate = member.is_late, member.fate
        self._published += end.published
        member.newest = 0
        member.running, member.is_ready, member.is_asked, member.is_late = None, False, False, False
        if member.probe:
            member.probe.close()
        for other in self._members.values():
            other.after -= {member.place}
        self._codes[member.place] = code = 128 + end.signal if end.signal is not None else end.exit_code or 0
        if self._leaving is not None:
            self._tell("ended", member, f"ended with {_how(end)}", code)
        elif was_late:
            self._was_never_ready(member, end)
        elif fate == "restart":
            self._tell("ended", member, f"ended with {_how(end)}, to be started again", code)
        elif fate == "end":
            member.is_done = True
            self._tell("ended", member, f"ended with {_how(end)}: whom it served is done", code)
            self._apply(member, decide(self._plan, member.place, "done", 0, self._done), end)
        else:
            self._judge(member, end, self._cause_of(member.role, end))

    def _cause_of(self, role: Role, end: End) -> Cause:
        if end.exit_code == 0 and role.until:
            text = f"it ended with exit code 0, and was to run until {', '.join(role.until)} is done"
            return Cause("exit", "soft", "user", text)
        return classify(end)

    def _judge(self, member: Member, end: End, cause: Cause) -> None:
        """Say what follows from an end that nobody asked for."""
        # What the trainer publishes is everybody's progress: a sampler that fails once a day is no crash loop.
        self._count_progress(0.0)
        seen = replace(end, published=end.published or self._published > member.progress)
        if cause.kind != "done" and not end.exit_code and end.signal is None:
            seen = replace(seen, exit_code=1)  # a pipeline that gives up has not succeeded
        decision = member.unit.policy.decide(seen, cause, asked_to_stop=False)
        standing = f" ({member.unit.policy.standing})" if decision.action == "restart" else ""
        self._tell("ended", member, f"{decision.why or cause.text}{standing}", decision.exit_code, cause=cause.kind)
        if cause.advice and decision.action != "done":
            self._tell("advice", member, cause.advice)
        if decision.action == "done":
            member.is_done = True
        consequence = decide(self._plan, member.place, decision.action, decision.exit_code, self._done)
        member.unit.way = member.unit.way.after(published=seen.published, resume=decision.resume, skip=decision.skip)
        why = f"{member.place}: {cause.text}"
        self._apply(member, consequence, end, why, round(decision.wait_s * 1e9))

    def _was_never_ready(self, member: Member, end: End) -> None:
        assert member.probe is not None
        text = f"not ready within {member.role.ready_within_s:g} s: {member.probe.describe()}"
        if member.attempt > 1:
            return self._judge(member, end, Cause("exit", "soft", "user", text))
        self._tell("ended", member, text, 1)
        hint = 'what it said last is above; ready_within = "10m" gives it longer'
        error = ServiceError(f"{member.place} was {text}", kind="never-ready", hint=hint)
        self._leave(PipelineEnd(1, error.message, error=error, stderr=end.stderr))
        return None

    def _apply(self, member: Member, consequence: Consequence, end: End, why: str = "", wait_ns: int = 0) -> None:
        if consequence.leave is not None:
            text = why or "every role is done"
            return self._leave(PipelineEnd(consequence.leave, text, stderr=end.stderr if consequence.leave else ""))
        for name in consequence.finish:
            for place in self._plan[name].places:
                self._end(self._members[place])
        self._starting(consequence.restart, why, wait_ns, lost=member.place)
        return None

    # --- what is to become of whom -------------------------------------------------------------------------------------

    def _starting(self, places: Iterable[Place], why: str, wait_ns: int = 0, lost: Place | None = None) -> None:
        """Let these start again, together, as soon as none of them runs any more."""
        together = frozenset(places)
        running = together.intersection(self._alive)
        for place in together:
            member = self._members[place]
            if member.fate == "end":
                continue
            member.fate, member.is_done, member.why = "restart", False, why
            self._codes.pop(place, None)
            member.after |= running
            member.not_before_ns = self._clock.monotonic_ns() + wait_ns
            is_peer = lost is not None and member.role.is_ranks and place.role == lost.role
            member.grace_s = min(_LOST_S, member.role.grace_s) if is_peer else member.role.grace_s

    def _end(self, member: Member) -> None:
        if member.running is None:
            member.is_done = True
        member.fate, member.grace_s = "end", member.role.grace_s

    def _leave(self, end: PipelineEnd) -> None:
        if self._leaving is None:
            self._leaving = end
            self._say("leaving", f"{end.why}: ending {len(self._alive)} processes in good order", exit_code=end.exit_code)
        for member in self._members.values():
            if member.running is not None:
                self._end(member)

    def _stop_who_is_to(self) -> None:
        ending = [place for place in self._alive if self._members[place].fate != "run"]
        for place in ending:
            member = self._members[place]
            # Who relies on a role goes before it: a sampler must not find its service gone while it ends.
            if not member.is_asked and self._plan.may_stop(place.role, ending):
                assert member.running is not None
                member.is_asked, member.is_ready = True, False
                member.running.stop(member.grace_s)
                self._tell("stopping", member, f"asked to leave within {member.grace_s:g} s")

    def _look_who_is_ready(self) -> None:
        now_ns = self._clock.monotonic_ns()
        for member in self._members.values():
            if member.running is None or member.is_ready or member.is_asked:
                continue
            if member.probe is None or member.probe.is_ready():
                member.is_ready = True
                self._tell("ready", member, f"ready ({member.role.ready})")
            elif now_ns >= member.ready_until_ns:
                member.is_late, member.is_asked = True, True
                member.running.stop(min(_LOST_S, member.role.grace_s))

    def _start_who_may(self) -> None:
        if self._leaving is not None:
            return
        for role in self._plan.roles:
            standing = {place for place, member in self._members.items() if member.is_ready or member.is_done}
            members = [self._members[place] for place in role.places]
            due = [member for member in members if self._is_due(member)] if self._plan.may_start(role.name, standing) else []
            if role.is_ranks and len(due) < role.count:
                continue  # they need each other: it is all of them, or none yet
            rendezvous = self._rendezvous(role) if role.is_ranks and due else {}
            for member in due:
                if self._leaving is None:
                    self._launch(member, rendezvous, others_run=any(other.running for other in members))

    def _is_due(self, member: Member) -> bool:
        return member.is_idle and member.fate != "end" and not member.after and self._clock.monotonic_ns() >= member.not_before_ns

    def _launch(self, member: Member, rendezvous: Mapping[str, str], *, others_run: bool) -> None:
        role, place = member.role, member.place
        member.attempt += 1
        try:
            member.probe = Probe(role.ready, role.cwd, place.index, others_run=others_run) if role.ready else None
            member.running = self._start(Launch(place, role, member.attempt, self._told(member, rendezvous)))
        except UsageError as error:
            self._leave(PipelineEnd(error.exit_code, f"{place} cannot be started", error=error))
            return
        self._starts += 1
        member.fate, member.after, member.environment, member.progress = "run", frozenset(), {}, self._published
        member.ready_until_ns = self._clock.monotonic_ns() + round(role.ready_within_s * 1e9)
        member.is_ready = member.probe is None
        self._tell("started", member, f"started, pid {member.running.pid}, attempt {member.attempt}", why=member.why)

    def _told(self, member: Member, rendezvous: Mapping[str, str]) -> dict[str, str]:
        role, index = member.role, str(member.place.index)
        told = {name: value.replace("{index}", index) for name, value in role.env} | member.environment | self._environment
        told |= {"MILEPOST_ROLE": role.name, "MILEPOST_INDEX": index, "MILEPOST_COUNT": str(role.count)}
        return told | ({**rendezvous, "RANK": index, "LOCAL_RANK": index} if role.is_ranks else {})

    def _rendezvous(self, role: Role) -> dict[str, str]:
        # Anew for each start: the port of the last one may still be held by whoever is on its way out.
        port = free_port(self._ports)
        self._ports.add(port)
        if len(self._ports) > 1000:
            self._ports = {port}
        size = str(role.count)
        return {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    # --- orders --------------------------------------------------------------------------------------------------------

    def _take_orders(self) -> None:
        for order, future in self._ledger.taken():
            if isinstance(order, Look):
                future.set_result(Answer("seen", self.standings))
            elif self._leaving is not None:
                future.set_exception(_shutting_down())
            elif over := self._over_among(order):
                text = f"{over} is over: whom it served is done"
                future.set_exception(ServiceError(text, kind="role-over", hint="the pipeline ends with the roles that are left"))
            else:
                self._pending.append(self._ordered(order, future))

    def _over_among(self, order: Order) -> str:
        """Return the role that an order names, if it has been ended for good."""
        named = order.role if isinstance(order, RestartWorker | RestartRole) else ""
        return named if named and all(self._members[place].fate == "end" for place in self._plan[named].places) else ""

    def _ordered(self, order: RestartWorker | RestartRole | RestartAll, future: Future[Answer]) -> Pending:
        finished = {place.role for place, member in self._members.items() if member.fate == "end"} | self._finished
        places = targets(self._plan, order, finished)
        meant = None if isinstance(order, RestartAll) else order.attempt
        floors = {place: self._members[place].attempt if meant is None else meant for place in places}
        old = frozenset(place for place in places if self._members[place].attempt <= floors[place])
        if old:
            self._say("ordered", f"ordered: {_words(order)}{f' ({order.why})' if order.why else ''}")
            self._starting(self._units(old), f"ordered{f': {order.why}' if order.why else ''}")
            for place in old if order.now else ():
                running = self._members[place].running
                if running is not None:
                    self._members[place].is_asked, self._members[place].is_ready = True, False
                    running.kill()
        return Pending(order, future, floors, "restarted" if old else "already")

    def _units(self, places: Iterable[Place]) -> frozenset[Place]:
        return frozenset(each for place in places for each in self._plan.unit(place))

    def _answer(self) -> None:
        if self._leaving is not None:
            for pending in self._pending:
                pending.future.set_exception(_shutting_down())
            self._pending = []
        for pending in [each for each in self._pending if self._is_carried_out(each)]:
            self._pending.remove(pending)
            reports = tuple(self._members[place].report for place in sorted(pending.floors))
            pending.future.set_result(Answer(pending.outcome, reports))

    def _is_carried_out(self, pending: Pending) -> bool:
        members = [(self._members[place], floor) for place, floor in pending.floors.items()]
        return all(member.attempt > floor and (member.is_ready or member.is_done) for member, floor in members)

    def _count_progress(self, after_s: float) -> None:
        """Note what was published since the last time: a look into files, so not at each turn."""
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._counted_ns < after_s * 1e9:
            return
        self._counted_ns = now_ns
        for member in self._members.values():
            newest = member.running.newest_generation if member.running else 0
            self._published += newest > member.newest > 0 or newest > 0 == member.newest
            member.newest = newest

    # --- the rest ------------------------------------------------------------------------------------------------------

    def _policy_of(self, role: Role, limits: Limits) -> Policy:
        own = replace(
            limits,
            failures=role.max_failures,
            infrastructure=role.max_infrastructure,
            preemptions=role.max_preemptions,
        )
        return Policy(own, lambda: int(self._clock.nonce(), 16) / 2**64)

    def _abandon(self) -> None:
        """Leave nothing running, whatever came in between."""
        for member in self._members.values():
            if member.running is not None:
                member.running.kill()
                while member.running.poll() is None:
                    self._woken.wait(_TURN_S)
                member.running = None

    def _tell(self, event: str, member: Member, text: str, exit_code: int | None = None, **facts: object) -> None:
        told = {"role": member.place.role, "index": member.place.index, "attempt": member.attempt, "exit_code": exit_code}
        self._say(event, f"{member.place}: {text}", **told, **facts)


def _how(end: End) -> str:
    return f"signal {end.signal}" if end.signal is not None else f"exit code {end.exit_code}"



def _words(order: RestartWorker | RestartRole | RestartAll) -> str:
    if isinstance(order, RestartAll):
        return "restart all"
    return f"restart {order.role}" + (f" {order.index}" if isinstance(order, RestartWorker) else "")


def _shutting_down() -> ServiceError:
    return ServiceError("the pipeline is being stopped", kind="shutting-down", hint="nothing is started again now")
