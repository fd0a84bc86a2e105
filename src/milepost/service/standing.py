"""Say how a service stands, for people and for programs: its versions, who is there, what it holds. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from milepost.service.core.records import Commit, Role, Tier, Weights


@dataclass(frozen=True, slots=True)
class Serving:
    """Say which process answers."""

    address: str
    pid: int
    uptime_s: float
    milepost_version: str


@dataclass(frozen=True, slots=True)
class VersionStanding:
    """Say where the bytes of one version are, and who has it."""

    weights: Weights
    tiers: tuple[Tier, ...]
    is_lost: bool = False
    generation: int | None = None
    """Of the trainer's own checkpoint that holds it, if there is one."""
    readers: int = 0


@dataclass(frozen=True, slots=True)
class ComponentStanding:
    """Say of one component which process it is, and what it reads."""

    component: str
    incarnation: str
    role: Role
    silent_s: float | None = None
    """Since it was heard of last; None where nobody listens, and of one that was not heard of since the service began."""
    reads: tuple[Commit, ...] = ()
    host: str = ""
    pid: int = 0

    @property
    def newest(self) -> Commit | None:
        """Return the newest version that it reads."""
        return max(self.reads, default=None)


@dataclass(frozen=True, slots=True)
class StagingStanding:
    """Say what of a commit that is on its way is not here yet."""

    component: str
    key: str
    step: int
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """Say how a service stands. Without ``serving`` nobody answers: it is what its records and its tiers say."""

    run_id: str
    term: int
    live: Weights | None
    durable: Weights | None
    versions: tuple[VersionStanding, ...]
    """Those whose bytes are anywhere, newest first."""
    components: tuple[ComponentStanding, ...]
    memory_bytes: int
    disk_bytes: int
    memory_limit_bytes: int | None = None
    serving: Serving | None = None
    held_by: str = ""
    """The component that holds sampling; empty: none does."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Since this process began: ``commits``, ``fetches``, ``refused.KIND``, ``bytes.TRANSPORT``."""
    stagings: tuple[StagingStanding, ...] = ()
    last_failure: str = ""
    """What the disk said last time it refused something."""

    def version(self, at: Commit) -> VersionStanding | None:
        """Return a version whose bytes are anywhere."""
        return next((each for each in self.versions if each.weights.at == at), None)


@dataclass(frozen=True, slots=True)
class Lag:
    """Say how far a reader is behind. ``steps`` is None where nobody knows any more what it reads."""

    versions: int
    steps: int | None
    is_lost: bool = False
    """It reads what training has left: whatever it makes of that is orphaned."""


def lag_of(standing: Standing, component: ComponentStanding) -> Lag | None:
    """Return how far a component is behind the live version; None if it reads nothing, or nothing is live."""
    at, live = component.newest, standing.live
    if at is None or live is None:
        return None
    read = standing.version(at)
    steps = live.version.step - read.weights.version.step if read is not None else None
    return Lag(live.at.number - at.number, steps, read is not None and read.is_lost)
