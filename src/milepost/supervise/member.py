"""Be one place of a pipeline: the process that fills it, and what is to become of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from milepost.supervise.causes import End
from milepost.supervise.environment import Way
from milepost.supervise.orders import Standing
from milepost.supervise.policy import Policy
from milepost.supervise.readiness import Probe
from milepost.supervise.roles import Place, Role


class Running(Protocol):
    """Be one process, from its start to its end, with all that it has started."""

    @property
    def pid(self) -> int:
        """Return the number of its first process."""

    def poll(self) -> End | None:
        """Look after it, and return how it ended once nothing is left of it. Does not wait."""

    def stop(self, grace_s: float) -> None:
        """Ask it to leave, and kill it after ``grace_s``. May be asked again, with less."""

    def kill(self) -> None:
        """End it now, whatever it does."""

    def newest_generation(self) -> int:
        """Return the newest that it has published, as the sum over its run roots; 0: none. Reads files."""


class NotStarted:
    """Be a start that came to nothing for now: the system had no room, or its address is taken. It counts as a failure."""

    pid = 0

    def __init__(self, end: End) -> None:
        self._end = end

    def poll(self) -> End | None:
        return self._end

    def stop(self, grace_s: float) -> None:
        """Do nothing: there is nobody."""

    def kill(self) -> None:
        """Do nothing: there is nobody."""

    def newest_generation(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Launch:
    """Say what is to be started."""

    place: Place
    role: Role
    attempt: int
    environment: Mapping[str, str]
    """What it is told besides that of `milepost up` itself."""
    way: Way


Start: TypeAlias = Callable[[Launch], Running]
"""Start a command. Raises `UsageError` (``no-such-command``)."""


@dataclass(frozen=True, slots=True)
class Before:
    """Say what came before this `milepost up`, and where it is to begin."""

    attempts: int = 0
    """Of each process: attempts go on being counted where a scheduler starts the whole job again."""
    way: Way = field(default_factory=Way)


@dataclass(slots=True)
class Unit:
    """Be what those who start again together share: their budgets, and where their engines go on from."""

    policy: Policy
    way: Way


@dataclass(slots=True)
class Member:
    """Be one place."""

    place: Place
    role: Role
    unit: Unit
    running: Running | None = None
    probe: Probe | None = None
    attempt: int = 0
    starts: int = 0
    fate: Literal["run", "restart", "end"] = "restart"
    """What comes of it: it goes on as it is, is (or waits to be) started, or is over."""
    grace_s: float = 0.0
    is_asked: bool = False
    is_ready: bool = False
    is_done: bool = False
    is_late: bool = False
    """It was not ready in time, and is ended for that."""
    after: frozenset[Place] = frozenset()
    """These have to end before it starts: they start again together."""
    not_before_ns: int = 0
    ready_until_ns: int = 0
    published: int = 0
    """How much the pipeline had published when it was started."""
    newest: int = 0
    """Its newest generation at the last look."""
    exit_code: int | None = None
    """Of its last process; None before, and when another one is to follow."""
    why: str = ""
    told_retries: int | None = None
    """How often its command wants to be started again, as that was told last."""

    @property
    def standing(self) -> str:
        if self.running is None:
            return "done" if self.is_done else "waiting"
        return "stopping" if self.is_asked else "ready" if self.is_ready else "starting"

    @property
    def report(self) -> Standing:
        pid = self.running.pid if self.running else 0
        return Standing(self.place.role, self.place.index, self.standing, pid, self.attempt, self.why)
