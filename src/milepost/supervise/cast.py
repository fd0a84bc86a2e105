"""Start and stop the processes of a pipeline, in order: who is to go, who may come, and who is ready. It decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from milepost.clock import Clock
from milepost.errors import UsageError
from milepost.supervise.attempt import Tell
from milepost.supervise.causes import End
from milepost.supervise.member import Before, Launch, Member, NotStarted, Start, Unit
from milepost.supervise.policy import Limits, Policy
from milepost.supervise.readiness import Probe, free_port
from milepost.supervise.roles import Place, Plan, Role

LOST_S = 5.0
"""What the other ranks get when one is lost: they wait for it in some collective, and come to no safe point without it."""


class Cast:
    """Be all processes of a pipeline. One thread uses it."""

    def __init__(self, plan: Plan, start: Start, clock: Clock, tell: Tell, limits: Limits, before: Before) -> None:
        self.plan, self._start, self._clock, self._tell = plan, start, clock, tell
        self.members: dict[Place, Member] = {}
        for role in plan.roles:
            units = [Unit(self._policy_of(role, limits), before.way) for _ in role.places]
            is_one = role.is_ranks or role.restart != "worker"
            for place, unit in zip(role.places, units, strict=True):
                self.members[place] = Member(place, role, units[0] if is_one else unit, attempt=before.attempts)
        self.published = 0
        """How often a generation was seen that is new."""
        self.starts = 0
        self._ports: set[int] = set()

    @property
    def alive(self) -> list[Place]:
        return [place for place, member in self.members.items() if member.running is not None]

    @property
    def done(self) -> frozenset[Place]:
        return frozenset(place for place, member in self.members.items() if member.is_done)

    @property
    def finished(self) -> frozenset[str]:
        """Return the roles that are done."""
        done = self.done
        return frozenset(role.name for role in self.plan.roles if done.issuperset(role.places))

    # --- what is to become of whom -------------------------------------------------------------------------------------

    def restart(self, places: Iterable[Place], why: str, wait_ns: int = 0, lost: Place | None = None) -> None:
        """Let these start again, together, as soon as none of them runs any more. ``lost``: the one that fell."""
        together = frozenset(places)
        running = together.intersection(self.alive)
        not_before_ns = self._clock.monotonic_ns() + wait_ns
        for place in together:
            member = self.members[place]
            if member.fate == "end":
                continue
            member.fate, member.is_done, member.why, member.exit_code = "restart", False, why, None
            member.after |= running
            member.not_before_ns = not_before_ns
            is_peer = lost is not None and member.role.is_ranks and place.role == lost.role
            member.grace_s = min(LOST_S, member.role.grace_s) if is_peer else member.role.grace_s

    def end(self, places: Iterable[Place]) -> None:
        """Let these go for good. What runs is stopped in order; what waits to be started is over."""
        for place in places:
            member = self.members[place]
            member.is_done = member.is_done or member.running is None
            member.fate, member.grace_s = "end", member.role.grace_s

    def kill(self, places: Iterable[Place]) -> None:
        """End the processes of these at once, whatever they do; their fate stays."""
        for place in places:
            member = self.members[place]
            if member.running is not None:
                member.is_asked, member.is_ready = True, False
                member.running.kill()

    # --- what happens --------------------------------------------------------------------------------------------------

    def take_ends(self) -> Iterator[tuple[Member, End]]:
        """Look after all that run, and yield those that have ended."""
        for member in self.members.values():
            end = member.running.poll() if member.running is not None else None
            if end is None:
                continue
            member.running, member.newest = None, 0
            member.is_ready = member.is_asked = False
            if member.probe:
                member.probe.close()
            for other in self.members.values():
                other.after -= {member.place}
            member.exit_code = 128 + end.signal if end.signal is not None else end.exit_code or 0
            self.published += end.published
            yield member, end
            member.is_late = False

    def count_progress(self) -> None:
        """Note what was published since the last time. Looks into a file of each engine."""
        for member in self.members.values():
            if member.running is not None:
                newest = member.running.newest_generation()
                self.published += newest > member.newest
                member.newest = max(newest, member.newest)

    def look_who_is_ready(self) -> None:
        """Note who is ready, and stop those who should have been."""
        now_ns = self._clock.monotonic_ns()
        for member in self.members.values():
            if member.running is None or member.is_ready or member.is_asked:
                continue
            if member.probe is None or member.probe.is_ready():
                member.is_ready = True
                self.tell("ready", member, "ready")
            elif now_ns >= member.ready_until_ns:
                member.is_late = member.is_asked = True
                member.running.stop(min(LOST_S, member.role.grace_s))

    def stop_who_is_to(self) -> None:
        """Ask those to leave whose turn it is."""
        ending = [place for place in self.alive if self.members[place].fate != "run"]
        for place in ending:
            member = self.members[place]
            # Who relies on a role goes before it: a sampler must not find its service gone while it ends.
            if member.running is not None and not member.is_asked and self.plan.may_stop(place.role, ending):
                member.is_asked, member.is_ready = True, False
                member.running.stop(member.grace_s)
                self.tell("stopping", member, f"asked to leave within {member.grace_s:g} s")

    def start_who_may(self) -> None:
        """Start those that are due and on whom nothing is lacking. Raises `UsageError` where one cannot be started."""
        for role in self.plan.roles:
            standing = frozenset(place for place, member in self.members.items() if member.is_ready or member.is_done)
            if not self.plan.may_start(role.name, standing):
                continue
            due = [self.members[place] for place in role.places if self._is_due(self.members[place])]
            if role.is_ranks and len(due) < role.count:
                continue  # they need each other: it is all of them, or none yet
            rendezvous = self._rendezvous(role) if role.is_ranks and due else {}
            for member in due:
                self._launch(member, rendezvous)

    def _is_due(self, member: Member) -> bool:
        is_idle = member.running is None and not member.is_done and not member.after
        return is_idle and member.fate == "restart" and self._clock.monotonic_ns() >= member.not_before_ns

    def _launch(self, member: Member, rendezvous: Mapping[str, str]) -> None:
        role, place = member.role, member.place
        launch = Launch(place, role, member.attempt + 1, _told(role, place, rendezvous), member.unit.way)
        try:
            member.probe = self._probe(role, place)
            member.running = self._start(launch)
        except UsageError as error:
            if not (error.kind == "address-taken" and member.starts):
                raise
            # It was ours before: whoever has it now may go again.
            self.tell("not-started", member, str(error))
            member.running = NotStarted(End(1, None, stderr=str(error)))
        member.attempt += 1
        member.starts += 1
        self.starts += 1
        member.fate, member.published, member.is_ready = "run", self.published, member.probe is None and member.running.pid > 0
        member.ready_until_ns = self._clock.monotonic_ns() + round(role.ready_within_s * 1e9)
        if member.running.pid:
            self.tell("started", member, f"started, pid {member.running.pid}, attempt {member.attempt}", why=member.why)

    def _probe(self, role: Role, place: Place) -> Probe | None:
        others_run = any(self.members[other].running for other in role.places)
        return Probe(role.ready, role.cwd, place.index, others_run=others_run) if role.ready else None

    def _rendezvous(self, role: Role) -> dict[str, str]:
        # Anew for each start: the last one may still be held by whoever is on its way out.
        port = free_port(self._ports)
        self._ports = {port} if len(self._ports) > 1000 else self._ports | {port}
        size = str(role.count)
        return {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    def _policy_of(self, role: Role, limits: Limits) -> Policy:
        own = replace(
            limits,
            failures=role.max_failures,
            infrastructure=role.max_infrastructure,
            preemptions=role.max_preemptions,
        )
        return Policy(own, lambda: int(self._clock.nonce(), 16) / 2**64)

    def tell(self, event: str, member: Member, text: str, **facts: object) -> None:
        """Tell of one process."""
        place = member.place
        self._tell(event, f"{place}: {text}", role=place.role, index=place.index, attempt=member.attempt, **facts)


def _told(role: Role, place: Place, rendezvous: Mapping[str, str]) -> dict[str, str]:
    index = str(place.index)
    told = {name: value.replace("{index}", index) for name, value in role.env}
    told |= {"MILEPOST_ROLE": role.name, "MILEPOST_INDEX": index, "MILEPOST_COUNT": str(role.count)}
    return told | ({**rendezvous, "RANK": index, "LOCAL_RANK": index} if role.is_ranks else {})
