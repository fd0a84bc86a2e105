"""Know of a commit that is being brought which parts are here, and whether what is said again is the same."""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.service.core.catalogue import Catalogue
from milepost.service.core.events import Arrived, Begin, Caller, Refused
from milepost.service.core.records import Commit, Shard, Tier, Weights

_DISTINCT = "each slot once, its size in bytes from 0"


@dataclass(slots=True)
class Staging:
    """Be one commit on its way: visible to nobody."""

    begin: Begin
    tier: Tier
    deadline_ns: int
    """When it is given up, if no other part has come."""
    shards: dict[str, Shard] = field(default_factory=dict)
    is_being_written: bool = False
    """Whether it is being written down that it is visible. It cannot be given up then."""

    @property
    def caller(self) -> Caller:
        """Return who brings it."""
        return self.begin.caller

    @property
    def size_bytes(self) -> int:
        """Return how many bytes it takes once all are here."""
        return sum(size for _, size in self.begin.sizes)

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the slots whose bytes are not here yet."""
        return tuple(slot for slot, _ in self.begin.sizes if slot not in self.shards)

    def add(self, arrived: Arrived) -> Refused | None:
        """Take a shard in. One that is here already with another digest is somebody else's: it is refused."""
        shard = arrived.shard
        here = self.shards.get(shard.slot)
        if here == shard:
            return None
        if dict(self.begin.sizes).get(shard.slot) != shard.size_bytes:
            hint, facts = "begin with the slots and sizes that are then brought", {"key": self.begin.key, "slot": shard.slot}
            return Refused("not-announced", "this part was announced otherwise, or not at all", hint, facts)
        if here is not None:
            return differs(self.begin.key, shard.slot)
        self.shards[shard.slot] = shard
        return None


def differs(key: str, slot: str) -> Refused:
    """Refuse a part that is here already, and was another."""
    hint = "one process brings a slot; two that do are two trainers with one incarnation"
    return Refused("shard-differs", "this part is here already, with other bytes", hint, {"key": key, "slot": slot})


def check_sizes(begin: Begin) -> Refused | None:
    """Refuse what cannot be the parts of a version."""
    slots = [slot for slot, _ in begin.sizes]
    if not slots or len({*slots}) != len(slots) or any(size < 0 for _, size in begin.sizes):
        return Refused("bad-shards", "these are not the parts of a version", _DISTINCT, {"key": begin.key})
    return None


def same(begin: Begin, other: Begin | Weights) -> Refused | None:
    """Refuse a key that stood for something else before."""
    if isinstance(other, Begin):
        before = (other.step, {**dict(other.sizes)})
    else:
        before = (other.version.step, {shard.slot: shard.size_bytes for shard in other.shards})
    if before == (begin.step, dict(begin.sizes)):
        return None
    hint = "give each commit a key of its own"
    facts = {"key": begin.key, "step": begin.step, "step_before": before[0]}
    return Refused("key-reused", "another commit had this key", hint, facts)


def parent_of(catalogue: Catalogue, begin: Begin, last: Commit | None) -> Commit | Refused | None:
    """Return which version a commit was trained from; refuse one that was trained from a branch that is lost.

    ``last`` is what this trainer brought before, or went on from. A trainer that goes on from weights which were rolled back
    would make the lost branch live again, with all that the rollback was for.
    """
    parent = begin.parent or last
    facts = {"key": begin.key, "parent": str(parent), "live": str(catalogue.live)}
    if parent is not None and parent not in catalogue.weights:
        return Refused("unknown-version", "it was trained from a version that never was", "name one there is", facts)
    if parent in catalogue.lost:
        hint = "load the live version into the trainer, then commit with it as the parent"
        return Refused(
            "lost-branch", "it was trained from a version that was rolled back, or that another trainer has left", hint, facts
        )
    return parent
