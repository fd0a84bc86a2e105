"""A world around the queue: samplers that repeat themselves, a trainer with checkpoints that dies, a service that begins anew."""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.records import Version
from milepost.service.core.catalogue import Catalogue
from milepost.service.core.events import Refused
from milepost.service.core.records import Began, Commit, Committed, Shard, Weights
from milepost.service.lineage.consumed import Consumed, Frontier
from milepost.service.lineage.judging import Verdict
from milepost.service.lineage.ledger import Ledger
from milepost.service.lineage.records import Batch, LineageEntry, Outcome, Produced, Resolved, Source, Span
from milepost.service.lineage.rollouts import Given, Known, Offered, Rollouts
from milepost.service.lineage.settings import Lineage


def weights(number: int, step: int, parent: int | None, digest: str = "", term: int = 1) -> Weights:
    """Return a version of a catalogue of one term."""
    return Weights(
        at=Commit(term, number),
        version=Version("run", step, number),
        shards=(Shard("weights", 1, digest or f"d{number}"),),
        parent=None if parent is None else Commit(term, parent),
        producer="trainer",
        incarnation="i",
        key=f"k{number}",
    )


def catalogue(*versions: Weights) -> Catalogue:
    """Return a catalogue in which these came one after the other."""
    return Catalogue([Began(1, None), *map(Committed, versions)])


@dataclass
class Life:
    """Be what a trainer's process knows, and what a checkpoint of it holds."""

    incarnation: str
    step: int
    frontier: Frontier
    trained: tuple[int, ...]
    """What the weights have been trained on, in order: the surviving branch itself."""
    dropped: dict[int, str]
    held: list[tuple[Batch, Verdict]] = field(default_factory=list)


@dataclass
class World:
    """Run a queue, and look at all it says."""

    settings: Lineage = field(default_factory=Lineage)
    entries: list[LineageEntry] = field(default_factory=list)
    generations: dict[int, tuple[int, Consumed, tuple[int, ...], dict[int, str]]] = field(default_factory=dict)
    kept: list[int] = field(default_factory=list)
    accepted: dict[Source, int] = field(default_factory=dict)
    starts: int = 0

    def __post_init__(self) -> None:
        self.catalogue = catalogue(weights(1, 0, None))
        self.restart_service()
        self.restart_trainer(None)

    def restart_service(self) -> None:
        """Begin anew with what was written down."""
        self.ledger = Ledger(self.entries)
        self.rollouts = Rollouts(self.settings, self.catalogue, self.ledger)

    def write(self, entry: LineageEntry) -> None:
        self.entries.append(entry)
        self.ledger.apply(entry)

    def restart_trainer(self, generation: int | None) -> None:
        """Kill the trainer, and start one from a checkpoint."""
        self.starts += 1
        step, consumed, trained, dropped = (0, Consumed(), (), {}) if generation is None else self.generations[generation]
        self.life = Life(f"t{self.starts}", step, Frontier(consumed), trained, {**dropped})
        entry = self.rollouts.consume(self.life.incarnation, generation, step, consumed)
        assert not isinstance(entry, Refused), entry
        self.write(entry)

    def put(self, producer: str, incarnation: str, sequence: int, digest: str = "") -> Produced | Known | Refused:
        source = Source(producer, incarnation, sequence)
        offered = Offered(source, (Span(Commit(1, 1), 8),), 10, digest or f"{incarnation}-{sequence}", 0)
        answer = self.rollouts.put(offered, 0)
        if isinstance(answer, Produced):
            assert source not in self.accepted, "stored twice"
            self.accepted[source] = answer.batch.position
            self.write(answer)
        if isinstance(answer, Known) and answer.position is not None:
            assert self.accepted[source] == answer.position
        return answer

    def train(self, most: int, *, recorded: bool = False, hold: int = 0, answer_lost: bool = False) -> None:
        """Take batches, train on all but the first ``hold`` of those in hand, and say so."""
        life, step = self.life, self.life.step + 1
        given = self.give_recorded(step) if recorded else None
        if given is None:
            given = self.give(most)
            if answer_lost:  # it is asked again
                assert self.give(most) == given
        in_hand = [*life.held, *given.batches]
        life.held, batches = in_hand[:hold], in_hand[hold:]
        outcomes = (*(Outcome(batch.position, "trained", weight=v.weight) for batch, v in batches), *given.dropped)
        for outcome in outcomes:
            assert outcome.position not in life.trained, "trained twice on the surviving branch"
            assert outcome.position not in life.dropped, "dropped, and then again"
        life.step = step
        life.frontier.add(outcome.position for outcome in outcomes)
        life.trained += tuple(batch.position for batch, _ in batches)
        life.dropped |= {outcome.position: outcome.reason for outcome in given.dropped}
        entry = self.rollouts.resolve(life.incarnation, step, outcomes)
        assert isinstance(entry, Resolved), entry
        self.write(entry)
        if answer_lost:
            assert isinstance(self.rollouts.resolve(life.incarnation, step, outcomes), Known)

    @property
    def mine(self) -> Consumed:
        """Return what the trainer has consumed, and what it has in hand."""
        mine = Frontier(self.life.frontier.consumed)
        mine.add(batch.position for batch, _ in self.life.held)
        return mine.consumed

    def give(self, most: int) -> Given:
        return self.rollouts.give(most, self.mine, Commit(1, 1), 0, 0, is_settled=False)

    def give_recorded(self, step: int) -> Given | None:
        return self.rollouts.give_recorded(step, self.mine)

    def publish(self, keep: int, *, cover: bool) -> None:
        """Have the trainer publish a checkpoint, and say so or die before it can."""
        life, generation = self.life, max(self.generations, default=0) + 1
        self.generations[generation] = (life.step, life.frontier.consumed, life.trained, {**life.dropped})
        self.kept = [*self.kept, generation][-keep:]
        if cover:
            self.cover(generation)
            self.retain()

    def cover(self, generation: int) -> None:
        step, consumed, _, _ = self.generations[generation]
        entry = self.rollouts.cover(generation, step, consumed)
        assert not isinstance(entry, Refused), entry
        self.write(entry)

    def retain(self) -> None:
        entry = self.rollouts.retain(self.kept)
        if entry is not None:
            self.write(entry)
        freed = self.rollouts.free()
        if freed is not None:
            self.write(freed)

    def check(self) -> None:
        """Look whether what must always hold does."""
        produced = len(self.accepted)
        assert sorted(self.accepted.values()) == list(range(produced))
        assert self.ledger.bytes == 10 * len(self.ledger.batches)
        for generation in self.kept:
            consumed = self.generations[generation][1]
            missing = {*consumed.open(produced)} - self.ledger.batches.keys()
            assert not missing, f"generation {generation} needs batches that are gone: {missing}"
        assert self.ledger.bytes <= self.settings.limit_bytes
        life = self.life
        assert self.ledger.frontier.consumed == life.frontier.consumed
        assert {*life.trained} | life.dropped.keys() == {*range(produced)} - {*life.frontier.open(produced)}
        assert len({*life.trained}) == len(life.trained)
