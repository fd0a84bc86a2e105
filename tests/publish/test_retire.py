"""Deleting: only what a published manifest dropped and nobody names, nothing that an unreadable one may name (3a, 8, 14, 15)."""

from __future__ import annotations

import dataclasses

import pytest

from milepost.errors import StoreError
from milepost.lifecycle.retain import Keep
from milepost.publish import layout
from milepost.publish.retire import Retired, drop_unreadable, sweep
from milepost.store.base import Entry
from milepost.testing.faults import FaultStore, Killed
from tests.publish.world import World, Writer, blobs_of

IO = StoreError("io error", kind="io", retryable=True)


def faults(writer: Writer) -> FaultStore:
    assert isinstance(writer.store, FaultStore)
    return writer.store


def test_a_blob_that_two_generations_share_goes_with_the_last_of_them(world: World) -> None:
    a = world.open(keep=Keep(last=1))
    [shared] = blobs_of(a.save(1, fixed=7))
    for value in (2, 3):
        a.save(value, fixed=7)
        assert shared in world.names(layout.BLOBS)
        world.check()
    last = a.save(4, fixed=8)
    assert world.names(layout.BLOBS) == sorted(blobs_of(last))


@pytest.mark.parametrize("pattern", ["generations/000001*", "blobs/*"])
def test_a_delete_that_fails_is_told_and_tried_again_after_the_next_save(world: World, pattern: str) -> None:
    a = world.open(keep=Keep(last=1))
    a.save(1, fixed=1)
    faults(a).fail("delete", pattern, IO)
    second = a.save(2, fixed=2)
    assert b'"retire-failed"' in world.plain().read(layout.events(1))
    world.check(second)
    third = a.save(3, fixed=3)
    assert world.numbers() == [3]
    assert set(world.names(layout.BLOBS)) == blobs_of(*world.check(third).live.values())


def test_what_a_dead_writer_did_not_get_round_to_deleting_is_swept(world: World) -> None:
    a = world.open(keep=Keep(last=1))
    a.save(1, fixed=1)
    faults(a).kill("delete", "blobs/*")
    with pytest.raises(Killed):
        a.save(2, fixed=2)
    assert world.numbers() == [2]
    assert len(world.names(layout.BLOBS)) == 2
    b = world.open(keep=Keep(last=1))
    assert set(world.names(layout.BLOBS)) == blobs_of(*b.opened.claimed.view.live.values())


def test_a_sweep_takes_only_lower_terms_of_what_it_listed(world: World) -> None:  # rule 8
    a = world.open()
    a.save(1)
    b = world.open()
    named = {term: f"blobs/000009-t{term}-{term:016x}.safetensors" for term in (1, 2, 3)}
    for name in named.values():
        world.plain().create(name, b"x")
    listed = tuple(Entry(name, 1) for name in [*named.values(), "blobs/mine.bin"])
    swept = sweep(b.store, dataclasses.replace(b.opened.claimed, blobs=listed))
    assert swept == Retired((), (named[1],))
    assert {named[2], named[3]} <= set(world.names(layout.BLOBS))


def test_unfinished_blobs_and_temporary_files_of_the_dead_are_swept_whatever_they_were_for(world: World) -> None:
    world.open().save(1)
    leftovers = [
        "blobs/000002-t1-00000000000000aa.safetensors.part",
        "blobs/000002-t1-00000000000000ab-3.safetensors",
        "blobs/000002.json-t1-00000000000000ac.tmp",
        "blobs/LATEST-t1-00000000000000ad.tmp",
        "blobs/milepost.json-t0-00000000000000ae.tmp",
    ]
    for name in leftovers:
        world.plain().create(name, b"half")
    b = world.open()
    assert set(world.names(layout.BLOBS)) == blobs_of(*b.opened.claimed.view.live.values())


# --- an unreadable manifest: what it keeps is unknown (rule 3a) ---------------------------------------------------------


def torn_second(world: World) -> set[str]:
    """Publish 1, 2 and 3, each with a blob of its own, and spoil the manifest of 2; return the blobs of 1 and 2."""
    a = world.open(keep=Keep(last=3))
    saved = [a.save(value, fixed=value) for value in (1, 2, 3)]
    world.plain().replace(layout.manifest(2), b"torn")
    return blobs_of(*saved[:2])


def test_neither_sweep_nor_retire_takes_a_blob_at_or_below_an_unreadable_number(world: World) -> None:
    old = torn_second(world)
    b = world.open(keep=Keep(last=1))
    assert (b.head, b.session.chain.barrier) == (3, 2)
    assert old <= set(world.names(layout.BLOBS))
    for value in (4, 5):
        b.save(value, fixed=value)
    assert world.numbers() == [1, 2, 5]  # 3 and 4 are above it
    assert old <= set(world.names(layout.BLOBS))
    world.check()


def test_once_an_operator_has_dropped_the_unreadable_manifest_the_next_claim_tidies_up(world: World) -> None:
    torn_second(world)
    a = world.open(keep=Keep(last=1))
    a.save(4, fixed=4)
    drop_unreadable(a.store, a.opened.claimed, 2)
    b = world.open(keep=Keep(last=1))
    assert world.numbers() == [4]
    assert set(world.names(layout.BLOBS)) == blobs_of(*b.opened.claimed.view.live.values())


def test_an_unreadable_head_holds_up_every_sweep(world: World) -> None:
    a = world.open(keep=Keep(last=2))
    saved = [a.save(value, fixed=value) for value in (1, 2, 3)]
    world.plain().replace(layout.manifest(3), b"torn")
    world.plain().create("blobs/000003-t1-00000000000000aa.safetensors", b"perhaps named by 3")
    b = world.open(keep=Keep(last=1))
    assert b.head == 2
    assert blobs_of(*saved[1:]) | {"blobs/000003-t1-00000000000000aa.safetensors"} <= set(world.names(layout.BLOBS))
    fourth = b.save(4, fixed=4)
    assert (fourth.number, fourth.parent) == (4, 2)
    assert blobs_of(*saved[1:]) <= set(world.names(layout.BLOBS))


def test_a_blob_that_an_unreadable_manifest_may_name_outlives_the_readable_ones_that_name_it(world: World) -> None:
    a = world.open(keep=Keep(last=2))
    [shared] = blobs_of(a.save(1, fixed=7))
    for value in (2, 3):
        a.save(value, fixed=7)
    assert world.numbers() == [2, 3]
    before = world.plain().read(layout.manifest(2))
    world.plain().replace(layout.manifest(2), b"torn")
    b = world.open(keep=Keep(last=1))
    for value in (4, 5):
        b.save(value, fixed=value)
    assert world.numbers() == [2, 5]
    assert shared in world.names(layout.BLOBS)
    world.plain().replace(layout.manifest(2), before)  # an operator has a copy
    assert world.view().barrier == 0


def test_what_an_unreadable_head_may_keep_is_not_swept(world: World) -> None:
    a = world.open(keep=Keep(last=2))
    a.save(1, fixed=1)
    a.save(2, fixed=2)
    faults(a).kill("delete", layout.manifest(1))
    with pytest.raises(Killed):
        a.save(3, fixed=3)  # drops 1
    world.plain().replace(layout.manifest(4), b"torn")
    b = world.open()
    assert (b.head, set(b.opened.claimed.view.live)) == (3, {2, 3})
    assert world.numbers() == [1, 2, 3, 4]
    world.plain().delete(layout.manifest(4))
    world.open()
    assert world.numbers() == [2, 3]
