"""Reset: writers, claimers, movers and readers that sleep through one, at every point, and wake up later (rule 26)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from milepost.engine import oneshot
from milepost.errors import ConflictError, CorruptError, MilepostError, NotFoundError
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.verify import verify
from milepost.publish import layout, quarantine
from milepost.publish.manifest import encode
from milepost.publish.pins import pin
from milepost.publish.view import read
from milepost.store.base import Store
from milepost.testing.faults import FaultStore, Gate, Killed, Operation
from tests.publish.resets import IN_MEMORY, check_aside, check_new_run, do_reset, new_names, old_root, three_generations
from tests.publish.summaries import generation
from tests.publish.world import World, Writer, blobs_of, done, value_in

T = TypeVar("T")


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
    "between its two lists": ("list", layout.GENERATIONS, 3),
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
        before, aside = snapshot(trial), list(trial.names(layout.ASIDE))
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


# --- readers ------------------------------------------------------------------------------------------------------------


class Watched(FaultStore):
    """Let somebody look before each operation."""

    look: Callable[[], None]

    def _run(self, operation: str, name: str, apply: Callable[[], T]) -> T:
        self.look()
        return super()._run(operation, name, apply)


def load_or_none(store: Store) -> float | None:
    """Return what a reader gets; None if it is told that there is no generation yet."""
    try:
        return value_in(oneshot.load(store))
    except NotFoundError as error:
        if error.kind != "no-generation":
            raise
        return None


def test_a_reader_who_looks_at_any_moment_of_a_reset_sees_the_old_run_or_an_empty_new_one(world: World) -> None:
    old_id = three_generations(world).session.run_id
    seen: list[tuple[bool, int, float | None]] = []

    def look() -> None:
        view = world.view()
        seen.append((view.run_id == old_id, view.head.number if view.head else 0, load_or_none(world.plain())))

    store = Watched(world.plain())
    store.look = look
    do_reset(world, store)
    changed = seen.index((False, 0, None))
    assert set(seen[:changed]) == {(True, 3, 3)}
    assert set(seen[changed:]) == {(False, 0, None)}
    store.look = lambda: None


@IN_MEMORY
@pytest.mark.parametrize("busy", [False, True], ids=["no new run yet", "the new run has saved"])
def test_a_reader_that_sleeps_through_a_reset_gets_the_old_run_or_the_new_one(world: World, busy: bool) -> None:
    old_id = three_generations(world).session.run_id
    asked = asked_by(world, lambda _, store: oneshot.load(store))
    allowed = {3, None, 7} if busy else {3, None}
    for index in range(len(asked)):
        trial = world.copy(index)
        store = trial.process()
        gate = gate_before(store, asked, index)
        reader = trial.start(lambda: load_or_none(store))  # noqa: B023 - it ends within the iteration
        gate.wait_until_reached()
        do_reset(trial)
        b = trial.open() if busy else None
        if b:
            b.save(7)
        gate.release()
        assert done(reader) in allowed, asked[index]
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
            oneshot.load(world.plain(), which=which)
        assert isinstance(caught.value, NotFoundError)
    assert blobs_of(*world.view().live.values()) == set()
