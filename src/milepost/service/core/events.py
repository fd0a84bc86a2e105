"""Hold what happens to the service, what it has done, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from milepost.service.core.records import Commit, Entry, Role, Shard, Tier, Weights

Request: TypeAlias = str
"""Names one call of one client, for the answer."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Say who calls: a component, and which process of all that were it."""

    component: str
    incarnation: str


# What happens. Times are nanoseconds of the service's own monotonic clock.


@dataclass(frozen=True, slots=True)
class Hello:
    """A component begins. A trainer says which step it goes on from."""

    request: Request
    caller: Caller
    role: Role
    epoch: int
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A component is there, and reads these versions; None: it does not say which."""

    caller: Caller
    reads: frozenset[Commit] | None = None


@dataclass(frozen=True, slots=True)
class Goodbye:
    """A component ends, and reads nothing any more."""

    caller: Caller


@dataclass(frozen=True, slots=True)
class Begin:
    """A trainer is about to bring a version, in parts."""

    request: Request
    caller: Caller
    key: str
    step: int
    commit_timestamp: int
    sizes: tuple[tuple[str, int], ...]
    """Each slot, and how many bytes it will have."""
    parent: Commit | None = None
    """What it was trained from; None: what this trainer brought last, or went on from."""
    free_bytes: int | None = None
    """How much the machine's memory has left just now, whatever the service may take of it; None: nobody has looked."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """All bytes of a shard are here, with the digest that they ought to have; where the tier is disk, durably."""

    request: Request
    caller: Caller
    key: str
    shard: Shard


@dataclass(frozen=True, slots=True)
class Finish:
    """A trainer waits for a version that it has brought: until it is live, or durable."""

    request: Request
    caller: Caller
    key: str
    durable: bool
    until_ns: int


@dataclass(frozen=True, slots=True)
class Abort:
    """A trainer, or the disk, gives a version up before it is visible."""

    caller: Caller
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """A sampler asks for weights other than those it has."""

    request: Request
    caller: Caller
    has: Commit | None
    until_ns: int
    """Until when it waits for news; a time that is over: not at all."""
    want: Literal["newest", "exact", "at least"] = "newest"
    at: Commit | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """A reader has copied a version, or needs it no more."""

    caller: Caller
    at: Commit


@dataclass(frozen=True, slots=True)
class RollBack:
    """Somebody wants the samplers to have an older version again."""

    request: Request
    to: Commit
    reason: str


@dataclass(frozen=True, slots=True)
class Link:
    """A trainer's checkpoint that holds a version was published."""

    request: Request
    caller: Caller
    at: Commit
    generation: int


@dataclass(frozen=True, slots=True)
class Hold:
    """A trainer is about to bring restored weights, and no rollout is to begin before them."""

    request: Request
    caller: Caller


@dataclass(frozen=True, slots=True)
class Resume:
    """A trainer that holds has brought them."""

    request: Request
    caller: Caller


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits for the answer to a request any more, or has heard it: who asked has gone, or given up."""

    request: Request


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was to be written down is, durably; or it is not, and why."""

    ticket: int
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Spilled:
    """The bytes of a version are on disk, durably; or they are not, and why."""

    at: Commit
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Erased:
    """The bytes of a version are no longer in a tier."""

    at: Commit
    tier: Tier


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event: TypeAlias = (
    Hello
    | Heartbeat
    | Goodbye
    | Begin
    | Arrived
    | Finish
    | Abort
    | Fetch
    | Release
    | RollBack
    | Link
    | Hold
    | Resume
    | Cancel
    | Recorded
    | Spilled
    | Erased
    | Tick
)


# What it does.


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a request. Each gets one answer."""

    request: Request
    answer: Answer


@dataclass(frozen=True, slots=True)
class Record:
    """Write entries down, all of them or none, and say `Recorded`. One is under way at a time."""

    ticket: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Accept:
    """Take the bytes of a commit into a tier as they come."""

    caller: Caller
    key: str
    tier: Tier


@dataclass(frozen=True, slots=True)
class Discard:
    """Forget the bytes of a commit that is given up."""

    caller: Caller
    key: str


@dataclass(frozen=True, slots=True)
class Settle:
    """Call the bytes of a commit by the name of its version from now on."""

    caller: Caller
    key: str
    at: Commit


@dataclass(frozen=True, slots=True)
class Spill:
    """Write a version to disk, durably, and say `Spilled`."""

    at: Commit


@dataclass(frozen=True, slots=True)
class Erase:
    """Take the bytes of a version out of a tier, and say `Erased`. Nobody reads them any more."""

    at: Commit
    tier: Tier


Action: TypeAlias = Reply | Record | Accept | Discard | Settle | Spill | Erase


# What it answers.


@dataclass(frozen=True, slots=True)
class Welcome:
    """You are this component from now on."""

    live: Commit | None
    durable: Commit | None


@dataclass(frozen=True, slots=True)
class Bring:
    """Bring the bytes of these slots, into this tier; those that are missing here have come before."""

    slots: tuple[str, ...]
    tier: Tier


@dataclass(frozen=True, slots=True)
class Done:
    """This version is visible; and durable, if you waited for that: it survives the host, or one that it led to does."""

    weights: Weights
    durable: bool


@dataclass(frozen=True, slots=True)
class Take:
    """These are the weights. They are kept for you until you release them, or are not heard of for too long."""

    weights: Weights
    tiers: tuple[Tier, ...]


@dataclass(frozen=True, slots=True)
class NotModified:
    """There is nothing else than what you have."""

    at: Commit | None


@dataclass(frozen=True, slots=True)
class Refused:
    """It was not done, and nothing was changed: why, and what to do next. `kind` is stable."""

    kind: str
    message: str
    hint: str
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Accepted:
    """It was done, and is written down."""


Answer: TypeAlias = Welcome | Bring | Done | Take | NotModified | Refused | Accepted
