"""The newest manifest cannot be read: what it dropped may be being deleted, by a writer that sleeps (rule 3a)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from milepost.engine import oneshot
from milepost.engine.capture import Staged
from milepost.engine.room import survey
from milepost.errors import ConflictError, NotFoundError, StoreError, UsageError
from milepost.lifecycle.recover import choose
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.verify import verify
from milepost.publish import layout
from milepost.publish.manifest import decode, encode
from milepost.publish.pins import pin
from milepost.publish.retire import drop_unreadable
from milepost.records import Manifest, Settlement, Summary
from milepost.testing.faults import FaultStore
from tests.publish.summaries import generation
from tests.publish.world import World, Writer, blobs_of, done

M3 = layout.manifest(3)


def tear(world: World, name: str) -> None:
    world.plain().replace(name, b"torn")


def torn_head(world: World, keep: Keep | None = None) -> list[Manifest]:
    """Publish 1, 2 and 3, which drops nothing, and tear the manifest of 3; return all three."""
    a = world.open(keep=keep or Keep(last=3))
    saved = [a.save(value, fixed=value) for value in (1, 2, 3)]
    tear(world, M3)
    return saved


def settlement(world: World, term: int) -> Settlement:
    name = layout.settlement(term)
    return decode(world.plain().read(name), Settlement, name)


# --- recorded, and for good ---------------------------------------------------------------------------------------------


def test_a_claim_records_how_far_generations_may_be_half_deleted_and_manifests_repeat_it(world: World) -> None:
    torn_head(world)
    b = world.open()
    assert (b.head, b.session.chain.unsure, b.session.chain.barrier) == (2, 3, 3)
    assert settlement(world, 2).unsure == 3
    assert b.save(4).term_unsure == 3


def test_what_is_unsure_stays_so_through_further_claims_though_newer_generations_stand_above_it(world: World) -> None:
    old = blobs_of(*torn_head(world))
    world.open(keep=Keep(last=1)).save(4)
    for term in (3, 4):
        c = world.open(keep=Keep(last=1))
        assert (c.head, c.session.chain.unsure, c.session.chain.barrier) == (term + 1, 3, 3)
        assert settlement(world, term).unsure == 3
        c.save(term + 2)
    assert old <= set(world.names(layout.BLOBS))
    assert {1, 2, 3} <= set(world.numbers())
    tear(world, layout.settlement(2))
    tear(world, layout.settlement(4))  # a manifest of its term repeats it
    assert world.view().unsure == 3


def test_an_unreadable_manifest_below_the_head_bars_deletes_and_makes_nothing_unsure(world: World) -> None:
    a = world.open(keep=Keep(last=3))
    saved = [a.save(value, fixed=7) for value in (1, 2, 3)]
    tear(world, layout.manifest(2))
    b = world.open(keep=Keep(last=3))
    assert (b.head, b.session.chain.unsure, b.session.chain.barrier) == (3, 0, 2)
    fourth = b.save(4, fixed=7)
    assert blobs_of(fourth) & blobs_of(*saved)
    assert pin(world.plain(), 1).number == 1


# --- nothing new may name its blobs -------------------------------------------------------------------------------------


def test_the_first_save_after_it_writes_every_byte_anew_and_the_next_one_shares_again(world: World) -> None:
    saved = torn_head(world)
    b = world.open(keep=Keep(last=3))
    fourth = b.save(4, fixed=2)  # as in generation 2, on which it stands
    assert (fourth.parent, fourth.rollback_to) == (2, None)
    assert not blobs_of(fourth) & blobs_of(*saved)
    fifth = b.save(5, fixed=2)
    assert blobs_of(fifth) & blobs_of(fourth)
    world.check(fourth, fifth)


def test_it_is_the_generation_that_counts_and_not_the_head(world: World) -> None:
    saved = torn_head(world)
    world.open(keep=Keep(last=3)).save(4, fixed=2)
    c = world.open(keep=Keep(last=3))
    c.stand_on(1)
    fifth = c.save(5, fixed=1)
    assert (fifth.parent, fifth.rollback_to) == (4, 1)
    assert not blobs_of(fifth) & blobs_of(*saved)
    world.check(fifth)


@pytest.mark.parametrize("number", [1, 2])
def test_it_cannot_be_pinned(world: World, number: int) -> None:
    torn_head(world)
    for again in (False, True):
        if again:
            world.open(keep=Keep(last=3)).save(4)  # recorded by now
        with pytest.raises(NotFoundError) as caught:
            pin(world.plain(), number)
        assert (caught.value.kind, caught.value.facts["generation"]) == ("unsure", number)
        assert world.names(layout.PINS) == []
    assert pin(world.plain(), 4).number == 4


def test_a_pin_whose_wish_was_there_when_the_manifest_rotted_fails(world: World) -> None:
    a = world.open()
    a.save(1)
    a.save(2)
    p_store = world.process()
    looking = p_store.pause("list", layout.GENERATIONS, nth=2)
    p = world.start(lambda: pin(p_store, 1))
    looking.wait_until_reached()
    a.save(3)
    tear(world, M3)
    looking.release()
    with pytest.raises(NotFoundError) as caught:
        done(p)
    assert caught.value.kind == "unsure"
    assert world.names(layout.PINS) == []


def test_a_pin_that_was_promised_before_stays_a_promise(world: World) -> None:
    a = world.open()
    a.save(1)
    a.save(2)
    pin(world.plain(), 1)
    a.save(3)
    tear(world, M3)
    with pytest.raises(NotFoundError):
        pin(world.plain(), 1)
    assert world.view().pins[1].state == "held"
    world.open().save(4)
    assert {1, 4} <= set(world.check().live)


def test_a_rollback_to_it_copies_what_it_has_under_new_names(world: World) -> None:
    saved = torn_head(world)
    rolled = oneshot.rollback(world.plain(), 1)
    assert (rolled.number, rolled.parent, rolled.rollback_to, rolled.step, rolled.reason) == (4, 2, 1, 1, "rollback")
    assert set(rolled.keep) == {1, 2, 4}
    assert not blobs_of(rolled) & blobs_of(*saved)
    for name in blobs_of(saved[0]):
        world.plain().delete(name)
    assert world.value() == 1
    again = oneshot.rollback(world.plain(), 2)
    assert oneshot.rollback(world.plain(), 4).blobs == rolled.blobs  # that one is not unsure
    assert world.value(again.number) == 2


def test_there_is_no_trim_while_it_is_the_base(world: World) -> None:
    torn_head(world)
    b = world.open(keep=Keep(last=3))
    assert isinstance(b.store, FaultStore)
    assert survey(b.session, Staged()).going == ()
    b.store.fail("write_blob", "blobs/000004*", StoreError("full", kind="disk-full", retryable=False))
    before = world.numbers(), world.names(layout.BLOBS)
    with pytest.raises(StoreError) as caught:
        b.save(4)
    assert caught.value.kind == "disk-full"
    assert (world.numbers(), world.names(layout.BLOBS)) == before
    world.check(b.save(4))
    b.save(5)
    b.save(6)
    assert survey(b.session, Staged()).going


# --- what is said of it -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropped", [False, True], ids=["while it is there", "once it was given up"])
def test_blobs_that_are_missing_are_half_deleted_and_no_damage(world: World, dropped: bool) -> None:
    saved = torn_head(world)
    if dropped:
        oneshot.drop(world.plain(), 3)
    world.plain().delete(saved[0].blobs[0].name)
    flipped = bytearray(world.plain().read(saved[1].blobs[0].name))
    flipped[-1] ^= 1
    world.plain().replace(saved[1].blobs[0].name, bytes(flipped))
    report = verify(world.plain())
    states = {each.number: each.state for each in report.generations}
    assert states == {1: "half deleted", 2: "damaged"} | ({} if dropped else {3: "unreadable"})
    assert {problem.generation for problem in report.problems} == {2} | (set() if dropped else {3})


def test_missing_blobs_are_damage_where_nothing_is_unsure(world: World) -> None:
    a = world.open()
    first = a.save(1)
    world.plain().delete(first.blobs[0].name)
    [only] = verify(world.plain()).generations
    assert only.state == "damaged"


# --- the old writer sleeps, and goes on deleting ------------------------------------------------------------------------


GOES_ON = {
    "the manifest": ("delete", layout.manifest(2)),
    "the sync": ("sync", layout.GENERATIONS),
    "a blob": ("delete", "blobs/000002*"),
}


def dropping_2(world: World, phase: str) -> Callable[[], object]:
    """Let A publish 3, which drops 2, and stand in the middle of deleting it; 3 rots. Return what lets A go on."""
    a = world.open(keep=Keep(last=1))
    a.save(1, fixed=1)
    a.save(2, fixed=2)
    assert isinstance(a.store, FaultStore)
    gate = a.store.pause(*GOES_ON[phase])
    third = world.start(lambda: a.save(3, fixed=3))
    gate.wait_until_reached()
    tear(world, M3)

    def go_on() -> object:
        gate.release()
        return done(third)

    return go_on


def resume_and_save(world: World) -> Summary:
    b = world.open(keep=Keep(last=1))
    assert b.head == 2
    return b.save(20, fixed=2)


def roll_back(world: World) -> Summary:
    b = world.open(keep=Keep(last=2))
    b.save(20, fixed=2)
    return oneshot.rollback(world.plain(), 2)


@pytest.mark.parametrize("build", [resume_and_save, roll_back])
def test_an_old_writer_deletes_nothing_that_counts_of_what_was_built_on_what_it_had_dropped(
    world: World, build: Callable[[World], Summary]
) -> None:
    go_on = dropping_2(world, "the manifest")
    with pytest.raises(NotFoundError):
        pin(world.plain(), 2)
    saved = build(world)
    go_on()
    view = world.check()
    assert view.head is not None
    assert view.head.write_id == saved.write_id
    assert world.value() in (2, 20)
    c = world.open()
    assert c.head == saved.number
    world.check(c.save(30))


@pytest.mark.parametrize("phase", ["the sync", "a blob"])
def test_what_an_old_writer_has_deleted_half_is_not_taken_for_a_fresh_start(world: World, phase: str) -> None:
    go_on = dropping_2(world, phase)
    before = world.names(layout.BLOBS)
    for _ in range(2):
        with pytest.raises(Exception, match="none of its manifests can be read"):
            world.open()
    assert world.names(layout.BLOBS) == before
    go_on()


def test_a_generation_that_lost_its_blobs_meanwhile_is_passed_over(world: World) -> None:
    a = world.open(keep=Keep(last=2))
    saved = [a.save(value, fixed=value) for value in (1, 2)]
    a.save(3, fixed=3)
    tear(world, M3)
    world.plain().create(layout.manifest(1), encode(saved[0]))  # its delete was not durable, and the power failed
    b = world.open()
    assert set(b.opened.claimed.view.live) == {1, 2}
    world.plain().delete(saved[1].blobs[0].name)
    with pytest.raises(Exception, match="none that may be loaded"):
        choose(world.plain(), world.view())
    assert b.save(4).number == 4  # its state is its own
    assert {each.number: each.state for each in verify(world.plain()).generations}[2] == "half deleted"


# --- giving it up -------------------------------------------------------------------------------------------------------


def drop(world: World, number: int) -> Writer:
    b = world.open(keep=Keep(last=1))
    drop_unreadable(b.store, b.opened.claimed, number)
    return b


def test_to_give_it_up_lifts_the_barrier_and_not_the_doubt(world: World) -> None:
    saved = torn_head(world)
    drop(world, 3)
    assert world.numbers() == [1, 2]
    view = world.view()
    assert (view.barrier, view.unsure) == (0, 3)
    c = world.open(keep=Keep(last=1))
    assert (c.session.chain.barrier, c.session.chain.unsure, c.session.chain.next) == (0, 3, 4)
    assert not blobs_of(saved[2]) & set(world.names(layout.BLOBS))  # what it alone had named was swept
    fourth = c.save(4, fixed=2)
    assert fourth.number == 4
    assert not blobs_of(fourth) & blobs_of(*saved)
    c.save(5, fixed=2)
    assert world.numbers() == [5]
    assert set(world.names(layout.BLOBS)) == blobs_of(*world.check().live.values())


@pytest.mark.parametrize(("number", "kind"), [(1, "readable"), (2, "readable"), (4, "no-such-generation")])
def test_what_can_be_read_or_is_not_there_is_not_given_up(world: World, number: int, kind: str) -> None:
    torn_head(world)
    before = world.numbers()
    for drops in (lambda: drop(world, number), lambda: oneshot.drop(world.plain(), number)):
        with pytest.raises((UsageError, NotFoundError)) as caught:
            drops()
        assert (caught.value.kind, caught.value.facts["generation"]) == (kind, number)
    assert world.numbers() == before


def test_a_slip_of_the_finger_ends_no_claim(world: World) -> None:
    a = world.open()
    a.save(1)
    for action in (lambda: oneshot.drop(world.plain(), 1), lambda: oneshot.drop(world.plain(), 9, take_over=True)):
        with pytest.raises((UsageError, NotFoundError)):
            action()
    world.check(a.save(2))


def test_it_is_given_up_only_while_nobody_trains(world: World) -> None:
    torn_head(world)
    with world.plain().guard(wait_s=0.0, take_over=False), pytest.raises(ConflictError):
        oneshot.drop(world.plain(), 3)
    assert 3 in world.numbers()
    oneshot.drop(world.plain(), 3)
    assert world.numbers() == [1, 2]


def test_a_manifest_under_a_wrong_number_can_be_given_up_and_another_runs_cannot(world: World) -> None:
    a = world.open(keep=Keep(last=3))
    a.save(1)
    a.save(2)
    world.plain().create(layout.manifest(7), world.plain().read(layout.manifest(1)))
    world.plain().create(layout.manifest(8), encode(generation(3, run_id="f" * 32)))
    assert (world.view().barrier, world.view().unsure, world.view().foreign) == (7, 7, {8})
    with pytest.raises(UsageError):
        drop(world, 8)
    b = drop(world, 7)
    assert world.numbers() == [1, 2, 8]
    assert b.session.chain.next == 9
    c = world.open()
    assert (c.session.chain.barrier, c.session.chain.unsure) == (0, 7)
    world.check(c.save(9))
