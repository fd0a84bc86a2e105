"""Reset: a settlement that voids the old run, whose files then go aside whole, whoever dies or sleeps meanwhile (rule 26)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from milepost.engine import oneshot
from milepost.errors import ConflictError, CorruptError, MilepostError, NotFoundError, StoreError
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.verify import verify
from milepost.publish import layout, quarantine
from milepost.publish.manifest import decode, encode
from milepost.publish.pins import pin
from milepost.publish.pointer import read_latest, read_progress
from milepost.publish.reset import reset
from milepost.publish.view import View, read
from milepost.records import Pin, Reset, Settlement
from milepost.store.base import Store
from milepost.store.local import LocalStore
from milepost.store.memory import MemoryStore
from milepost.testing.faults import FaultStore, Gate, Killed, Operation
from tests.publish.summaries import generation
from tests.publish.world import WHO, World, Writer, blobs_of, done, value_in

T = TypeVar("T")

IN_MEMORY = pytest.mark.parametrize("world", ["memory"], indirect=True)
"""For the long tables; the shorter ones around them run on files, too."""


def old_root(world: World, run_id: str) -> Store:
    """Return the old run, as the run root that it still is."""
    if world.kind == "local":
        return LocalStore(world.path / "reset" / run_id, world.clock())
    other, prefix = MemoryStore(), f"{layout.ASIDE}{run_id}/"
    for name in world.names(prefix):
        other.create(name.removeprefix(prefix), world.plain().read(name))
    return other


def three_generations(world: World) -> Writer:
    """Let the old run publish 1, 2 and 3, of which 2 and 3 are live, 2 is pinned and 3 is marked."""
    a = world.open()
    for value in (1, 2, 3):
        a.save(value)
    pin(world.plain(), 2)
    quarantine.mark(world.plain(), world.clock(), run_id=a.session.run_id, term=1, number=3, kind="damaged", reason="seen")
    return a


def do_reset(world: World, store: Store | None = None) -> Reset:
    return reset(store or world.plain(), world.clock(), WHO)


def new_names(world: World) -> list[str]:
    """Return what lies in the root beside what was set aside."""
    return [name for name in world.names() if not name.startswith(layout.ASIDE) and not name.endswith(".lock")]


def check_aside(world: World, run_id: str, numbers: list[int]) -> View:
    """Check that the old run is whole where it was put, and that nothing of another run is there."""
    old = old_root(world, run_id)
    view = read(old)
    assert (view.run_id, list(view.live), view.undecided) == (run_id, numbers, False)
    assert verify(old).problems == ()
    assert {summary.run_id for summary in view.listing.summaries.values()} <= {run_id}
    return view


def check_new_run(world: World, old_id: str, numbers: list[int]) -> None:
    """Check that the next claimers go on with the new run undisturbed, and that the old one is whole."""
    b = world.open()
    assert b.session.run_id != old_id
    assert b.head == 0 or world.view().listing.summaries[b.head].run_id == b.session.run_id
    saved = [b.save(value) for value in (7, 8)]
    world.check(*saved)
    c = world.open()
    assert (c.session.run_id, c.head) == (b.session.run_id, saved[-1].number)
    world.check(*saved)
    check_aside(world, old_id, numbers)
    assert not [name for name in new_names(world) if (layout.blob_term(name) or c.term) < 2]


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


def test_the_run_set_aside_goes_on_as_a_root_of_its_own(world: World) -> None:
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
    assert (b.session.run_id, b.term, b.head, b.session.chain.next) == (made.run_id, 3, 3, 4)
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
    seen = set()
    for count, (trial, finished) in enumerate(trials(world, do_reset)):
        begun = settled_resets(trial) > 0
        seen.add(begun)
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
    assert count > 40
    assert seen == {False, True}


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


# --- writers of the old run that sleep through it -----------------------------------------------------------------------


SAVE = {
    "before its first byte": ("replace", layout.PROGRESS),
    "before its blob": ("open_blob", "blobs/*"),
    "in its blob": ("write_blob", "blobs/*"),
    "before its blob is durable": ("commit_blob", "blobs/*"),
    "before its manifest": ("create", layout.manifest(4)),
    "before it looks at the terms": ("list", layout.TERMS),
}

RESET = {
    "before its fence": ("create", layout.fence(2), 1),
    "before it lists": ("list", layout.BLOBS, 1),
    "before its settlement": ("create", layout.settlement(2), 1),
    "before it moves": ("list", layout.BLOBS, 2),
    "in the middle": ("move", layout.manifest(2), 1),
    "before its last word": ("create", "reset/*/milepost.json", 1),
}


def in_mid_save(world: World, phase: str) -> tuple[Writer, Callable[[], object]]:
    """Let the old run's writer stand in the middle of saving 4; return what lets it go on and returns or raises its answer."""
    a = three_generations(world)
    assert isinstance(a.store, FaultStore)
    gate = a.store.pause(*SAVE[phase])
    saving = world.start(lambda: a.save(4))
    gate.wait_until_reached()

    def wake() -> object:
        gate.release()
        return done(saving)

    return a, wake


@pytest.mark.parametrize("phase", SAVE)
@pytest.mark.parametrize("busy", [False, True], ids=["alone", "beside the new run"])
def test_a_writer_that_slept_through_a_reset_in_the_middle_of_a_save_acknowledges_nothing(
    world: World, phase: str, busy: bool
) -> None:
    a, wake = in_mid_save(world, phase)
    do_reset(world)
    b = world.open() if busy else None
    saved = [b.save(7), b.save(8)] if b else []
    with pytest.raises(MilepostError) as caught:
        wake()
    if phase not in ("in its blob", "before its blob is durable"):  # there the part that it was writing is gone
        assert isinstance(caught.value, ConflictError)
    if b:
        saved.append(b.save(9))
        world.check(*saved[1:])
    # Its manifest, if it was there before the reset listed, went along: nobody was told that it counts, and it does no harm.
    numbers = [2, 3, 4] if phase == "before it looks at the terms" else [2, 3]
    check_new_run(world, a.session.run_id, numbers)


@IN_MEMORY
@pytest.mark.parametrize("phase", SAVE)
@pytest.mark.parametrize("at", RESET)
def test_a_writer_that_wakes_in_the_middle_of_a_reset_is_acknowledged_before_its_fence_or_never(
    world: World, phase: str, at: str
) -> None:
    a, wake = in_mid_save(world, phase)
    store = world.process()
    operation, pattern, nth = RESET[at]
    gate = store.pause(operation, pattern, nth=nth)
    resetting = world.start(lambda: do_reset(world, store))
    gate.wait_until_reached()
    acknowledged = False
    try:
        wake()
        acknowledged = True
    except MilepostError:
        pass
    gate.release()
    made = done(resetting)
    assert acknowledged == (at == "before its fence")
    numbers = [2, 3, 4] if made.head == 4 else [2, 3]
    assert made.head == 4 or not acknowledged
    check_new_run(world, a.session.run_id, numbers)


RETIRE = {
    "before it looks at the pins": ("list", layout.PINS, 2),
    "before it deletes a manifest": ("delete", layout.manifest(1), 1),
    "before it deletes blobs": ("sync", layout.GENERATIONS, 1),
    "before it deletes a blob": ("delete", "blobs/*", 1),
}


@pytest.mark.parametrize("phase", RETIRE)
@pytest.mark.parametrize("at", [None, *RESET])
def test_a_writer_that_retires_while_or_after_its_run_is_reset_deletes_nothing_else(
    world: World, phase: str, at: str | None
) -> None:
    a = world.open(keep=Keep(last=1))
    assert isinstance(a.store, FaultStore)
    a.save(1, fixed=1)
    operation, pattern, nth = RETIRE[phase]
    retiring = a.store.pause(operation, pattern, nth=nth)
    second = world.start(lambda: a.save(2, fixed=2))
    retiring.wait_until_reached()
    store = world.process()
    if at is None:
        do_reset(world, store)
        b = world.open(keep=Keep(last=1))
        third = b.save(3, fixed=3)
        before = world.names(layout.BLOBS), world.numbers()
        retiring.release()
        assert done(second).number == 2  # acknowledged before the reset
        assert (world.names(layout.BLOBS), world.numbers()) == before
        world.check(third)
    else:
        operation, pattern, nth = RESET[at]
        gate = store.pause(operation, pattern, nth=nth)
        resetting = world.start(lambda: do_reset(world, store))
        gate.wait_until_reached()
        retiring.release()
        assert done(second).number == 2
        gate.release()
        assert done(resetting).head == 2
    with pytest.raises(ConflictError) as caught:
        a.save(9)
    assert caught.value.kind == "fenced"
    check_new_run(world, a.session.run_id, [2])


CLAIM = {
    "after its fence": ("sync", layout.TERMS, 1),
    "before it lists": ("list", layout.BLOBS, 1),
    "in its listing": ("list", layout.GENERATIONS, 2),
    "before it reads the terms": ("read", layout.settlement(1), 1),
    "before it looks at the pins": ("list", layout.PINS, 1),
    "before its settlement": ("create", layout.settlement(2), 1),
}


@pytest.mark.parametrize("phase", CLAIM)
@pytest.mark.parametrize("busy", [False, True], ids=["alone", "beside the new run"])
def test_a_claimer_that_slept_through_a_reset_is_told_and_hurts_nobody(world: World, phase: str, busy: bool) -> None:
    a = three_generations(world)
    sleeper = world.process()
    operation, pattern, nth = CLAIM[phase]
    gate = sleeper.pause(operation, pattern, nth=nth)
    zombie = world.start(lambda: world.open(sleeper))
    gate.wait_until_reached()
    made = do_reset(world)
    assert (made.term, made.head) == (3, 3)
    b = world.open() if busy else None
    saved = [b.save(5)] if b else []
    gate.release()
    with pytest.raises(ConflictError) as caught:
        done(zombie)
    assert caught.value.kind == "fenced"
    if b:
        saved.append(b.save(6))
        world.check(*saved)
    check_new_run(world, a.session.run_id, [2, 3])


def test_a_claimer_that_had_not_fenced_yet_claims_the_new_run(world: World) -> None:
    a = three_generations(world)
    sleeper = world.process()
    gate = sleeper.pause("create", layout.fence(2))
    late = world.start(lambda: world.open(sleeper))
    gate.wait_until_reached()
    do_reset(world)
    gate.release()
    b = done(late)
    assert (b.session.run_id != a.session.run_id, b.term, b.head) == (True, 3, 0)
    world.check(b.save(9))


TIDY = {
    "with its settlement made": ("sync", layout.TERMS, 2),
    "before it deletes a manifest": ("delete", layout.manifest(1), 1),
    "before it deletes a blob": ("delete", "blobs/*", 1),
    "before it points at the head": ("replace", layout.LATEST, 1),
}


@pytest.mark.parametrize("phase", TIDY)
def test_a_claimer_that_wakes_with_its_claim_settled_sweeps_only_what_was_dead_already(world: World, phase: str) -> None:
    a = three_generations(world)
    world.plain().create(layout.manifest(1), encode(generation(1, run_id=a.session.run_id)))  # its delete was lost
    world.plain().create("blobs/000004-t1-00000000000000aa.safetensors", b"of a save that died")
    sleeper = world.process()
    operation, pattern, nth = TIDY[phase]
    gate = sleeper.pause(operation, pattern, nth=nth)
    zombie = world.start(lambda: world.open(sleeper))
    gate.wait_until_reached()
    do_reset(world)
    b = world.open()
    saved = [b.save(5), b.save(6)]
    gate.release()
    late = done(zombie)
    with pytest.raises(ConflictError):
        late.save(9)
    world.check(saved[1], b.save(7))
    check_new_run(world, a.session.run_id, [2, 3])


def test_a_pin_promised_while_the_run_is_reset_holds_where_it_is_now(world: World) -> None:
    a = three_generations(world)
    store = world.process()
    promising = store.pause("replace", layout.pin(3), nth=2)
    p = world.start(lambda: pin(store, 3))
    promising.wait_until_reached()
    made = do_reset(world)
    b = world.open()
    saved = b.save(9)
    promising.release()
    assert done(p).number == 3
    assert read(old_root(world, made.run_id)).pins[3].state == "held"
    assert world.view().pins == {}  # what it wrote here is of another run
    world.check(saved, b.save(10))
    check_aside(world, a.session.run_id, [2, 3])


# --- movers that sleep while others finish ------------------------------------------------------------------------------


def gate_before(store: FaultStore, asked: list[Operation], index: int) -> Gate:
    """Pause a process before its operation ``index`` of those that another was seen to ask."""
    nth = sum(each == asked[index] for each in asked[: index + 1])
    return store.pause(asked[index].operation, asked[index].name, nth=nth)


def settled_at(asked: list[Operation], term: int) -> int:
    return asked.index(Operation("create", layout.settlement(term)))


def asked_by(world: World, action: Callable[[World, FaultStore], object]) -> list[Operation]:
    """Return every operation of ``action``, tried on a copy."""
    trial = world.copy(10_000)
    store = trial.process()
    action(trial, store)
    return [Operation(each.operation, each.name) for each in store.operations]


def busy_new_run(world: World) -> Writer:
    """Finish the reset that was left, and leave every kind of file of the new run in the root."""
    b = world.open()
    assert b.head == 0
    for value in (7, 8):
        b.save(value)
    pin(world.plain(), 5)
    quarantine.mark(world.plain(), world.clock(), run_id=b.session.run_id, term=b.term, number=4, kind="damaged", reason="x")
    world.plain().replace(layout.pin(4), b"torn")
    return b


def snapshot(world: World) -> dict[str, bytes]:
    return {name: world.plain().read(name) for name in new_names(world)}


def test_a_reset_that_was_finished_by_another_takes_nothing_of_the_new_run(world: World) -> None:
    old_id = three_generations(world).session.run_id
    asked = asked_by(world, do_reset)
    first = settled_at(asked, 2) + 1
    assert len(asked) - first > 25
    for index in range(first, len(asked)):
        trial = world.copy(index)
        sleeper = trial.process()
        gate = gate_before(sleeper, asked, index)
        slow = trial.start(lambda: do_reset(trial, sleeper))  # noqa: B023 - it ends within the iteration
        gate.wait_until_reached()
        b = busy_new_run(trial)
        before, aside = snapshot(trial), [name for name in trial.names(layout.ASIDE)]
        gate.release()
        assert done(slow).run_id == old_id
        assert snapshot(trial) == before, asked[index]
        assert trial.names(layout.ASIDE) == aside, asked[index]
        trial.check(b.save(9))
        assert trial.open().head == 6
        check_aside(trial, old_id, [2, 3])
        trial.close()


@IN_MEMORY
def test_a_claimer_that_finishes_a_reset_more_slowly_than_another_takes_nothing_either(world: World) -> None:
    old_id = three_generations(world).session.run_id
    dying = world.process()
    dying.kill("move", layout.manifest(2))
    with pytest.raises(Killed):
        do_reset(world, dying)
    asked = asked_by(world, lambda trial, store: trial.open(store))
    first = settled_at(asked, 3) + 1
    last = max(index for index, each in enumerate(asked) if each == Operation("create", f"reset/{old_id}/milepost.json"))
    assert last - first > 10
    for index in range(first, last + 1):
        trial = world.copy(index)
        sleeper = trial.process()
        gate = gate_before(sleeper, asked, index)
        slow = trial.start(lambda: trial.open(sleeper))  # noqa: B023 - it ends within the iteration
        gate.wait_until_reached()
        b = busy_new_run(trial)
        before = snapshot(trial)
        gate.release()
        late = done(slow)
        after = snapshot(trial)
        mine = {layout.events(3), layout.LATEST}  # its log, and the pointer that may go backwards (rule 21)
        assert {name: data for name, data in after.items() if name not in mine} == {
            name: data for name, data in before.items() if name not in mine
        }, asked[index]
        with pytest.raises(ConflictError):
            late.save(1)
        trial.check(b.save(9))
        check_aside(trial, old_id, [2, 3])
        trial.close()


@IN_MEMORY
def test_of_two_resets_at_once_each_sets_one_run_aside_or_is_told(world: World) -> None:
    old_id = three_generations(world).session.run_id
    asked = asked_by(world, do_reset)
    fenced, settled = asked.index(Operation("create", layout.fence(2))), settled_at(asked, 2)
    for index in range(len(asked)):
        trial = world.copy(index)
        sleeper = trial.process()
        gate = gate_before(sleeper, asked, index)
        slow = trial.start(lambda: do_reset(trial, sleeper))  # noqa: B023 - it ends within the iteration
        gate.wait_until_reached()
        quick = do_reset(trial)
        gate.release()
        if fenced < index <= settled:
            with pytest.raises(ConflictError):
                done(slow)
            assert quick.run_id == old_id
        else:
            ids = [quick.run_id, done(slow).run_id]
            assert ids.count(old_id) == 1  # the other one has set the new run aside, which had published nothing
            check_aside(trial, next(run_id for run_id in ids if run_id != old_id), [])
        check_aside(trial, old_id, [2, 3])
        check_new_run(trial, old_id, [2, 3])
        trial.close()


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


def test_a_manifest_that_an_old_writer_makes_once_more_does_not_replace_the_one_set_aside(world: World) -> None:
    a = three_generations(world)
    made = do_reset(world)
    aside = world.plain().read(made.to + layout.manifest(2))
    again = generation(2, run_id=a.session.run_id)
    world.plain().create(layout.manifest(2), encode(again))
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


# --- readers ------------------------------------------------------------------------------------------------------------


class Watched(FaultStore):
    """Let somebody look before each operation."""

    look: Callable[[], None]

    def _run(self, operation: str, name: str, apply: Callable[[], T]) -> T:
        self.look()
        return super()._run(operation, name, apply)


def test_a_reader_who_looks_at_any_moment_of_a_reset_sees_the_old_run_or_an_empty_new_one(world: World) -> None:
    old_id = three_generations(world).session.run_id
    seen: list[tuple[bool, int, float]] = []

    def look() -> None:
        view = world.view()
        try:
            value = world.value()
        except NotFoundError as error:
            assert error.kind == "no-generation"
            value = 0
        seen.append((view.run_id == old_id, view.head.number if view.head else 0, value))

    store = Watched(world.plain())
    store.look = look
    do_reset(world, store)
    changed = seen.index((False, 0, 0))
    assert set(seen[:changed]) == {(True, 3, 3)}
    assert set(seen[changed:]) == {(False, 0, 0)}
    store.look = lambda: None


@IN_MEMORY
@pytest.mark.parametrize("busy", [False, True], ids=["no new run yet", "the new run has saved"])
def test_a_reader_that_sleeps_through_a_reset_gets_the_old_run_or_the_new_one(world: World, busy: bool) -> None:
    old_id = three_generations(world).session.run_id
    asked = asked_by(world, lambda _, store: oneshot.load(store))
    allowed = {"old", "none", "new"} if busy else {"old", "none"}
    for index in range(len(asked)):
        trial = world.copy(index)
        store = trial.process()
        gate = gate_before(store, asked, index)
        reader = trial.start(lambda: oneshot.load(store))  # noqa: B023 - it ends within the iteration
        gate.wait_until_reached()
        do_reset(trial)
        b = trial.open() if busy else None
        if b:
            b.save(7)
        gate.release()
        try:
            got = {3.0: "old", 7.0: "new"}[value_in(done(reader))]
        except NotFoundError as error:
            assert error.kind == "no-generation"
            got = "none"
        assert got in allowed, asked[index]
        view = trial.view()
        assert view.run_id != old_id
        assert view.head is None or view.head.run_id == view.run_id
        trial.close()


@IN_MEMORY
def test_a_check_that_sleeps_through_a_reset_reports_no_damage(world: World) -> None:
    three_generations(world)
    asked = asked_by(world, lambda _, store: verify(store))
    for index in range(len(asked)):
        trial = world.copy(index)
        store = trial.process()
        gate = gate_before(store, asked, index)
        checking = trial.start(lambda: verify(store))  # noqa: B023 - it ends within the iteration
        gate.wait_until_reached()
        do_reset(trial)
        gate.release()
        assert done(checking).problems == (), asked[index]
        trial.close()


def test_an_error_of_the_old_runs_reader_is_never_that_its_data_is_damaged(world: World) -> None:
    three_generations(world)
    do_reset(world)
    for which in ("latest", 3):
        with pytest.raises((NotFoundError, CorruptError)) as caught:
            oneshot.load(world.plain(), which=which)  # type: ignore[arg-type]
        assert isinstance(caught.value, NotFoundError)
    assert blobs_of(*world.view().live.values()) == set()
