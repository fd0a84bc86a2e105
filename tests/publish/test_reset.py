"""Reset: a run is set aside whole, at whatever operation its reset dies, whoever of the old run wakes up later (rule 26)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from milepost.errors import ConflictError, CorruptError, MilepostError, NotFoundError
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.verify import verify
from milepost.publish import layout
from milepost.publish.pins import pin
from milepost.publish.reset import finish_interrupted, reset
from milepost.publish.term import claim
from milepost.publish.view import View, read
from milepost.records import ResetRecord
from milepost.store.base import Store
from milepost.store.local import LocalStore
from milepost.store.memory import MemoryStore
from milepost.testing.faults import FaultStore, Killed
from tests.publish.world import WHO, World, Writer, blobs_of, done

IN_MEMORY = pytest.mark.parametrize("world", ["memory"], indirect=True)
"""For the long tables; one row of each runs on files in the tests around them."""


def set_aside(world: World, run_id: str) -> Store:
    """Return the old run, as the run root that it still is."""
    if world.kind == "local":
        return LocalStore(world.path / layout.ASIDE / run_id, world.clock())
    other, prefix = MemoryStore(), f"{layout.ASIDE}{run_id}/"
    for name in world.names(prefix):
        other.create(name.removeprefix(prefix), world.plain().read(name))
    return other


def three_generations(world: World) -> Writer:
    a = world.open()
    for value in (1, 2, 3):
        a.save(value)
    pin(world.plain(), 2)
    return a


def do_reset(world: World, store: Store | None = None) -> ResetRecord:
    return reset(store or world.plain(), world.clock(), WHO)


def check_aside(world: World, run_id: str, numbers: list[int]) -> View:
    """Check that the old run is whole where it was put."""
    old = set_aside(world, run_id)
    view = read(old)
    assert (list(view.live), view.undecided) == (numbers, False)
    assert verify(old).ok
    return view


def test_the_old_run_is_whole_where_it_was_put_and_the_new_one_starts_clean(world: World) -> None:
    a = three_generations(world)
    old_id = a.session.run_id
    mine = "notes/mine.txt"
    world.plain().create(mine, b"not milepost's")
    record = do_reset(world)
    assert (record.run_id, record.to, record.first_term, record.first_number) == (old_id, f"reset/{old_id}/", 3, 4)
    view = check_aside(world, old_id, [2, 3])
    assert view.pins[2].state == "held"
    left = [name for name in world.names() if not name.startswith(layout.ASIDE) and not name.endswith(".lock")]
    assert left == [layout.RUN, mine]
    assert world.view().head is None
    b = world.open()
    assert (b.session.run_id, b.term, b.head) == (record.new_run_id, 3, 0)
    saved = b.save(9)
    assert (saved.number, saved.parent) == (4, 0)
    world.check(saved)


def test_numbers_and_terms_go_on_through_one_reset_after_another(world: World) -> None:
    for round_ in range(3):
        a = world.open()
        saved = a.save(round_)
        assert (a.term, saved.number) == (2 * round_ + 1, round_ + 1)
        do_reset(world)
    assert world.view().head is None
    assert len({name.split("/")[1] for name in world.names(layout.ASIDE)}) == 3


def test_there_is_nothing_to_reset_where_there_is_no_run(world: World) -> None:
    with pytest.raises(NotFoundError):
        do_reset(world)
    assert world.names() == []


def test_a_reset_whose_record_is_damaged_says_so_and_moves_nothing_more(world: World) -> None:
    three_generations(world)
    world.plain().create(layout.RESET, b"torn")
    before = world.names()
    with pytest.raises(CorruptError) as caught:
        world.open()
    assert caught.value.facts["name"] == layout.RESET
    assert world.names() == before


# --- killed at every operation ------------------------------------------------------------------------------------------


def kill_each(world: World, finish: Callable[[World, str], None]) -> int:
    """Let a reset die before each of its operations in turn, and call ``finish`` on what it left; return how many there were."""
    old_id = three_generations(world).session.run_id
    for number in itertools.count():
        trial = world.copy(number)
        dying = trial.process()
        dying.kill_before(number)
        finished = False
        try:
            do_reset(trial, dying)
            finished = True
        except Killed:
            pass
        finish(trial, old_id)
        if finished:
            return number
    raise AssertionError


@IN_MEMORY
def test_a_reset_killed_at_any_operation_is_finished_by_the_next_claimer_or_has_not_begun(world: World) -> None:
    def finish(trial: World, old_id: str) -> None:
        begun = layout.RESET in trial.names() or any(trial.names(layout.ASIDE))
        b = trial.open()
        assert layout.RESET not in trial.names()
        if not begun:
            assert (b.session.run_id, b.head) == (old_id, 3)
            trial.check()
            return
        assert b.session.run_id != old_id
        assert (b.term, b.head, b.session.chain.next) == (3, 0, 4)
        check_aside(trial, old_id, [2, 3])
        trial.check(b.save(9))
        assert not [name for name in trial.names() if name.split("-t")[-1].startswith("1-") and not name.startswith("reset/")]

    assert kill_each(world, finish) > 40


@IN_MEMORY
def test_a_reset_killed_at_any_operation_is_finished_by_asking_again(world: World) -> None:
    def finish(trial: World, old_id: str) -> None:
        try:
            do_reset(trial)
        except NotFoundError:
            raise AssertionError("the run is gone from where it was") from None
        runs = {name.split("/")[1] for name in trial.names(layout.ASIDE)}
        assert old_id in runs
        check_aside(trial, old_id, [2, 3])
        assert trial.open().head == 0

    kill_each(world, finish)


def test_a_reset_that_dies_twice_is_still_finished(world: World) -> None:
    old_id = three_generations(world).session.run_id
    first = world.process()
    first.kill("move", layout.manifest(3))
    with pytest.raises(Killed):
        do_reset(world, first)
    second = world.process()
    second.kill("create", layout.RUN)
    with pytest.raises(Killed):
        world.open(second)
    b = world.open()
    assert (b.term, b.head) == (3, 0)
    check_aside(world, old_id, [2, 3])


# --- writers of the old run that sleep through it -----------------------------------------------------------------------


def check_new_run(world: World, record: ResetRecord, old_id: str, numbers: list[int]) -> None:
    """Check that the new run goes on undisturbed by what a zombie has left, and that the old one is whole."""
    b = world.open()
    assert (b.session.run_id, b.head) == (record.new_run_id, 0)
    assert b.session.chain.next >= record.first_number
    saved = [b.save(value) for value in (7, 8)]
    world.check(*saved)
    c = world.open()
    assert c.head == saved[-1].number
    world.check(*saved)
    check_aside(world, old_id, numbers)


SAVE = {
    "before its first byte": ("replace", layout.PROGRESS),
    "before its blob": ("open_blob", "blobs/*"),
    "in its blob": ("write_blob", "blobs/*"),
    "before its blob is durable": ("commit_blob", "blobs/*"),
    "before its manifest": ("create", layout.manifest(4)),
    "before it looks at the terms": ("list", layout.TERMS),
    "before it looks whose run it is": ("read", layout.RUN),
}


@pytest.mark.parametrize("phase", SAVE)
def test_a_writer_that_slept_through_a_reset_in_the_middle_of_a_save_acknowledges_nothing(world: World, phase: str) -> None:
    a = three_generations(world)
    assert isinstance(a.store, FaultStore)
    gate = a.store.pause(*SAVE[phase])
    zombie = world.start(lambda: a.save(4))
    gate.wait_until_reached()
    record = do_reset(world)
    gate.release()
    with pytest.raises(MilepostError) as caught:
        done(zombie)
    if phase not in ("in its blob", "before its blob is durable"):  # there the part that it was writing is gone
        assert isinstance(caught.value, ConflictError)
    numbers = [2, 3]
    if phase in ("before it looks at the terms", "before it looks whose run it is"):
        numbers = [2, 3, 4]  # its manifest was there when the reset settled, and went along
    check_new_run(world, record, a.session.run_id, numbers)


@IN_MEMORY
@pytest.mark.parametrize("phase", SAVE)
@pytest.mark.parametrize("at", [layout.RUN, "*LATEST", "terms/0001.json"])
def test_a_writer_that_wakes_in_the_middle_of_a_reset_hinders_nobody_from_finishing_it(world: World, phase: str, at: str) -> None:
    a = three_generations(world)
    assert isinstance(a.store, FaultStore)
    gate = a.store.pause(*SAVE[phase])
    zombie = world.start(lambda: a.save(4))
    gate.wait_until_reached()
    dying = world.process()
    dying.kill("move", at, after=True)
    with pytest.raises(Killed):
        do_reset(world, dying)
    gate.release()
    with pytest.raises(MilepostError):
        done(zombie)
    record = finish_interrupted(world.plain())
    assert record is not None
    view = read(set_aside(world, record.run_id))
    check_new_run(world, record, a.session.run_id, list(view.live))
    assert {2, 3} <= set(view.live)


@pytest.mark.parametrize("operation", ["list", "delete", "delete blobs", "sync"])
def test_a_writer_that_slept_through_a_reset_while_it_retired_deletes_nothing_of_the_new_run(
    world: World, operation: str
) -> None:
    a = world.open(keep=Keep(last=1))
    assert isinstance(a.store, FaultStore)
    a.save(1, fixed=1)
    steps = {
        "list": ("list", layout.PINS, 2),
        "delete": ("delete", layout.manifest(1), 1),
        "sync": ("sync", layout.GENERATIONS, 1),
        "delete blobs": ("delete", "blobs/*", 1),
    }
    operation_, pattern, nth = steps[operation]
    gate = a.store.pause(operation_, pattern, nth=nth)
    second = world.start(lambda: a.save(2, fixed=2))
    gate.wait_until_reached()
    record = do_reset(world)
    b = world.open(keep=Keep(last=1))
    third = b.save(3, fixed=3)
    before = world.names(layout.BLOBS), world.numbers()
    gate.release()
    assert done(second).number == 2  # acknowledged before the reset
    assert (world.names(layout.BLOBS), world.numbers()) == before
    world.check(third)
    check_aside(world, record.run_id, [2])
    with pytest.raises(ConflictError) as caught:
        a.save(9)
    assert caught.value.kind in ("fenced", "was-reset")


def test_a_writer_that_deletes_while_the_reset_moves_does_not_stop_it(world: World) -> None:
    a = world.open(keep=Keep(last=1))
    assert isinstance(a.store, FaultStore)
    a.save(1, fixed=1)
    deleting = a.store.pause("delete", layout.manifest(1))
    second = world.start(lambda: a.save(2, fixed=2))
    deleting.wait_until_reached()
    store = world.process()
    moving = store.pause("move", layout.manifest(1))
    resetting = world.start(lambda: do_reset(world, store))
    moving.wait_until_reached()
    deleting.release()
    done(second)
    moving.release()
    record = done(resetting)
    check_aside(world, record.run_id, [2])
    check_new_run(world, record, a.session.run_id, [2])


CLAIM = {
    "before it looks": ("list", layout.GENERATIONS, 1),
    "before its fence": ("create", layout.fence(3), 1),
    "after its fence": ("sync", layout.TERMS, 1),
    "before it lists": ("list", layout.BLOBS, 1),
    "in its listing": ("list", layout.PINS, 1),
    "before it reads the terms": ("read", layout.settlement(1), 1),
    "before its settlement": ("create", "terms/*.from.json", 1),
    "before it looks whose run it is": ("read", layout.RUN, 2),
}


@pytest.mark.parametrize("phase", CLAIM)
@pytest.mark.parametrize("busy", [False, True], ids=["before the new run", "beside the new run"])
def test_a_claimer_that_slept_through_a_reset_is_told_and_hurts_nobody(world: World, phase: str, busy: bool) -> None:
    a = three_generations(world)
    world.open()
    old_id = a.session.run_id
    sleeper = world.process()
    operation, pattern, nth = CLAIM[phase]
    gate = sleeper.pause(operation, pattern, nth=nth)
    zombie = world.start(lambda: claim(sleeper, world.clock(), WHO))
    gate.wait_until_reached()
    record = do_reset(world)
    b = world.open() if busy else None
    first = b.save(5) if b else None
    gate.release()
    with pytest.raises(ConflictError) as caught:
        done(zombie)
    assert caught.value.kind in ("was-reset", "fenced")
    if b and first:
        second = b.save(6)  # the rightful writer is not stopped by a fence of another run
        world.check(first, second)
        assert world.open().head == second.number
        check_aside(world, old_id, [2, 3])
    else:
        check_new_run(world, record, old_id, [2, 3])


def test_a_claimer_that_finds_no_run_because_of_a_reset_does_not_count_from_one_again(world: World) -> None:
    three_generations(world)
    resetting = world.process()
    gate = resetting.pause("move", layout.manifest(1 + 1))
    r = world.start(lambda: do_reset(world, resetting))
    gate.wait_until_reached()
    with pytest.raises(ConflictError) as caught:
        claim(world.process(), world.clock(), WHO)
    assert caught.value.kind == "was-reset"
    gate.release()
    record = done(r)
    b = world.open()
    assert (b.session.run_id, b.term, b.session.chain.next) == (record.new_run_id, 3, 4)


# --- a reset that sleeps while another process finishes it --------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "pattern"),
    [
        ("move", layout.RUN),
        ("list", layout.TERMS),
        ("list", layout.EVENTS),
        ("move", layout.LATEST),
        ("create", layout.RUN),
        ("delete", layout.RESET),
    ],
)
def test_a_reset_that_was_finished_by_another_takes_nothing_of_the_new_run(world: World, operation: str, pattern: str) -> None:
    a = three_generations(world)
    sleeper = world.process()
    nth = 1 if operation != "list" else len(world_lists(world, pattern)) + 1
    gate = sleeper.pause(operation, pattern, nth=nth)
    slow = world.start(lambda: do_reset(world, sleeper))
    gate.wait_until_reached()
    b = world.open()
    assert b.head == 0
    saved = [b.save(value) for value in (7, 8)]
    gate.release()
    done(slow)
    saved.append(b.save(9))
    world.check(*saved[-2:])
    assert world.open().head == saved[-1].number
    check_aside(world, a.session.run_id, [2, 3])
    assert blobs_of(*world.view().live.values()) <= set(world.names(layout.BLOBS))


def world_lists(world: World, pattern: str) -> list[str]:
    """Return how often a claim lists a directory: the reset's own listing comes after that."""
    if pattern != layout.TERMS:
        return []
    counting = world.copy(10_000).process()
    claim(counting, world.clock(), WHO)
    return [name for name in counting.names_asked("list") if name == pattern]
