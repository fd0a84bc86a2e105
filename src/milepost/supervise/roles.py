"""Say who is who in a pipeline, and decide who starts again when one of its processes ends. Pure: no process, no clock.

A pipeline is a handful of roles (a trainer, a service, samplers), each with one process or several. `decide` and `over` are
the table:

=========================  ======================================================================================
one process …              and then
=========================  ======================================================================================
ends and is done           its role is done with the last of them; roles that run `until` it are ended in good order
is to start again          ``worker``: it alone. ``trainer``: its whole role. ``all``: everything that is not done yet
asks to be requeued, or    everything is ended in good order, and the pipeline leaves with its exit code
has used its budget up
=========================  ======================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from milepost.lifecycle.stopping import EXIT_CODE, INTERRUPTED

TERMINATED = 143
"""What a pipeline ends with after a SIGTERM, unless its roles say more."""
Restart: TypeAlias = Literal["worker", "trainer", "all"]
Action: TypeAlias = Literal["done", "restart", "requeue", "stop"]


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Name one process of a pipeline, whichever process fills it at the moment."""

    role: str
    index: int

    def __str__(self) -> str:
        return f"{self.role}.{self.index}"


@dataclass(frozen=True, slots=True)
class Ready:
    """Say by what a process shows that others may rely on it: a file that it makes or touches, or an address it listens at."""

    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def is_each(self) -> bool:
        """Whether each process of the role has one of its own."""
        return "{index}" in self.path

    def __str__(self) -> str:
        return self.path or f"tcp://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Role:
    """Hold what the file says of one role. Times are in seconds, -1 is without a bound."""

    name: str
    command: tuple[str, ...]
    cwd: Path
    count: int = 1
    is_ranks: bool = False
    """Its processes are ranks of one group: they find each other at the start, so that none of them can come back alone."""
    restart: Restart = "worker"
    depends_on: tuple[str, ...] = ()
    until: tuple[str, ...] = ()
    """It serves these roles: it never ends by itself, and is ended when they are done."""
    env: tuple[tuple[str, str], ...] = ()
    ready: Ready | None = None
    ready_within_s: float = 300.0
    grace_s: float = 30.0
    hang_after: float | Literal["auto", "off"] = "auto"
    max_failures: int | None = None
    """None: as many as its command wants, else three."""
    max_infrastructure: int = 10
    max_preemptions: int = -1

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(Place(self.name, index) for index in range(self.count))


@dataclass(frozen=True, slots=True)
class Consequence:
    """Say what follows from one end."""

    restart: frozenset[Place] = frozenset()
    finish: frozenset[str] = frozenset()
    """Roles to be ended in good order: whom they served is done."""
    leave: int | None = None
    """End everything that still runs, in good order, and leave with this exit code."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold the roles of a pipeline, each after those that it depends on."""

    roles: tuple[Role, ...]

    def __getitem__(self, name: str) -> Role:
        return next(role for role in self.roles if role.name == name)

    def __contains__(self, name: object) -> bool:
        return any(role.name == name for role in self.roles)

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(place for role in self.roles for place in role.places)

    def relying_on(self, name: str) -> frozenset[str]:
        """Return the roles that depend on one, directly or by way of others."""
        found = {name}
        for role in self.roles:  # each comes after those that it depends on
            if not found.isdisjoint(role.depends_on):
                found.add(role.name)
        return frozenset(found - {name})

    def may_start(self, name: str, standing: frozenset[Place]) -> bool:
        """Say whether all that a role depends on stands: ``standing`` is what is ready, or done."""
        return all(standing.issuperset(self[needed].places) for needed in self[name].depends_on)

    def may_stop(self, name: str, running: Iterable[Place]) -> bool:
        """Say whether nobody who relies on a role is running any more."""
        return self.relying_on(name).isdisjoint(place.role for place in running)

    def unit(self, place: Place) -> frozenset[Place]:
        """Return what has to start again together with one process, whoever says so: ranks come as a group."""
        return frozenset(self[place.role].places) if self[place.role].is_ranks else frozenset({place})


def decide(plan: Plan, place: Place, action: Action, exit_code: int, done: frozenset[Place]) -> Consequence:
    """Say what follows when the process at ``place`` has ended, and its policy says ``action``. Pure.

    ``done``: the places whose process has ended for good before. What is done stays done when all of the others start
    again; within a role that is not: a rank that is done has to be there for the others to find each other.
    """
    role = plan[place.role]
    if action in ("stop", "requeue"):
        return Consequence(leave=exit_code)
    if action == "restart":
        if role.restart == "worker":
            return Consequence(restart=plan.unit(place))
        if role.restart == "trainer":
            return Consequence(restart=frozenset(role.places))
        finished = {each.name for each in plan.roles if done.issuperset(each.places)}
        return Consequence(restart=frozenset(each for each in plan.places if each.role not in finished))
    return Consequence()


def over(plan: Plan, done: frozenset[Place]) -> Consequence:
    """Say who has nothing left to do, and whether that is everybody. ``done``: as above. Pure."""
    finished = {each.name for each in plan.roles if done.issuperset(each.places)}
    if len(finished) == len(plan.roles):
        return Consequence(leave=0)
    served = (each for each in plan.roles if each.until and finished.issuperset(each.until) and each.name not in finished)
    return Consequence(finish=frozenset(each.name for each in served))


def in_order(roles: Iterable[Role]) -> tuple[tuple[Role, ...], tuple[str, ...]]:
    """Return the roles, each after those that it depends on, else as given; and the names of those in or behind a circle."""
    left, ordered = list(roles), list[Role]()
    while free := [role for role in left if not set(role.depends_on) & {other.name for other in left}]:
        ordered.append(free[0])
        left.remove(free[0])
    return tuple(ordered), tuple(role.name for role in left)


def circle(edges: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return names that lead in a circle, the first one also as the last; empty if none do."""
    for start in edges:
        path, seen = [start], {start}
        stack = [iter(edges[start])]
        while stack:
            following = next(stack[-1], None)
            if following is None:
                stack.pop()
                path.pop()
            elif following == start:
                return (*path, start)
            elif following in edges and following not in seen:
                seen.add(following)
                path.append(following)
                stack.append(iter(edges[following]))
    return ()


def leaving_code(asked: int | None, codes: Iterable[int]) -> int:
    """Return the exit code of a pipeline that was asked to stop. Pure.

    ``asked``: 130 for a Ctrl-C, 143 for a SIGTERM. ``codes``: with which the roles ended whose end is what the pipeline is
    for. A failure is told; then that something was saved and wants to be queued again; 0 only if all of it is done.
    """
    given = list(codes)
    if asked == INTERRUPTED:
        return INTERRUPTED
    failures = [code for code in given if code not in (0, EXIT_CODE, INTERRUPTED, TERMINATED)]
    if failures:
        return failures[0]
    return EXIT_CODE if EXIT_CODE in given else max((0, *given))
