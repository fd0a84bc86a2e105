"""Whoever dies, repeats itself or comes late: on the surviving branch each batch is trained or dropped, once. C20"""

from __future__ import annotations

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from milepost.errors import CorruptError, UsageError
from milepost.service.core.events import Refused
from milepost.service.lineage.consumed import Consumed, Frontier
from milepost.service.lineage.records import Freed, Outcome, Produced, Resolved, Source, Span
from milepost.service.lineage.rollouts import Offered
from milepost.service.lineage.settings import Lineage
from tests.service.lineage.world import Commit, Committed, World, weights


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

    @rule(most=st.integers(0, 3), recorded=st.booleans(), hold=st.integers(0, 2), answer_lost=st.booleans())
    def train(self, most: int, recorded: bool, hold: int, answer_lost: bool) -> None:
        self.world.train(most, recorded=recorded, hold=hold, answer_lost=answer_lost)

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
    assert world.give_recorded(3) is None  # it is done already
    assert world.give_recorded(4) is None


def test_a_trainer_that_goes_another_way_forgets_the_old_one() -> None:
    world = World()
    for sequence in range(4):
        world.put("s0", "a", sequence)
    world.publish(1, cover=True)
    world.train(2)
    world.train(1)
    world.restart_trainer(1)
    world.train(1)
    assert world.give_recorded(2) is None
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

    def kind(answer: object) -> str:
        assert isinstance(answer, Refused)
        assert answer.hint
        return answer.kind

    me, one = world.life.incarnation, Outcome(0, "trained")
    assert kind(world.rollouts.resolve(me, 1, (Outcome(2, "trained"),))) == "not-open"
    assert kind(world.rollouts.resolve(me, 1, (one, one))) == "not-open"
    assert kind(world.rollouts.resolve("t0", 1, (one,))) == "not-the-trainer"
    world.train(0)
    world.train(1)
    assert kind(world.rollouts.resolve(me, 3, (one,))) == "not-open"
    assert kind(world.rollouts.resolve(me, 1, (one,))) == "step-differs"
    assert kind(world.rollouts.consume("t9", None, 0, Consumed(3))) == "ahead-of-queue"
    assert kind(world.rollouts.cover(1, 0, Consumed(3))) == "ahead-of-queue"
    world.publish(1, cover=True)
    assert kind(world.rollouts.consume("t9", 1, 0, Consumed(2))) == "consumed-differs"
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


def test_what_is_consumed_out_of_order_is_freed_where_all_have_consumed_it() -> None:
    world = World()
    for sequence in range(4):
        world.put("s0", "a", sequence)
    world.train(4, hold=2)
    world.publish(1, cover=False)
    world.train(0)
    world.cover(1)
    world.retain()
    assert sorted(world.ledger.batches) == [0, 1]
    world.publish(2, cover=True)
    assert sorted(world.ledger.batches) == [0, 1]
    world.publish(1, cover=True)
    assert not world.ledger.batches
    assert world.ledger.bytes == 0


def test_a_trainer_that_died_before_it_could_say_what_it_saved_is_believed_when_it_comes_back() -> None:
    world = World()
    world.put("s0", "a", 0)
    world.train(1)
    world.publish(1, cover=False)
    world.retain()
    assert world.ledger.batches
    world.restart_trainer(1)
    world.retain()
    assert not world.ledger.batches


def test_steps_that_no_trainer_comes_to_again_are_forgotten() -> None:
    world = World()
    for _ in range(3):
        world.train(0)
        world.publish(2, cover=True)
    assert [*world.ledger.steps] == [3]  # it can go back to what was saved after steps 2 and 3
    world.train(0)
    world.publish(2, cover=False)
    world.retain()
    assert [*world.ledger.steps] == [3, 4]


def test_a_batch_that_says_not_which_weights_made_it_is_refused() -> None:
    world = World()
    answer = world.rollouts.put(Offered(Source("s0", "a", 0), (), 1, "d", 0), 0)
    assert isinstance(answer, Refused)
    assert answer.kind == "no-spans"


def test_data_that_is_yet_to_be_verified_waits_without_holding_up_what_came_after() -> None:
    world = World()
    world.catalogue.apply(Committed(weights(2, 1, 1)))
    offered = Offered(Source("s0", "a", 0), (Span(Commit(1, 2), 8),), 10, "d", 0)
    entry = world.rollouts.put(offered, 0)
    assert isinstance(entry, Produced)
    world.accepted[offered.source] = 0
    world.write(entry)
    world.put("s0", "a", 1)
    assert [batch.position for batch, _ in world.give(9).batches] == [1]
    assert not world.give(9).dropped


def test_records_that_do_not_follow_from_each_other_are_refused_and_change_nothing() -> None:
    world = World()
    world.put("s0", "a", 0)
    first = world.entries[-1]
    world.put("s0", "b", 0)
    for entry in (first, Freed((7,)), Resolved("t0", 1, ()), Resolved("t1", 1, (Outcome(2, "trained"),))):
        with pytest.raises(CorruptError) as caught:
            world.ledger.apply(entry)
        assert caught.value.kind == "bad-entry"
        assert world.ledger.next_position == 2


def test_what_is_consumed_is_counted_once() -> None:
    frontier = Frontier(Consumed(2, (4,)))
    frontier.add([0, 1, 4, 3])
    assert frontier.consumed == Consumed(2, (3, 4))
    frontier.add([2])
    assert frontier.consumed == Consumed(5)
    for below, beyond in ((-1, ()), (2, (1,)), (2, (2,)), (0, (3, 3)), (0, (4, 3))):
        with pytest.raises(UsageError):
            Consumed(below, beyond)


def test_a_trainer_that_begins_anew_finds_what_others_have_consumed() -> None:
    world = World()
    world.put("s0", "a", 0)
    world.train(1)
    world.publish(1, cover=False)
    world.cover(1)
    world.restart_trainer(None)
    world.retain()
    world.train(1)
    assert world.life.trained == (0,)
