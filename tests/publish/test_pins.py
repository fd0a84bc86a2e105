"""A pin that succeeded holds, whatever retention says and whoever dies (rules 15 and 17)."""

from __future__ import annotations

import pytest

from milepost.errors import NotFoundError
from milepost.lifecycle.retain import Keep
from milepost.publish import layout
from milepost.publish.pins import pin, unpin
from milepost.testing.faults import FaultStore, Killed
from tests.publish.world import World, blobs_of, done


def test_a_pinned_generation_outlives_retention_and_restarts(world: World) -> None:
    a = world.open(keep=Keep(last=1))
    a.save(1, fixed=1)
    assert pin(world.plain(), 1, by="ann").number == 1
    for value in (2, 3):
        a.save(value, fixed=value)
    b = world.open(keep=Keep(last=1))
    for value in (4, 5):
        b.save(value, fixed=value)
    view = world.check()
    assert set(view.live) == {1, 5}
    assert (view.pins[1].state, view.pins[1].by) == ("held", "ann")
    assert world.value(1) == 1


def test_an_unpinned_generation_goes_with_the_next_save(world: World) -> None:
    a = world.open(keep=Keep(last=1))
    a.save(1, fixed=1)
    pin(world.plain(), 1)
    a.save(2, fixed=2)
    unpin(world.plain(), 1)
    assert world.numbers() == [1, 2]
    a.save(3, fixed=3)
    assert world.numbers() == [3]
    assert set(world.names(layout.BLOBS)) == blobs_of(*world.check().live.values())


@pytest.mark.parametrize("number", [1, 7])
def test_what_is_not_live_cannot_be_pinned_and_no_pin_is_left(world: World, number: int) -> None:
    a = world.open(keep=Keep(last=1))
    a.save(1)
    a.save(2)
    with pytest.raises(NotFoundError) as caught:
        pin(world.plain(), number)
    assert (caught.value.kind, caught.value.facts["generation"]) == ("not-live", number)
    assert world.names(layout.PINS) == []


def test_there_is_nothing_to_pin_where_there_is_no_run(world: World) -> None:
    with pytest.raises(NotFoundError) as caught:
        pin(world.plain(), 1)
    assert caught.value.kind == "no-such-run"
    assert world.names() == []


def test_a_pin_asked_for_again_stays_a_promise_though_the_asker_dies(world: World) -> None:
    a = world.open(keep=Keep(last=1))
    a.save(1)
    pin(world.plain(), 1)
    a.save(2)
    store = world.process()
    store.kill("list", layout.GENERATIONS, nth=2)  # between the wish and the promise, if it wished again
    store.kill("replace", layout.pin(1), nth=2)
    pin(store, 1)
    assert world.view().pins[1].state == "held"
    assert set(world.view().live) == {1, 2}


def test_a_wish_left_by_one_who_died_protects_until_it_is_taken_away(world: World) -> None:
    a = world.open(keep=Keep(last=1))
    a.save(1, fixed=1)
    store = world.process()
    store.kill("replace", layout.pin(1), nth=2)
    with pytest.raises(Killed):
        pin(store, 1)
    a.save(2, fixed=2)
    a.save(3, fixed=3)
    assert world.numbers() == [1, 3]
    assert world.value(1) == 1  # the writer kept it: it had seen the wish before it published
    unpin(world.plain(), 1)
    a.save(4, fixed=4)
    assert world.numbers() == [4]


def test_a_pin_looks_whether_the_generation_is_live_only_after_its_wish_is_durable(world: World) -> None:
    world.open().save(1)
    store = world.process()
    pin(store, 1)
    asked = [(op.operation, op.name) for op in store.operations]
    wish = asked.index(("replace", layout.pin(1)))
    promise = asked.index(("replace", layout.pin(1)), wish + 1)
    assert ("list", layout.GENERATIONS) in asked[wish:promise]
    assert ("list", layout.TERMS) in asked[wish:promise]


def test_a_pin_that_lands_while_the_writer_deletes_fails(world: World) -> None:
    a = world.open(keep=Keep(last=1))
    a.save(1)
    assert isinstance(a.store, FaultStore)
    gate = a.store.pause("delete", layout.manifest(1))
    second = world.start(lambda: a.save(2))
    gate.wait_until_reached()
    with pytest.raises(NotFoundError):
        pin(world.plain(), 1)
    gate.release()
    world.check(done(second))
