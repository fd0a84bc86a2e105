"""Claiming a root: terms, seals, settlements, and what a claim may delete (rules 4 to 8)."""

from __future__ import annotations

import itertools

import pytest

from milepost.errors import ConflictError, StoreError
from milepost.lifecycle.retain import Keep
from milepost.publish import layout
from milepost.publish.manifest import decode, encode
from milepost.publish.pins import pin
from milepost.publish.pointer import read_latest
from milepost.publish.term import ATTEMPTS, claim
from milepost.records import Fence, RunRecord, Settlement
from milepost.store.base import Buffer
from milepost.testing.faults import FaultStore, Killed
from tests.publish.world import WHO, World, blobs_of, done


def settlement(world: World, term: int) -> Settlement:
    name = layout.settlement(term)
    return decode(world.plain().read(name), Settlement, name)


def test_the_first_claim_makes_a_run_and_settles_on_nothing(world: World) -> None:
    a = world.open()
    assert (a.term, a.head, a.session.chain.next) == (1, 0, 1)
    assert settlement(world, 1) == Settlement(a.session.run_id, 1, 0, 1)
    assert world.view().head is None


def test_a_claim_takes_the_term_after_the_highest_that_any_record_names(world: World) -> None:  # rule 4
    a = world.open()
    a.save(1)
    run = a.session.run_id
    world.plain().create(layout.fence(5), encode(Fence(run, 5, "c", "h", "b", 1, "")))
    assert world.open().term == 6
    world.plain().create(layout.settlement(9), encode(Settlement(run, 9, 0, 0, dead=True)))
    assert world.open().term == 10


def test_a_term_is_not_used_again_when_only_a_manifest_is_left_to_name_it(world: World) -> None:  # rule 4
    a = world.open()
    a.save(1)
    b = world.open()
    b.save(2)
    for term in (1, 2):  # an operator's rm
        world.plain().delete(layout.fence(term))
        world.plain().delete(layout.settlement(term))
    assert world.open().term == 3


def test_a_dead_seal_is_made_for_each_lower_term_that_has_not_settled(world: World) -> None:  # rule 5
    store = world.process()
    store.kill("create", layout.settlement(1))
    with pytest.raises(Killed):
        world.open(store)
    b = world.open()
    assert (b.term, settlement(world, 1).dead, settlement(world, 2).dead) == (2, True, False)


def test_next_goes_on_from_earlier_settlements_when_their_numbers_left_no_file(world: World) -> None:  # rule 7
    a = world.open()
    a.save(1)
    world.open()
    with pytest.raises(ConflictError):
        a.save(2)  # void
    c = world.open()  # deletes it: nothing names 2 any more but this settlement
    assert (c.head, c.session.chain.next, world.numbers()) == (1, 3, [1])
    d = world.open()
    assert (d.head, d.session.chain.next) == (1, 3)
    assert d.save(3).number == 3


def test_a_claim_gives_up_after_losing_the_race_again_and_again(world: World) -> None:
    taken: list[int] = []

    class Rival(FaultStore):
        """Take every fence just before it is created."""

        def create(self, name: str, data: Buffer, *, label: str = "t0") -> bool:
            term = layout.fence_term(name)
            if term is not None:
                taken.append(term)
                self.inner.create(name, b"a rival's", label=label)
            return super().create(name, data, label=label)

    with pytest.raises(ConflictError) as caught:
        claim(Rival(world.plain()), world.clock(), WHO)
    assert caught.value.kind == "claim-race"
    assert taken == list(range(1, ATTEMPTS + 1))


def test_of_two_first_claims_at_once_one_makes_the_run_and_both_agree_on_it(world: World) -> None:
    slow = world.process()
    gate = slow.pause("create", layout.RUN)
    late = world.start(lambda: world.open(slow))
    gate.wait_until_reached()
    first = world.open()
    gate.release()
    assert done(late).session.run_id == first.session.run_id
    assert (first.term, done(late).term) == (1, 2)


def test_a_claim_deletes_what_is_dead_and_the_blobs_that_nobody_names(world: World) -> None:  # rule 8
    a = world.open(keep=Keep(last=2))
    a.save(1)
    a.save(2)
    a.store.kill("delete", layout.manifest(1))  # type: ignore[attr-defined]
    with pytest.raises(Killed):
        a.save(3)
    assert world.numbers() == [1, 2, 3]
    world.plain().open_blob("blobs/000004-t1-00000000000000aa.safetensors").write(b"half")
    world.plain().replace("blobs/LATEST-t1-00000000000000ab.tmp", b"half")
    b = world.open()
    assert world.numbers() == [2, 3]
    assert set(world.names(layout.BLOBS)) == blobs_of(*b.opened.claimed.view.live.values())


def test_a_claim_spares_what_a_pin_wants(world: World) -> None:  # rule 8
    a = world.open(keep=Keep(last=1))
    a.save(1, fixed=1)
    pin(world.plain(), 1)
    a.save(2, fixed=2)
    a.save(3, fixed=3)
    b = world.open()
    assert set(b.opened.claimed.view.live) == {1, 3}
    assert world.value(1) == 1


def test_a_claim_writes_the_pointer_that_its_predecessor_died_before(world: World) -> None:
    a = world.open()
    a.save(1)
    a.store.kill("replace", layout.LATEST)  # type: ignore[attr-defined]
    with pytest.raises(Killed):
        a.save(2)
    world.open()
    latest = read_latest(world.plain())
    assert latest is not None
    assert latest.generation == 2


def test_a_claim_whose_sweep_fails_goes_on_and_says_so(world: World) -> None:
    a = world.open()
    a.store.kill("create", layout.manifest(1))  # type: ignore[attr-defined]
    with pytest.raises(Killed):
        a.save(1)
    store = world.process()
    store.fail("delete", "blobs/*", StoreError("read-only", kind="read-only", retryable=False))
    b = world.open(store)
    assert b'"sweep-failed"' in world.plain().read(layout.events(2))
    world.check(b.save(1))


def test_a_claim_that_is_overtaken_before_its_sweep_goes_on_until_it_is_told(world: World) -> None:
    world.open(keep=Keep(last=1)).save(1)
    store = world.process()
    gate = store.pause("read", layout.manifest(1), nth=3)  # to point LATEST at it
    slow = world.start(lambda: world.open(store))
    gate.wait_until_reached()
    c = world.open(keep=Keep(last=1))
    c.save(2)
    c.save(3)
    gate.release()
    b = done(slow)
    with pytest.raises(ConflictError) as caught:
        b.save(9)
    assert (caught.value.kind, caught.value.facts["claimed_by_term"]) == ("fenced", 3)
    world.check()


@pytest.mark.parametrize("world", ["memory"], indirect=True)
def test_a_claimer_killed_at_any_operation_leaves_a_root_that_the_next_one_takes_over(world: World) -> None:
    a = world.open()
    a.save(1)
    a.save(2)
    a.store.kill("delete", layout.manifest(1))  # type: ignore[attr-defined]
    with pytest.raises(Killed):
        a.save(3)  # leaves a dropped generation and its blob to the sweep
    world.plain().create("blobs/000004-t1-00000000000000aa.safetensors.part", b"half")
    finished = False
    for number in itertools.count():
        trial = world.copy(number)
        dying = trial.process()
        dying.kill_before(number)
        try:
            trial.open(dying)
            finished = True
        except Killed:
            pass
        survivor = trial.open()
        assert (survivor.head, trial.numbers()) == (3, [2, 3])
        assert set(trial.names(layout.BLOBS)) == blobs_of(*trial.check().live.values())
        assert trial.value() == 3
        assert survivor.save(4).parent == 3
        if finished:
            break
    assert number > 20


def test_a_run_record_made_over_a_reset_that_is_under_way_is_refused(world: World) -> None:
    world.plain().create(layout.RESET, b"whatever it says")
    with pytest.raises(ConflictError) as caught:
        claim(world.process(), world.clock(), WHO)
    assert caught.value.kind == "was-reset"


def test_a_claimer_whose_run_was_replaced_meanwhile_is_told(world: World) -> None:
    world.open().save(1)
    store = world.process()
    gate = store.pause("create", layout.settlement(2), after=True)
    slow = world.start(lambda: claim(store, world.clock(), WHO))
    gate.wait_until_reached()
    world.plain().replace(layout.RUN, encode(RunRecord(1, "b" * 32, "")))
    gate.release()
    with pytest.raises(ConflictError) as caught:
        done(slow)
    assert caught.value.kind == "was-reset"
