"""Say how a service stands, for people and for programs: its versions, who is there, what it holds. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from milepost.service.core.records import Commit, Role, Tier, Weights

OPERATOR = "milepost-fetch"
"""The component that people are who fetch a version by hand."""


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
    """What is kept for it."""
    has: Commit | None = None
    """What it was given last, or has said that it has; None if nobody knows."""
    has_step: int = 0
    has_lost: bool = False
    """Whether training has left that version: what is made with it is orphaned."""
    host: str = ""
    """Whose memory and processes it shares."""
    machine: str = ""
    """The name of that, for people."""
    pid: int = 0


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
    """The components that hold sampling, with commas between them; empty: none does."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Since this process began: ``commits``, ``fetches``, ``refused.KIND``, ``bytes.TRANSPORT``."""
    stagings: tuple[StagingStanding, ...] = ()
    last_failure: str = ""
    """What the disk said last time it refused something."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Say how far a reader is behind."""

    versions: int
    steps: int


def lag_of(standing: Standing, component: ComponentStanding) -> Lag | None:
    """Return how far a component is behind the live version; None where it has none, or none of what training is on."""
    live = standing.live
    if component.has is None or component.has_lost or live is None:
        return None
    return Lag(live.at.number - component.has.number, live.version.step - component.has_step)
