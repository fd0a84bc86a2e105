"""The traces of docs/INVARIANTS.md, replayed: the shortest sequence of events that loses data without each rule.

A, B, C are writers in the order of their claims; P pins, R reads. Generations 1 and 2 are A's. Nobody holds a guard, and
nobody sleeps: a process stands at the door of the operation named until the others have done what the trace says.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import pytest

from milepost.engine import oneshot
from milepost.errors import ConflictError, NotFoundError, StoreError
from milepost.lifecycle.retain import Keep
from milepost.publish import layout
from milepost.publish.hints import read_latest
from milepost.publish.pins import pin, unpin
from milepost.publish.view import read
from milepost.records import Summary
from milepost.testing.faults import FaultStore, Gate, Killed
from tests.publish.world import World, Writer, blobs_of, done

M1, M2, M3, M4 = (layout.manifest(number) for number in (1, 2, 3, 4))
FENCE_2, FENCE_3 = layout.fence(2), layout.fence(3)
SETTLEMENT_2 = layout.settlement(2)


def two_generations(world: World, keep: Keep | None = None) -> Writer:
    """Let A claim and save 1 and 2."""
    writer = world.open(keep=keep)
    writer.save(1)
    writer.save(2)
    return writer


def faults(writer: Writer) -> FaultStore:
    assert isinstance(writer.store, FaultStore)
    return writer.store


def is_fenced(action: Callable[[], object]) -> None:
    with pytest.raises(ConflictError) as caught:
        action()
    assert caught.value.kind == "fenced"


# --- V1: the fence comes first, and only what is listed after it counts (rules 4 to 7) ----------------------------------


def test_v1_a_save_acknowledged_just_before_the_fence_is_the_head_of_the_claim(world: World) -> None:
    a = two_generations(world)
    b_store = world.process()
    gate = b_store.pause("create", FENCE_2)
    b = world.start(lambda: world.open(b_store))
    gate.wait_until_reached()
    third = a.save(3)
    gate.release()
    assert done(b).head == 3
    world.check(third)
    assert done(b).save(4).parent == 3


def test_v1_a_claimer_that_lost_the_race_for_its_term_starts_from_what_the_winner_saved(world: World) -> None:
    two_generations(world)
    c_store = world.process()
    gate = c_store.pause("create", FENCE_2)
    c = world.start(lambda: world.open(c_store))
    gate.wait_until_reached()
    b = world.open()
    third, fourth = b.save(3), b.save(4)
    assert world.numbers() == [3, 4]
    gate.release()
    assert (done(c).term, done(c).head) == (3, 4)
    world.check(third, fourth)


# --- V2: what a fenced writer still deletes was dropped before the claim ------------------------------------------------


def test_v2_nobody_rolls_back_to_a_generation_that_a_fenced_writer_is_deleting(world: World) -> None:
    a = two_generations(world)
    b_store = world.process()
    fencing = b_store.pause("create", FENCE_2)
    b_open = world.start(lambda: world.open(b_store))
    fencing.wait_until_reached()
    deleting = faults(a).pause("delete", M1)
    third = world.start(lambda: a.save(3))
    deleting.wait_until_reached()
    fencing.release()
    b = done(b_open)
    with pytest.raises(NotFoundError):
        b.rollback(1)
    deleting.release()
    done(third)
    fourth = b.save(4)
    assert fourth.parent == 3
    world.check(fourth)


# --- V3: generations are listed before terms (rule 19), and a fence without a settlement is said (rule 3) ---------------


def claimer_paused_before_its_settlement(world: World, a: Writer) -> tuple[Gate, Future[Writer]]:
    """Let B fence and list (head 2) and stand there, while A creates generation 3 and is told that it is fenced."""
    b_store = world.process()
    gate = b_store.pause("create", SETTLEMENT_2)
    b = world.start(lambda: world.open(b_store))
    gate.wait_until_reached()
    is_fenced(lambda: a.save(3))
    return gate, b


def test_v3_a_reader_that_overlaps_a_claim_does_not_take_for_settled_what_the_claim_makes_void(world: World) -> None:
    a = two_generations(world)
    r_store = world.process()
    between = r_store.pause("list", "[gt]e*", after=True)  # whichever of generations/ and terms/ it lists first
    reader = world.start(lambda: read(r_store))
    between.wait_until_reached()
    gate, b = claimer_paused_before_its_settlement(world, a)
    gate.release()
    assert done(b).head == 2
    between.release()
    view = done(reader)
    assert view.head is not None
    assert (view.head.number, view.undecided) == (2, False)


def test_v3_a_reader_between_fence_and_settlement_is_told_that_the_head_is_undecided(world: World) -> None:
    a = two_generations(world)
    gate, b = claimer_paused_before_its_settlement(world, a)
    view = world.view()
    assert view.head is not None
    assert (view.head.number, view.undecided) == (3, True)
    gate.release()
    assert done(b).head == 2
    view = world.view()
    assert view.head is not None
    assert (view.head.number, view.undecided, view.void) == (2, False, {3})


# --- V4: a settlement that comes late settles nothing (rules 5 and 7) ---------------------------------------------------


def test_v4_a_claimer_that_wakes_after_a_higher_one_settled_makes_nothing_void(world: World) -> None:
    a = two_generations(world)
    gate, b = claimer_paused_before_its_settlement(world, a)
    c = world.open()
    assert (c.term, c.head) == (3, 3)
    gate.release()
    is_fenced(lambda: done(b))
    assert world.view().void == frozenset()
    fourth = c.save(4)
    assert fourth.parent == 3
    world.check(fourth)


def test_v4_a_settlement_that_got_there_before_the_seal_counts(world: World) -> None:
    a = two_generations(world)
    gate, b = claimer_paused_before_its_settlement(world, a)
    c_store = world.process()
    sealing = c_store.pause("create", SETTLEMENT_2)
    c_open = world.start(lambda: world.open(c_store))
    sealing.wait_until_reached()
    gate.release()
    assert done(b).head == 2
    sealing.release()
    c = done(c_open)
    assert (c.term, c.head) == (3, 2)
    saved = c.save(4)
    assert (saved.number, saved.parent) == (4, 2)
    world.check(saved)


# --- V5: void is what lies above the head, not what lies above the next number (rules 1 and 7) --------------------------


def test_v5_a_paused_writer_that_takes_a_freed_number_is_still_void(world: World) -> None:
    a = two_generations(world)
    b = world.open()
    is_fenced(lambda: a.save(3))
    creating = faults(b).pause("create", M3)
    late = world.start(lambda: b.save(33))
    creating.wait_until_reached()
    c = world.open()  # deletes A's void manifest 3, and B's blob
    assert (c.head, c.opened.claimed.settlement.next) == (2, 4)
    assert world.numbers() == [1, 2]
    creating.release()
    is_fenced(lambda: done(late))
    assert world.numbers() == [1, 2, 3]
    assert world.view().void == {3}
    saved = c.save(4)
    assert (saved.number, saved.parent) == (4, 2)
    world.check(saved)


# --- V6: a number is never used twice (rule 7, next) --------------------------------------------------------------------


def test_v6_a_number_that_was_freed_is_not_used_again_so_a_late_delete_hits_nobody(world: World) -> None:
    a = two_generations(world)
    world.open()  # B, t2, settles on 2
    is_fenced(lambda: a.save(3))
    c_store = world.process()
    deleting = c_store.pause("delete", M3)
    c = world.start(lambda: world.open(c_store))
    deleting.wait_until_reached()
    world.open()  # D, t4, deletes it first
    e = world.open()  # t5, sees no manifest 3 any more
    saved = e.save(5)
    deleting.release()
    done(c)
    assert saved.number == 4
    world.check(saved)


# --- V7: manifests name what they keep, so a dead one does not come back (rule 2) ---------------------------------------


def test_v7_a_delayed_create_that_lands_after_its_generation_was_retired_stays_dead(world: World) -> None:
    a = two_generations(world)
    late = faults(a).delay("create", M3)
    a.save(3)  # timed out, read back, absent, created anew
    saved = [a.save(value) for value in (4, 5, 6)]
    assert world.numbers() == [5, 6]
    assert faults(a).deliver(late) is True
    view = world.check(*saved[1:])
    assert set(view.live) == {5, 6}
    b = world.open()
    assert b.head == 6
    assert world.numbers() == [5, 6]
    world.check(b.save(7))


def test_v7_a_fenced_writer_that_repeats_a_lost_create_brings_back_nothing(world: World) -> None:
    a = two_generations(world)
    faults(a).lose_answer("create", M3)
    looking = faults(a).pause("read", M3)
    third = world.start(lambda: a.save(3))
    looking.wait_until_reached()
    b = world.open()
    assert b.head == 3
    saved = [b.save(value) for value in (4, 5, 6)]
    assert world.numbers() == [5, 6]
    looking.release()  # it finds nothing, and creates 3 once more: below the head that B settled on, so not void
    is_fenced(lambda: done(third))
    assert world.numbers() == [3, 5, 6]
    assert world.view().void == frozenset()
    view = world.check(*saved[1:])
    assert set(view.live) == {5, 6}


# --- V8: a void occupant of a number stops nobody (rule 11) -------------------------------------------------------------


def test_v8_a_void_manifest_in_the_way_is_stepped_over(world: World) -> None:
    a = two_generations(world)
    b = world.open()
    is_fenced(lambda: a.save(3))
    saved = b.save(30)
    assert (saved.number, saved.parent) == (4, 2)
    world.check(saved)
    assert world.value() == 30


# --- V9: the sweep takes no rightful blob (rules 6 and 8) ---------------------------------------------------------------


def test_v9_a_claimer_takes_no_blob_of_a_writer_that_it_has_not_fenced(world: World) -> None:
    a = two_generations(world)
    creating = faults(a).pause("create", M3)
    third = world.start(lambda: a.save(3))
    creating.wait_until_reached()
    b_store = world.process()
    fencing = b_store.pause("create", FENCE_2)
    b = world.start(lambda: world.open(b_store))
    fencing.wait_until_reached()
    creating.release()
    acknowledged = done(third)
    fencing.release()
    assert done(b).head == 3
    world.check(acknowledged)


def test_v9_a_sweep_that_was_paused_takes_no_blob_of_a_later_claimer(world: World) -> None:
    a = two_generations(world)
    faults(a).kill("create", M3)
    with pytest.raises(Killed):
        a.save(3)  # leaves a blob
    b_store = world.process()
    settled = b_store.pause("create", SETTLEMENT_2, after=True)
    b = world.start(lambda: world.open(b_store))
    settled.wait_until_reached()
    c = world.open()
    saved = c.save(30)
    settled.release()
    done(b)
    assert set(world.names(layout.BLOBS)) == blobs_of(*world.check(saved).live.values())


def test_v9_a_claim_lists_blobs_then_generations_then_pins_and_all_of_it_after_its_fence(world: World) -> None:
    two_generations(world)
    b = world.open()
    asked = [(op.operation, op.name) for op in faults(b).operations]
    fenced = asked.index(("create", FENCE_2))
    listed = [name for operation, name in asked[fenced:] if operation == "list" and name != layout.TERMS]
    assert listed[:3] == [layout.BLOBS, layout.GENERATIONS, layout.PINS]
    assert layout.BLOBS not in [name for operation, name in asked[:fenced] if operation == "list"]
    settled = asked.index(("create", SETTLEMENT_2))
    assert [op for op in asked[:settled] if op[0] == "delete"] == []
    # Rule 6: what was listed is made durable after it was listed, and before anything is settled on it.
    for directory in (layout.GENERATIONS, layout.BLOBS):
        assert fenced < asked.index(("list", directory), fenced) < asked.index(("sync", directory), fenced) < settled


# --- V10: a create whose outcome is unknown (rules 11 and 12) -----------------------------------------------------------


def test_v10a_the_number_of_a_save_with_unknown_outcome_is_tried_again(world: World) -> None:
    a = two_generations(world)
    first, second = faults(a).delay("create", M3), faults(a).delay("create", M3, nth=2)
    with pytest.raises(StoreError):
        a.save(3)
    saved = a.save(30)
    assert (saved.number, saved.parent) == (3, 2)
    assert faults(a).deliver(first) is False
    assert faults(a).deliver(second) is False
    world.check(saved)
    assert world.value() == 30


def test_v10a_a_late_create_that_landed_meanwhile_becomes_the_parent(world: World) -> None:
    a = two_generations(world)
    late, _ = faults(a).delay("create", M3), faults(a).delay("create", M3, nth=2)
    with pytest.raises(StoreError):
        a.save(3)
    faults(a).deliver(late)
    saved = a.save(4)
    assert (saved.number, saved.parent, saved.keep) == (4, 3, (3, 4))
    world.check(saved)
    assert (world.value(3), world.value()) == (3, 4)
    assert world.numbers() == [3, 4]


def test_v10a_a_create_that_lands_between_two_tries_is_recognised(world: World) -> None:
    a = two_generations(world)
    faults(a).lose_answer("create", M3)
    saved = a.save(3)
    assert saved.number == 3
    assert faults(a).names_asked("create").count(M3) == 1
    # Its name may not be durable: it is made so before anyone is told.
    asked = [(op.operation, op.name) for op in faults(a).operations]
    created, told = asked.index(("create", M3)), len(asked) - asked[::-1].index(("replace", layout.LATEST))
    assert ("sync", layout.GENERATIONS) in asked[created:told]
    world.check(saved)


def test_v10b_the_blobs_of_a_save_with_unknown_outcome_stay_until_the_number_is_taken(world: World) -> None:
    a = two_generations(world)
    late, _ = faults(a).delay("create", M3), faults(a).delay("create", M3, nth=2)
    before = set(world.names(layout.BLOBS))
    with pytest.raises(StoreError):
        a.save(3)
    left = set(world.names(layout.BLOBS)) - before
    assert left
    faults(a).deliver(late)
    view = world.check()
    assert view.head is not None
    assert view.head.number == 3
    assert world.value() == 3


def test_v10b_once_the_number_is_taken_the_blobs_of_the_attempt_go(world: World) -> None:
    a = two_generations(world)
    faults(a).fail("create", M3, times=2)
    with pytest.raises(StoreError):
        a.save(3)
    saved = a.save(30)
    assert set(world.names(layout.BLOBS)) == blobs_of(*world.check(saved).live.values())


def test_v10c_what_a_late_attempt_dropped_is_not_deleted_while_it_is_pinned(world: World) -> None:
    a = two_generations(world)
    late, _ = faults(a).delay("create", M3), faults(a).delay("create", M3, nth=2)
    with pytest.raises(StoreError):
        a.save(3)  # keeps 2, drops 1
    pin(world.process(), 1)
    faults(a).deliver(late)
    saved = a.save(4)
    assert (saved.parent, saved.keep) == (3, (3, 4))
    view = world.check(saved)
    assert set(view.live) == {1, 3, 4}
    assert world.value(1) == 1
    unpin(world.process(), 1)
    a.save(5)
    assert world.numbers() == [4, 5]
    assert set(world.names(layout.BLOBS)) == blobs_of(*world.check().live.values())


# --- V11: names of blobs are never used twice (rule 9) ------------------------------------------------------------------


def test_v11_a_late_delete_of_a_retired_blob_does_not_hit_the_same_bytes_saved_again(world: World) -> None:
    a = world.open(keep=Keep(last=1))
    first = a.save(1, fixed=1)
    [blob] = blobs_of(first)
    late = faults(a).delay("delete", blob)
    for value in (2, 3, 4):  # 1 is retired; its blob's delete is under way
        a.save(value, fixed=value)
    again = a.save(1, fixed=1)  # the same bytes as generation 1
    faults(a).deliver(late)
    world.check(again)
    assert world.value() == 1


# --- V12: a full disk is relieved by a manifest first (rule 16) ---------------------------------------------------------


def full_disk() -> StoreError:
    return StoreError("no space left", kind="disk-full", retryable=False)


def test_v12_on_a_full_disk_a_trim_is_published_before_anything_is_deleted(world: World) -> None:
    a = two_generations(world, Keep(last=3))
    a.save(3)
    faults(a).fail("write_blob", "blobs/000004*", full_disk())
    start = len(faults(a).operations)
    saved = a.save(4)
    asked = [(op.operation, op.name) for op in faults(a).operations[start:]]
    assert asked.index(("create", M4)) < asked.index(("delete", M1))
    assert ("delete", layout.BALLAST) in asked[: asked.index(("create", M4))]
    assert (saved.number, saved.parent) == (5, 4)
    view = world.check(saved)
    assert (view.live[4].trim_of, set(view.live)) == (3, {2, 4, 5})
    assert layout.BALLAST in world.names()


def test_v12_a_trim_repeats_a_save_that_landed_late_and_not_the_one_before_it(world: World) -> None:
    a = two_generations(world, Keep(last=5))
    late, _ = faults(a).delay("create", M3), faults(a).delay("create", M3, nth=2)
    with pytest.raises(StoreError):
        a.save(3)
    faults(a).deliver(late)
    faults(a).fail("write_blob", "blobs/000003*", full_disk())
    saved = a.save(4)
    view = world.check(saved)
    trim = view.listing.summaries[4]
    assert (trim.trim_of, trim.parent, world.value(4)) == (3, 3, 3)
    assert (saved.number, set(saved.line), world.value()) == (5, {2, 4, 5}, 4)


def test_v12_nobody_rolls_back_to_what_a_trim_is_deleting(world: World) -> None:
    a = two_generations(world, Keep(last=3))
    a.save(3)
    faults(a).fail("write_blob", "blobs/000004*", full_disk())
    deleting = faults(a).pause("delete", M1)
    fourth = world.start(lambda: a.save(4))
    deleting.wait_until_reached()
    b = world.open()
    with pytest.raises(NotFoundError):
        b.rollback(1)
    rolled = b.rollback(2)
    deleting.release()
    is_fenced(lambda: done(fourth))
    world.check(rolled)
    assert world.value() == 2


# --- V13: pins (rules 15 and 17) ----------------------------------------------------------------------------------------


def test_v13_a_pin_placed_after_the_decision_holds(world: World) -> None:
    a = two_generations(world)
    creating = faults(a).pause("create", M3)
    third = world.start(lambda: a.save(3))
    creating.wait_until_reached()  # it has looked at the pins, and will drop 1
    assert pin(world.process(), 1).number == 1
    creating.release()
    saved = done(third)
    assert saved.keep == (2, 3)
    view = world.check(saved)
    assert set(view.live) == {1, 2, 3}
    assert world.value(1) == 1


def test_v13_a_pin_that_is_going_to_fail_makes_nothing_alive(world: World) -> None:
    a = two_generations(world)
    p_store = world.process()
    wishing = p_store.pause("replace", layout.pin(1))
    looking = p_store.pause("list", layout.GENERATIONS, nth=2)
    p = world.start(lambda: pin(p_store, 1))
    wishing.wait_until_reached()  # 1 was live when it looked first
    deleting = faults(a).pause("delete", M1)
    third = world.start(lambda: a.save(3))
    deleting.wait_until_reached()  # it has looked at the pins twice
    wishing.release()
    looking.wait_until_reached()
    assert world.names(layout.PINS) == [layout.pin(1)]
    b = world.open()
    assert set(b.opened.claimed.view.live) == {2, 3}
    with pytest.raises(NotFoundError):
        b.rollback(1)
    looking.release()
    with pytest.raises(NotFoundError):
        done(p)
    deleting.release()
    done(third)
    assert world.names(layout.PINS) == []
    world.check(b.save(4))


def wanted_but_not_yet_held(world: World) -> tuple[Gate, Future[Summary]]:
    """Let A drop 1 and die, while P has seen that 1 is live and has not said so yet."""
    a = world.open(keep=Keep(last=2))
    a.save(1, fixed=7)
    a.save(2, fixed=7)  # shares the blob of what stayed the same
    creating = faults(a).pause("create", M3)
    third = world.start(lambda: a.save(3))
    creating.wait_until_reached()
    p_store = world.process()
    promising = p_store.pause("replace", layout.pin(1), nth=2)
    p = world.start(lambda: pin(p_store, 1))
    promising.wait_until_reached()
    faults(a).kill("list", layout.PINS)  # it dies before it retires
    creating.release()
    with pytest.raises(Killed):
        done(third)
    return promising, p


def test_v13_a_new_claimer_counts_the_blobs_of_a_wanted_pin_as_named(world: World) -> None:
    promising, p = wanted_but_not_yet_held(world)
    b = world.open()
    assert set(b.opened.claimed.view.live) == {2, 3}
    saved = [b.save(value) for value in (4, 5, 6)]  # drops 2 and 3, which share a blob with 1
    promising.release()
    assert done(p).number == 1
    view = world.check(*saved[1:])
    assert 1 in view.live
    assert world.value(1) == 1


def test_v13_what_a_claimer_spared_for_a_pin_goes_when_the_pin_is_taken_away(world: World) -> None:
    promising, p = wanted_but_not_yet_held(world)
    b = world.open()
    promising.release()
    done(p)
    b.save(4)
    assert 1 in world.check().live
    unpin(world.process(), 1)
    b.save(5)
    assert world.numbers() == [4, 5]
    assert set(world.names(layout.BLOBS)) == blobs_of(*world.check().live.values())


# --- V15: LATEST is a hint (rule 21) ------------------------------------------------------------------------------------


def test_v15_a_pointer_written_late_by_a_paused_writer_misleads_nobody_who_lists(world: World) -> None:
    a = two_generations(world)
    pointing = faults(a).pause("replace", layout.LATEST)
    third = world.start(lambda: a.save(3))
    pointing.wait_until_reached()
    b = world.open()
    assert b.head == 3
    for value in (4, 5):
        b.save(value)
    assert world.numbers() == [4, 5]
    pointing.release()
    assert done(third).number == 3
    latest = read_latest(world.plain())
    assert latest is not None
    assert latest.generation == 3
    view = world.check()
    assert view.head is not None
    assert view.head.number == 5
    assert world.value() == 5
    assert oneshot.verify(world.plain()).resume_from == 5
