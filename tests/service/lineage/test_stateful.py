"""Whoever dies, repeats itself or comes late: on the surviving branch each batch is trained or dropped, once. C20"""

from __future__ import annotations

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from milepost.service.core.events import Refused
from milepost.service.lineage.settings import Lineage
from tests.service.lineage.world import Commit, World


class Interleavings(RuleBasedStateMachine):
    @initialize(limit=st.sampled_from([0, 60, 10_000]))
    def begin(self, limit: int) -> None:
        self.world = World(Lineage(limit_bytes=limit))
        self.samplers = {"s0": ["a0"], "s1": ["b0"]}
        self.next: dict[str, int] = {}

    @rule(who=st.sampled_from(["s0", "s1"]), again=st.integers(0, 3))
    def put(self, who: str, again: int) -> None:
        incarnation = self.samplers[who][-1]
        sequence = max(self.next.get(incarnation, 0) - again, 0)
        answer = self.world.put(who, incarnation, sequence)
        if not isinstance(answer, Refused):
            self.next[incarnation] = max(self.next.get(incarnation, 0), sequence + 1)
        else:
            assert answer.kind == "queue-full"

    @rule(who=st.sampled_from(["s0", "s1"]), sequence=st.integers(0, 3))
    def put_late(self, who: str, sequence: int) -> None:
        """Hear of a process that is dead."""
        for incarnation in self.samplers[who][:-1]:
            # That one which has put nothing yet is dead, the service knows by its greetings, and the queue does not.
            if self.next.get(incarnation) and self.next.get(self.samplers[who][-1]):
                before = len(self.world.accepted)
                answer = self.world.put(who, incarnation, sequence)
                assert isinstance(answer, Refused)
                assert answer.kind == "superseded"
                assert len(self.world.accepted) == before

    @rule(who=st.sampled_from(["s0", "s1"]))
    def restart_sampler(self, who: str) -> None:
        self.samplers[who].append(f"{who}-{len(self.samplers[who])}")

    @rule(most=st.integers(1, 3), recorded=st.booleans(), losing=st.integers(0, 1), message_lost=st.booleans())
    def train(self, most: int, recorded: bool, losing: int, message_lost: bool) -> None:
        self.world.train(most, recorded=recorded, losing=losing, message_lost=message_lost)

    @rule(keep=st.integers(1, 3), cover=st.booleans())
    def publish(self, keep: int, cover: bool) -> None:
        self.world.publish(keep, cover=cover)

    @rule(data=st.data())
    def cover_late(self, data: st.DataObject) -> None:
        if self.world.generations:
            self.world.cover(data.draw(st.sampled_from(sorted(self.world.generations))))

    @rule()
    def retain(self) -> None:
        self.world.retain()

    @rule(data=st.data())
    def kill_trainer(self, data: st.DataObject) -> None:
        kept = self.world.kept
        self.world.restart_trainer(data.draw(st.sampled_from(kept)) if kept else None)

    @rule()
    def restart_service(self) -> None:
        self.world.restart_service()
        # What it had been given, and not resolved, the trainer asks for again.

    @rule()
    def drain(self) -> None:
        """Train all there is: none is forgotten."""
        self.world.train(10_000)
        assert not [*self.world.ledger.frontier.open(self.world.ledger.next_position)]

    @invariant()
    def all_is_well(self) -> None:
        self.world.check()


def test_whatever_happens_a_batch_counts_once() -> None:
    run_state_machine_as_test(Interleavings, settings=hypothesis_settings(max_examples=150, stateful_step_count=50))


def test_after_a_kill_the_same_steps_are_trained_on_the_same_batches() -> None:
    world = World()
    for sequence in range(6):
        world.put("s0", "a", sequence)
    world.train(1)
    world.publish(2, cover=True)
    world.train(2)
    world.train(1)
    before = world.life.trained
    world.restart_service()
    world.restart_trainer(1)
    assert world.life.trained == (0,)
    assert [*world.ledger.recorded(1)] == [2, 3]
    world.train(1, recorded=True)
    world.train(1, recorded=True)
    assert world.life.trained == before
    assert world.rollouts.give_recorded(4) is None


def test_a_trainer_that_goes_another_way_forgets_the_old_one() -> None:
    world = World()
    for sequence in range(4):
        world.put("s0", "a", sequence)
    world.publish(1, cover=True)
    world.train(2)
    world.train(1)
    world.restart_trainer(1)
    world.train(1)
    assert world.rollouts.give_recorded(2) is None
    assert [*world.ledger.recorded(0)] == [1]


def test_nothing_is_freed_while_one_generation_may_need_it() -> None:
    world = World()
    for sequence in range(3):
        world.put("s0", "a", sequence)
    world.publish(2, cover=True)
    world.train(3)
    world.publish(2, cover=True)
    assert sorted(world.ledger.batches) == [0, 1, 2]  # generation 1 has consumed none of them
    world.publish(2, cover=False)
    world.retain()
    assert sorted(world.ledger.batches) == [0, 1, 2]  # what generation 3 has consumed, nobody has said
    world.cover(3)
    world.retain()
    assert not world.ledger.batches


def test_what_a_trainer_says_is_looked_at() -> None:
    world = World()
    world.put("s0", "a", 0)
    world.put("s0", "a", 1)
    given = world.rollouts.give(1, Commit(1, 1), 0, 0, is_settled=False)
    assert [batch.position for batch, _ in given.batches] == [0]
    from milepost.service.lineage.consumed import Consumed
    from milepost.service.lineage.records import Outcome

    def kind(answer: object) -> str:
        assert isinstance(answer, Refused)
        assert answer.hint
        return answer.kind

    me, one = world.life.incarnation, Outcome(0, "trained")
    assert kind(world.rollouts.resolve(me, 1, (Outcome(1, "trained"),))) == "not-given"
    assert kind(world.rollouts.resolve(me, 1, (one, one))) == "not-given"
    assert kind(world.rollouts.resolve("t0", 1, (one,))) == "not-the-trainer"
    world.train(0)
    assert kind(world.rollouts.resolve(me, 1, (one,))) == "step-differs"
    assert kind(world.rollouts.consume("t9", None, 0, Consumed(3))) == "ahead-of-queue"
    assert kind(world.rollouts.cover(1, 0, Consumed(3))) == "ahead-of-queue"
    world.publish(1, cover=True)
    assert kind(world.rollouts.consume("t9", 1, 0, Consumed(1))) == "consumed-differs"
    assert kind(world.put("s0", "a", 3)) == "out-of-order"
    assert kind(world.put("s0", "a", 1, "other")) == "batch-differs"


def test_a_generation_that_nobody_keeps_cannot_be_gone_on_from() -> None:
    world = World()
    world.put("s0", "a", 0)
    world.publish(1, cover=True)
    world.train(1)
    world.publish(1, cover=True)
    answer = world.rollouts.consume("t9", 1, *world.generations[1][:2])
    assert isinstance(answer, Refused)
    assert answer.kind == "batches-gone"
