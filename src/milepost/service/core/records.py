"""Hold the words of the service: which version of the weights, of which parts, and what is written down about it for good.

What is written down are `Entry` objects, in order. The catalogue is what they add up to, and nothing else: a service that is
started anew reads them and knows what the one before knew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from milepost.records import Version

Role: TypeAlias = Literal["trainer", "sampler"]
Tier: TypeAlias = Literal["memory", "disk"]


@dataclass(frozen=True, slots=True, order=True)
class Commit:
    """Place a version in the order of all: by the term of the service that took it, then by its number.

    Numbers rise for good, over all terms; one is never used twice. A step may come again, and a clock may go back.
    """

    term: int
    number: int

    def __str__(self) -> str:
        return f"v{self.number}"


@dataclass(frozen=True, slots=True)
class Shard:
    """Say what one part of the weights is: which one, how large, and the digest of its bytes."""

    slot: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Weights:
    """Be one version of the weights, as it was announced. Nothing of it ever changes."""

    at: Commit
    version: Version
    shards: tuple[Shard, ...]
    """In the order of their slots."""
    parent: Commit | None
    """Which version training had come from; None for the first, and where nobody knows. What is no ancestor of the live version
    is a lost branch."""
    producer: str
    incarnation: str
    key: str
    """What the producer calls this commit: said again, it is the same one."""

    @property
    def size_bytes(self) -> int:
        """Return how many bytes all shards have."""
        return sum(shard.size_bytes for shard in self.shards)


@dataclass(frozen=True, slots=True)
class Began:
    """A service began, with a term of its own. ``live`` is the newest version whose bytes it found; what came after is lost."""

    term: int
    live: Commit | None
    gone: tuple[Commit, ...] = ()
    """Versions that were on disk, and are not."""
    found: tuple[Commit, ...] = ()
    """Versions that are on disk, whole, which nobody has lived to write down."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A component began. Of what its earlier incarnations still send nothing counts."""

    component: str
    role: Role
    incarnation: str
    epoch: int
    """Rises with each start of the component: its attempt, or the term of its claim."""
    branch: Commit | None
    """The version that a trainer went on from."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A version became visible, and live."""

    weights: Weights


@dataclass(frozen=True, slots=True)
class Stored:
    """The bytes of a version are on disk, durably."""

    at: Commit


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The live pointer went back to an older version; what came after it is lost."""

    to: Commit
    reason: str


@dataclass(frozen=True, slots=True)
class Saved:
    """The trainer's own checkpoint holds a version: it is in this generation of the run root."""

    at: Commit
    generation: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """The bytes of a version are no longer on disk."""

    at: Commit


@dataclass(frozen=True, slots=True)
class Held:
    """A trainer is about to bring restored weights: until it says so, nobody is given any."""

    component: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """A trainer that held has brought what it wanted to bring."""

    component: str


Entry: TypeAlias = Began | Joined | Committed | Stored | RolledBack | Saved | Dropped | Held | Resumed
