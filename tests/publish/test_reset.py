"""Reset: a settlement that voids the old run, whose files then go aside whole, wherever the process dies (rule 26)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from milepost.engine import oneshot
from milepost.errors import ConflictError, NotFoundError, StoreError
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.verify import verify
from milepost.publish import layout
from milepost.publish.hints import read_latest, read_progress
from milepost.publish.manifest import decode, encode
from milepost.publish.view import read
from milepost.records import Pin, Reset, Settlement
from milepost.testing.faults import FaultStore, Killed
from tests.publish.resets import IN_MEMORY, check_aside, check_new_run, do_reset, new_names, old_root, three_generations
from tests.publish.summaries import generation
from tests.publish.world import World, done

# --- what it does -------------------------------------------------------------------------------------------------------


def test_the_old_run_is_whole_where_it_was_put_and_the_new_one_starts_clean(world: World) -> None:
    a = three_generations(world)
    old_id = a.session.run_id
    record = world.plain().read(layout.RUN)
    world.plain().create("notes/mine.txt", b"not milepost's")
    made = do_reset(world)
    assert made == Reset(old_id, 3, 4, 1, 2, made.at)
    assert made.to == f"reset/{old_id}/"
    left = [layout.BALLAST, layout.RUN, "notes/mine.txt"]
    left += [name for term in (1, 2) for name in (layout.settlement(term), layout.fence(term))]
    assert new_names(world) == sorted(left)
    assert world.plain().read(layout.RUN) == record  # nobody ever moves or replaces it
    view = world.view()
    assert (view.head, view.undecided, view.run_id != old_id) == (None, False, True)
    assert verify(world.plain()).problems == ()
    check_aside(world, old_id, [2, 3])
    b = world.open()
    assert (b.session.run_id, b.term, b.head) == (view.run_id, 3, 0)
    saved = b.save(9)
    assert (saved.number, saved.parent, saved.rollback_to, saved.line) == (4, 0, None, (4,))
    world.check(saved)


def test_the_settlement_is_the_reset(world: World) -> None:
    old_id = three_generations(world).session.run_id
    store = world.process()
    store.kill("create", layout.settlement(2), after=True)
    with pytest.raises(Killed):
        do_reset(world, store)
    view = world.view()
    assert (view.head, view.run_id == old_id, set(view.void)) == (None, False, {2, 3})
    settled = decode(world.plain().read(layout.settlement(2)), Settlement, "")
    assert (settled.head, settled.next, settled.unsure, settled.dead) == (0, 4, 0, False)
    assert settled.reset is not None
    assert (settled.reset.run_id, settled.reset.head, settled.reset.next) == (old_id, 3, 4)
    assert world.open().opened.claimed.settlement.reset == settled.reset  # every later settlement repeats it


def test_what_speaks_of_the_old_run_goes_along(world: World) -> None:
    a = three_generations(world)
    world.plain().replace(layout.pin(3), encode(Pin(a.session.run_id, 3, "wanted", "ann")))  # asked for, not yet answered
    world.plain().replace(layout.pin(1), encode(Pin(a.session.run_id, 1, "wanted", "bob")))  # of a generation that is gone
    old_id = do_reset(world).run_id
    old = old_root(world, old_id)
    view = read(old)
    assert {number: (each.state, each.by) for number, each in view.pins.items()} == {
        1: ("wanted", "bob"),
        2: ("held", ""),
        3: ("held", "ann"),
    }
    assert view.marks[3].reason == "seen"
    latest, progress = read_latest(old), read_progress(old)
    assert latest is not None
    assert progress is not None
    assert (latest.generation, latest.run_id, progress.step, progress.run_id) == (3, old_id, 3, old_id)
    assert b'"published"' in old.read(layout.events(1))
    for directory in (layout.PINS, layout.QUARANTINE, layout.EVENTS, layout.BLOBS, layout.GENERATIONS):
        assert world.names(directory) == []


def test_a_pin_that_cannot_be_read_goes_along_and_still_protects(world: World) -> None:
    three_generations(world)
    world.plain().replace(layout.pin(2), b"torn")
    old = old_root(world, do_reset(world).run_id)
    assert read(old).pins[2].state == "held"
    assert world.names(layout.PINS) == []


@pytest.mark.parametrize("earlier", [0, 1], ids=["the first", "one after another reset"])
def test_the_run_set_aside_goes_on_as_a_root_of_its_own(world: World, earlier: int) -> None:
    if earlier:
        world.open()
        do_reset(world)
    three_generations(world)
    made = do_reset(world)
    new = world.open().save(50)
    trial = World(world.kind, world.path)
    trial.path = world.path / "reset" / made.run_id
    if world.kind == "memory":
        for name in world.names(made.to):
            trial.plain().create(name.removeprefix(made.to), world.plain().read(name))
    trial.clocks = 100
    b = trial.open()
    assert (b.session.run_id, b.term, b.head, b.session.chain.next) == (made.run_id, 3 + 2 * earlier, 3, 4)
    assert not any(trial.names(layout.ASIDE))  # it knows of no reset before it
    saved = [b.save(value) for value in (4, 5)]
    assert [each.number for each in saved] == [4, 5]
    assert saved[0].parent == 3
    trial.check(*saved)
    assert trial.value() == 5
    c = trial.open()
    assert c.head == 5
    assert oneshot.verify(trial.plain()).ok
    assert do_reset(trial).first_term == 1
    world.check(new)


def test_numbers_and_terms_go_on_through_one_reset_after_another(world: World) -> None:
    made: list[Reset] = []
    for round_ in range(3):
        a = world.open()
        saved = a.save(round_)
        assert (a.term, saved.number, saved.parent) == (2 * round_ + 1, round_ + 1, 0)
        made.append(do_reset(world))
    # Each sets aside what came after the one before it, and no more.
    assert [(each.first_term, each.term) for each in made] == [(1, 2), (2, 4), (4, 6)]
    assert [(each.head, each.next) for each in made] == [(1, 2), (2, 3), (3, 4)]
    assert world.view().head is None
    for number, each in enumerate(made, 1):
        check_aside(world, each.run_id, [number])
        terms = [layout.fence_term(name.removeprefix(each.to)) for name in world.names(each.to + layout.TERMS)]
        assert {term for term in terms if term} == set(range(each.first_term, each.term + 1))
    assert len({each.run_id for each in made}) == 3


def test_a_run_that_published_nothing_can_be_reset_again_and_again(world: World) -> None:
    world.open()
    made = [do_reset(world) for _ in range(3)]
    assert [(each.head, each.next, each.first_term, each.term) for each in made] == [(0, 1, 1, 2), (0, 1, 2, 3), (0, 1, 3, 4)]
    for each in made:
        check_aside(world, each.run_id, [])
    assert world.open().save(1).number == 1


def test_there_is_nothing_to_reset_where_there_is_no_run(world: World) -> None:
    with pytest.raises(NotFoundError):
        do_reset(world)
    assert world.names() == []


def test_manifests_that_cannot_be_read_go_aside_and_bar_nothing_in_the_new_run(world: World) -> None:
    a = world.open(keep=Keep(last=3))
    for value in (1, 2, 3):
        a.save(value)
    world.plain().replace(layout.manifest(3), b"torn")
    world.plain().create(layout.manifest(9), world.plain().read(layout.manifest(1)))  # says that it is 1
    made = do_reset(world)
    assert (made.head, made.next) == (2, 10)
    assert world.names(layout.GENERATIONS) == []
    view = read(old_root(world, made.run_id))
    assert (list(view.live), list(view.unreadable), view.unsure) == ([1, 2], [3, 9], 9)
    b = world.open()
    assert (b.session.chain.barrier, b.session.chain.unsure, b.session.chain.next) == (0, 0, 10)
    world.check(*[b.save(value) for value in (1, 2)])


def test_a_run_whose_settlement_only_a_manifest_repeats_can_be_reset(world: World) -> None:
    a = three_generations(world)
    world.plain().replace(layout.settlement(1), b"torn")
    do_reset(world)
    check_new_run(world, a.session.run_id, [2, 3])


def test_what_the_old_run_had_made_void_does_not_come_back_in_its_new_place(world: World) -> None:
    a = three_generations(world)
    b = world.open()
    with pytest.raises(ConflictError):
        a.save(4)  # void: b settled on 3
    made = do_reset(world)
    assert (made.head, made.next, b.head) == (3, 5, 3)
    view = check_aside(world, made.run_id, [2, 3])
    assert 4 not in view.listing.summaries
    check_new_run(world, made.run_id, [2, 3])


# --- killed at every operation ------------------------------------------------------------------------------------------


def trials(world: World, action: Callable[[World, FaultStore], object]) -> Iterator[tuple[World, bool]]:
    """Yield copies of the root in which a process died before each operation of ``action`` in turn, the last one alive."""
    for number in itertools.count():
        trial = world.copy(number)
        dying = trial.process()
        dying.kill_before(number)
        finished = False
        try:
            action(trial, dying)
            finished = True
        except Killed:
            pass
        yield trial, finished
        if finished:
            return


def settled_resets(world: World) -> int:
    """Return how many resets are decided, by what the terms say."""
    return len(world.view().terms.resets)


def test_a_reset_killed_at_any_operation_is_finished_by_the_next_claimer_or_has_not_begun(world: World) -> None:
    old_id = three_generations(world).session.run_id
    seen: list[bool] = []
    for trial, finished in trials(world, do_reset):
        begun = settled_resets(trial) > 0
        seen.append(begun)
        assert begun or not finished
        if not begun:
            assert (trial.view().run_id, trial.value()) == (old_id, 3)
            assert (trial.open().head, trial.names(layout.ASIDE)) == (3, [])
            trial.check()
            continue
        b = trial.open()
        assert (b.session.run_id, b.term, b.head, b.session.chain.next) == (trial.view().run_id, 3, 0, 4)
        assert b.session.run_id != old_id
        check_aside(trial, old_id, [2, 3])
        assert read(old_root(trial, old_id)).pins[2].state == "held"
        trial.check(b.save(9))
        assert verify(trial.plain()).problems == ()
        assert {layout.blob_term(name) for name in trial.names(layout.BLOBS)} == {3}
    assert seen == sorted(seen)
    assert (seen.count(False) > 5, seen.count(True) > 30) == (True, True)


def test_a_reset_killed_at_any_operation_is_finished_by_asking_again(world: World) -> None:
    old_id = three_generations(world).session.run_id
    for trial, _ in trials(world, do_reset):
        begun = settled_resets(trial)
        again = do_reset(trial)
        # If the first had been decided, what is set aside now is the new run, which has published nothing.
        assert (again.run_id != old_id, again.head) == ((True, 0) if begun else (False, 3))
        check_aside(trial, old_id, [2, 3])
        if begun:
            check_aside(trial, again.run_id, [])
        check_new_run(trial, old_id, [2, 3])


@IN_MEMORY
def test_a_reset_that_dies_and_whose_finisher_dies_is_still_finished(world: World) -> None:
    old_id = three_generations(world).session.run_id
    for first, (trial, _) in enumerate(trials(world, do_reset)):
        if not settled_resets(trial):
            continue
        for second in range(first % 5, 200, 5):
            once_more = trial.copy(1000 + second)
            dying = once_more.process()
            dying.kill_before(second)
            try:
                once_more.open(dying)
                break
            except Killed:
                b = once_more.open()
                assert b.head == 0
                check_aside(once_more, old_id, [2, 3])
                once_more.check(b.save(9))
        else:
            raise AssertionError("the claim has more operations than this test kills it at")


@IN_MEMORY
def test_what_a_killed_reset_left_is_not_swept_before_it_is_aside(world: World) -> None:
    old_id = three_generations(world).session.run_id
    store = world.process()
    store.kill("create", layout.settlement(2), after=True)
    with pytest.raises(Killed):
        do_reset(world, store)
    refused = world.process()
    refused.fail("move", "*", StoreError("read-only", kind="read-only", retryable=False), times=None)
    b = world.open(refused)  # a disk that cannot move keeps nobody from training
    saved = b.save(9)
    assert saved.number == 4
    c = world.open()
    assert c.head == 4
    check_aside(world, old_id, [2, 3])
    world.check(saved)


# --- what comes late ----------------------------------------------------------------------------------------------------


def test_a_blob_of_the_old_run_that_appears_late_goes_aside_and_takes_nothing_of_the_new_run_along(world: World) -> None:
    old_id = three_generations(world).session.run_id
    do_reset(world)
    b = world.open()
    saved = [b.save(7), b.save(8)]
    late = "blobs/000004-t1-00000000000000ee.safetensors"
    world.plain().create(late, b"late")
    hints = {name: world.plain().read(name) for name in (layout.LATEST, layout.PROGRESS, layout.events(3))}
    c = world.open()
    assert c.head == 5
    assert late not in world.names()
    assert world.plain().read(f"reset/{old_id}/{late}") == b"late"
    assert {name: world.plain().read(name) for name in hints} == hints
    world.check(*saved)
    check_aside(world, old_id, [2, 3])


def test_going_on_with_an_old_reset_leaves_alone_what_the_new_run_has_of_the_same_kind(world: World) -> None:
    world.open()  # has no pointer, no progress, no manifest to move
    made = do_reset(world)
    b = world.open(keep=Keep(last=3))
    saved = [b.save(value) for value in (7, 8, 9)]
    world.plain().replace(layout.manifest(2), b"torn")
    world.plain().create("blobs/000001-t1-00000000000000ee.safetensors", b"late")
    before = {name: world.plain().read(name) for name in new_names(world) if "ee.safe" not in name}
    world.open()
    after = {name: world.plain().read(name) for name in new_names(world)}
    assert {name: after.get(name) for name in before if name != layout.LATEST} == {
        name: data for name, data in before.items() if name != layout.LATEST
    }
    assert read_latest(world.plain()).generation == 3  # type: ignore[union-attr]
    assert {layout.LATEST, layout.PROGRESS} & {name.removeprefix(made.to) for name in world.names(made.to)} == set()
    world.check(saved[0], saved[2])


@pytest.mark.parametrize("torn", [False, True])
def test_a_manifest_that_an_old_writer_makes_once_more_does_not_replace_the_one_set_aside(world: World, torn: bool) -> None:
    a = three_generations(world)
    made = do_reset(world)
    aside = world.plain().read(made.to + layout.manifest(2))
    again = generation(2, run_id=a.session.run_id)
    world.plain().create(layout.manifest(2), b"torn" if torn else encode(again))
    world.open()
    assert world.numbers() == []
    assert world.plain().read(made.to + layout.manifest(2)) == aside
    check_new_run(world, a.session.run_id, [2, 3])


def test_a_pointer_written_late_by_the_old_run_is_said_to_be_its_own(world: World) -> None:
    a = world.open()
    a.save(1)
    assert isinstance(a.store, FaultStore)
    gate = a.store.pause("replace", layout.LATEST)
    second = world.start(lambda: a.save(2))
    gate.wait_until_reached()
    made = do_reset(world)
    gate.release()
    assert done(second).number == 2
    latest = read_latest(world.plain())
    assert latest is not None
    assert latest.run_id == made.run_id != world.view().run_id
    b = world.open()
    saved = b.save(3)
    assert read_latest(world.plain()).run_id == saved.run_id  # type: ignore[union-attr]
    check_aside(world, made.run_id, [1, 2])


@pytest.mark.parametrize("lost", [(2,), (3,), (2, 3)])
@IN_MEMORY
def test_settlements_that_rot_after_a_reset_bring_nothing_of_the_old_run_back(world: World, lost: tuple[int, ...]) -> None:
    a = three_generations(world)
    old_id = a.session.run_id
    dying = world.process()
    dying.kill("move", layout.manifest(2))
    with pytest.raises(Killed):
        do_reset(world, dying)
    stuck = world.process()
    stuck.fail("move", "*", StoreError("read-only", kind="read-only", retryable=False), times=None)
    saved = world.open(stuck).save(9)  # 2 and 3 still lie in the root
    assert world.numbers() == [2, 3, 4]
    if len(lost) == 2:
        world.open(stuck)  # and one more settlement tells of the reset
    for term in lost:
        world.plain().replace(layout.settlement(term), b"torn")
    view = world.check(saved)
    assert (view.run_id, list(view.live)) == (saved.run_id, [4])
    c = world.open()
    assert (c.session.run_id, c.head) == (saved.run_id, 4)
    check_aside(world, old_id, [2, 3])
    world.check(saved, c.save(10))
