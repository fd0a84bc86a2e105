"""Hold the words of lineage: a batch and which weights made it, what became of it, and what is written down about that for good.

Two things are known in two places, and each is believed where it is known. That a batch was produced, the service's journal
says. That it was trained, the trainer's own checkpoint says: what was trained after the last one never was, if training goes on
from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from milepost.service.core.records import Commit
from milepost.service.lineage.consumed import Consumed

Fate: TypeAlias = Literal["trained", "dropped"]


@dataclass(frozen=True, slots=True)
class Span:
    """Say which weights made how many of a batch's samples, in their order. Weights may change in the midst of a trajectory."""

    at: Commit
    samples: int


@dataclass(frozen=True, slots=True)
class Source:
    """Name a batch as its producer does: said again, it is the same one."""

    producer: str
    incarnation: str
    sequence: int
    """Rises by one with each batch of this process, from 0."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Be one batch, as it was accepted. Nothing of it ever changes."""

    position: int
    """Its place among all batches of the run, from 0."""
    source: Source
    spans: tuple[Span, ...]
    size_bytes: int
    digest: str
    produced_ns: int
    """Wall time at the producer: for people."""
    accepted_ns: int
    """Wall time at the service: its age is counted from here."""
    status: str = ""
    """What its producer needs to go on after it: seed, environment, position. A restarted one gets the last accepted."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Say what became of a batch."""

    position: int
    fate: Fate
    reason: str = ""
    """Of a dropped one: why. A word of the `judging`, or the trainer's own."""
    weight: float = 1.0
    """Of a trained one."""


# What is written down.


@dataclass(frozen=True, slots=True)
class Produced:
    """A batch is here, durably."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class Consuming:
    """A trainer goes on from a checkpoint of its own, in which this was consumed. What was consumed beyond is to come again."""

    incarnation: str
    generation: int | None
    """None: it begins anew, or goes on from what no checkpoint holds."""
    step: int
    consumed: Consumed


@dataclass(frozen=True, slots=True)
class Resolved:
    """A trainer has trained or dropped these, in this order, for this step."""

    incarnation: str
    step: int
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class Covered:
    """A checkpoint of the trainer is published, in which this was consumed. What it says is final as long as it is kept."""

    generation: int
    step: int
    consumed: Consumed


@dataclass(frozen=True, slots=True)
class Retained:
    """The trainer can go back to these generations, and to no others. Of some it may not be known yet what they consumed."""

    generations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Freed:
    """The bytes of these batches are gone."""

    positions: tuple[int, ...]


LineageEntry: TypeAlias = Produced | Consuming | Resolved | Covered | Retained | Freed
