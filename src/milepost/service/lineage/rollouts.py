"""Take batches in, give them out, and let go of them: each once on the surviving branch, or dropped with a reason.

Every method decides, and changes nothing: it returns the entry that is to be, and the shell applies that to the `Ledger` once it
is durable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from milepost.service.core.catalogue import Catalogue
from milepost.service.core.events import Refused
from milepost.service.core.records import Commit
from milepost.service.lineage.consumed import Consumed
from milepost.service.lineage.judging import Verdict, judge
from milepost.service.lineage.ledger import Ledger
from milepost.service.lineage.records import (
    Batch,
    Consuming,
    Covered,
    Freed,
    Outcome,
    Produced,
    Resolved,
    Retained,
    Source,
    Span,
)
from milepost.service.lineage.settings import Lineage


@dataclass(frozen=True, slots=True)
class Offered:
    """Be what a producer brings."""

    source: Source
    spans: tuple[Span, ...]
    size_bytes: int
    digest: str
    produced_ns: int
    status: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """It was accepted before, at this position, if its bytes are still here."""

    position: int | None


@dataclass(frozen=True, slots=True)
class Given:
    """These are to be trained, in this order; those are to be counted as dropped, with the same step."""

    batches: tuple[tuple[Batch, Verdict], ...]
    dropped: tuple[Outcome, ...]


class Rollouts:
    """Be the queue between those who sample and the one who trains."""

    def __init__(self, settings: Lineage, catalogue: Catalogue, ledger: Ledger) -> None:
        self._settings = settings
        self._catalogue = catalogue
        self._ledger = ledger

    def put(self, offered: Offered, now_ns: int) -> Produced | Known | Refused:
        """Take a batch in. Its bytes are here, durably; ``now_ns`` is wall time."""
        source, ledger = offered.source, self._ledger
        facts = {"producer": source.producer, "sequence": source.sequence}
        if (source.producer, source.incarnation) in ledger.former:
            hint = "end this process: another one goes on in its place"
            return Refused("superseded", "a later process of this name has put batches already", hint, facts)
        last = ledger.last.get(source.producer)
        is_same_process = last is not None and last.source.incarnation == source.incarnation
        expected = last.source.sequence + 1 if last is not None and is_same_process else 0
        if source.sequence < expected:
            position = ledger.sources.get(source)
            if position is not None and ledger.batches[position].digest != offered.digest:
                hint = "one process puts batches under a name; two that do are two samplers with one index"
                return Refused("batch-differs", "another batch was accepted under this number", hint, facts)
            return Known(position)
        if source.sequence > expected:
            hint = "put batches in order, and go on after the last that was accepted"
            return Refused("out-of-order", "a batch before this one has not come", hint, {**facts, "expected": expected})
        if not offered.spans:
            hint = "say which version made each sample: fetch says which it has handed out"
            return Refused("no-spans", "it is not said which weights made this batch", hint, facts)
        if ledger.bytes + offered.size_bytes > self._settings.limit_bytes:
            hint = "the trainer is slower than the samplers, or saves too seldom: wait, then put it again"
            facts |= {"waiting_bytes": ledger.bytes, "limit_bytes": self._settings.limit_bytes}
            return Refused("queue-full", "no more batches can be kept", hint, facts)
        batch = Batch(
            ledger.next_position,
            source,
            offered.spans,
            offered.size_bytes,
            offered.digest,
            offered.produced_ns,
            now_ns,
            offered.status,
        )
        return Produced(batch)

    def consume(self, incarnation: str, generation: int | None, step: int, consumed: Consumed) -> Consuming | Refused:
        """Let a trainer begin, which goes on from a checkpoint that says this; ``generation``: of which, if of any."""
        ledger = self._ledger
        facts = {"generation": generation, "step": step}
        covered = ledger.covered.get(generation) if generation is not None else None
        if covered is not None and covered.consumed != consumed:
            hint = "load the queue's position from the same generation as the weights"
            return Refused("consumed-differs", "this generation was published with other batches consumed", hint, facts)
        if consumed.end > ledger.next_position:
            hint = "the service's records are older than this checkpoint: bring service/ back from a newer copy"
            facts |= {"consumed": consumed.end, "produced": ledger.next_position}
            return Refused("ahead-of-queue", "more batches are consumed than were ever produced", hint, facts)
        gone = [position for position in consumed.open(ledger.next_position) if position not in ledger.batches]
        if gone:
            hint = "resume from a generation that the trainer still keeps"
            facts |= {"first": gone[0], "batches": len(gone)}
            return Refused("batches-gone", "batches that are to be trained from here are gone", hint, facts)
        return Consuming(incarnation, generation, step, consumed)

    def give(self, most: int, mine: Consumed, trained: Commit | None, step: int, now_ns: int, *, is_settled: bool) -> Given:
        """Return up to ``most`` batches for ``step`` to a trainer that has come to version ``trained``. See `judge`.

        ``mine`` is what it has consumed, and what it has in hand: its own word counts, and nothing is remembered of what it was
        given. An answer that was lost is given again, and a service that began anew gives nothing twice.
        """
        batches: list[tuple[Batch, Verdict]] = []
        dropped: list[Outcome] = []
        for position in mine.open(self._ledger.next_position):
            if len(batches) == most:
                break
            batch = self._ledger.batches[position]
            verdict = judge(batch, self._catalogue, trained, step, now_ns, self._settings, is_settled=is_settled)
            if verdict.kind == "drop":
                dropped.append(Outcome(position, "dropped", verdict.reason, 0.0))
            elif verdict.kind != "to verify":
                batches.append((batch, verdict))
        return Given(tuple(batches), tuple(dropped))

    def give_recorded(self, step: int, mine: Consumed) -> Given | None:
        """Return what this step was trained on before a trainer died, to be trained again so; None where nobody knows."""
        outcomes = self._ledger.steps.get(step)
        if outcomes is None or any(each.position in mine for each in outcomes):
            return None
        batches = tuple(
            (self._ledger.batches[each.position], Verdict("use" if each.weight == 1 else "down-weight", "recorded", each.weight))
            for each in outcomes
            if each.fate == "trained"
        )
        return Given(batches, tuple(each for each in outcomes if each.fate == "dropped"))

    def resolve(self, incarnation: str, step: int, outcomes: tuple[Outcome, ...]) -> Resolved | Known | Refused:
        """Hear what a step was trained on, and what was dropped. Once a step: said again, it is the same."""
        ledger = self._ledger
        facts: dict[str, object] = {"step": step}
        if incarnation != ledger.consumer:
            hint = "say where you go on from before you train"
            return Refused("not-the-trainer", "another trainer consumes now, or none does", hint, facts)
        if ledger.resolved_at.get(step) == incarnation:
            if ledger.steps[step] == outcomes:
                return Known(None)
            hint = "resolve once a step, all that it was trained on together"
            return Refused("step-differs", "this step was resolved otherwise before", hint, facts)
        positions = [each.position for each in outcomes]
        strange = [each for each in positions if each in ledger.frontier or each not in ledger.batches]
        if strange or len({*positions}) != len(positions):
            hint = "resolve each batch that was given, once"
            facts |= {"positions": strange[:8]}
            return Refused("not-open", "batches are resolved that are resolved already, that never were, or twice", hint, facts)
        return Resolved(incarnation, step, outcomes)

    def cover(self, generation: int, step: int, consumed: Consumed) -> Covered | Refused:
        """Hear of a published checkpoint of the trainer, and what was consumed in it. From any process: it is a fact."""
        if consumed.end > self._ledger.next_position:
            hint = "the service's records are older than this checkpoint: bring service/ back from a newer copy"
            facts = {"generation": generation, "consumed": consumed.end, "produced": self._ledger.next_position}
            return Refused("ahead-of-queue", "more batches are consumed than were ever produced", hint, facts)
        return Covered(generation, step, consumed)

    def retain(self, generations: Iterable[int]) -> Retained | None:
        """Hear to which generations the trainer can go back; None if nothing changes."""
        kept = frozenset(generations)
        is_known = kept == self._ledger.retained and self._ledger.covered.keys() <= kept
        return None if is_known else Retained(tuple(sorted(kept)))

    def free(self) -> Freed | None:
        """Return which batches nobody needs again: consumed now, and in every checkpoint that the trainer can go back to.

        None, too, while it is not known of one what was consumed in it.
        """
        ledger = self._ledger
        if not ledger.covered or not ledger.retained <= ledger.covered.keys():
            return None
        frontiers = [ledger.frontier.consumed, *(each.consumed for each in ledger.covered.values())]
        lowest = min(each.below for each in frontiers)
        beyond = set.intersection(*({*each.beyond} | {*range(lowest, each.below)} for each in frontiers))
        gone = tuple(sorted(position for position in ledger.batches if position < lowest or position in beyond))
        return Freed(gone) if gone else None
