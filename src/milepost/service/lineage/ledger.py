"""Know what all that was written down about batches adds up to."""

from __future__ import annotations

from collections.abc import Iterable

from milepost.errors import CorruptError
from milepost.service.lineage.consumed import Frontier
from milepost.service.lineage.records import (
    Batch,
    Consuming,
    Covered,
    Freed,
    LineageEntry,
    Outcome,
    Produced,
    Resolved,
    Retained,
    Source,
)


class Ledger:
    """Be the sum of all entries so far."""

    def __init__(self, entries: Iterable[LineageEntry] = ()) -> None:
        self.next_position = 0
        self.batches: dict[int, Batch] = {}
        """Those whose bytes are here, by position."""
        self.last: dict[str, Batch] = {}
        """The last accepted batch of each producer."""
        self.sources: dict[Source, int] = {}
        """The positions of those whose bytes are here."""
        self.consumer = ""
        """The incarnation of the trainer that consumes now; empty: none ever did."""
        self.frontier = Frontier()
        """What is consumed on the surviving branch."""
        self.steps: dict[int, tuple[Outcome, ...]] = {}
        """What each step was trained on, also those that a trainer which went back has yet to come to again."""
        self.resolved_at: dict[int, str] = {}
        """Which incarnation did."""
        self.covered: dict[int, Covered] = {}
        """The checkpoints of which it is known what was consumed, by generation, without those that are kept no longer."""
        self.retained: frozenset[int] = frozenset()
        """To which generations the trainer can go back, as it has last said."""
        self.former: set[tuple[str, str]] = set()
        """Producer and incarnation of all who were replaced."""
        self.bytes = 0
        for entry in entries:
            self.apply(entry)

    def recorded(self, step: int) -> dict[int, tuple[Outcome, ...]]:
        """Return what a trainer that died has trained after ``step``: one that goes on from there trains it again, in order."""
        return {at: self.steps[at] for at in sorted(self.steps) if at > step}

    def apply(self, entry: LineageEntry) -> None:
        """Add an entry. Raises `CorruptError` (kind ``bad-entry``), and changes nothing, for one that cannot follow."""
        wrong = self._wrong(entry)
        if wrong:
            raise CorruptError(
                "the records of batches do not follow from each other",
                kind="bad-entry",
                hint="the disk lost or bent one: restore service/ from a copy, or move it aside to begin a new one",
                entry=type(entry).__name__,
                wrong=wrong,
            )
        match entry:
            case Produced(batch):
                self.next_position = batch.position + 1
                before = self.last.get(batch.source.producer)
                if before is not None and before.source.incarnation != batch.source.incarnation:
                    self.former.add((before.source.producer, before.source.incarnation))
                self.batches[batch.position] = self.last[batch.source.producer] = batch
                self.sources[batch.source] = batch.position
                self.bytes += batch.size_bytes
            case Consuming(incarnation, generation, step, consumed):
                self.consumer, self.frontier = incarnation, Frontier(consumed)
                if generation is not None:
                    # Its trainer may have died after it was published, and before it could say so.
                    self.covered[generation] = Covered(generation, step, consumed)
            case Resolved(incarnation, step, outcomes):
                self._resolve(incarnation, step, outcomes)
            case Covered():
                self.covered[entry.generation] = entry
            case Retained(generations):
                self.retained = frozenset(generations)
                self.covered = {each: self.covered[each] for each in generations if each in self.covered}
                self._forget_steps()
            case Freed(positions):
                for position in positions:
                    batch = self.batches.pop(position)
                    del self.sources[batch.source]
                    self.bytes -= batch.size_bytes

    def _resolve(self, incarnation: str, step: int, outcomes: tuple[Outcome, ...]) -> None:
        if self.steps.get(step) != outcomes:
            # Another past than the one that was recorded: what followed from that will not come again.
            for later in [at for at in self.steps if at > step]:
                del self.steps[later], self.resolved_at[later]
        self.steps[step], self.resolved_at[step] = outcomes, incarnation
        self.frontier.add(outcome.position for outcome in outcomes)

    def _forget_steps(self) -> None:
        """Forget what no trainer comes to again: the steps before all that it can go back to."""
        if self.covered and self.retained <= self.covered.keys():
            oldest = min(each.step for each in self.covered.values())
            for step in [at for at in self.steps if at <= oldest]:
                del self.steps[step], self.resolved_at[step]

    def _wrong(self, entry: LineageEntry) -> str:
        """Return why an entry cannot follow those before it; empty if it can."""
        match entry:
            case Produced(batch):
                if batch.position != self.next_position:
                    return f"position {batch.position} where {self.next_position} follows"
                is_former = (batch.source.producer, batch.source.incarnation) in self.former
                return "it was accepted before" if batch.source in self.sources or is_former else ""
            case Consuming(_, _, _, consumed) | Covered(_, _, consumed):
                return "more is consumed than was ever produced" if consumed.end > self.next_position else ""
            case Resolved(incarnation, _, outcomes):
                if incarnation != self.consumer:
                    return "by a trainer that another has replaced"
                return "".join(f"no batch {each.position}" for each in outcomes if each.position >= self.next_position)
            case Retained():
                return ""
            case Freed(positions):
                return "".join(f"batch {position} is not here" for position in positions if position not in self.batches)
