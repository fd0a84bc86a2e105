"""What anyone who lists a root makes of it: rules 1, 2, 3, 3a and 26 as tables, and against a plain definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import ConflictError, CorruptError, MismatchError, NotFoundError
from milepost.publish import layout
from milepost.publish.manifest import encode
from milepost.publish.reset import reset
from milepost.publish.view import Listing, Terms, judge, read
from milepost.records import Pin, QuarantineMark, Reset, RunRecord, Settlement, Summary
from milepost.testing.faults import Killed
from tests.publish.summaries import OTHER, RUN_ID, fence, generation, held, listing, terms, wanted
from tests.publish.world import WHO, World

ONE, TWO, THREE = generation(1), generation(2, keep=[1]), generation(3, keep=[2])
FOREIGN = generation(3, term=7, run_id="c" * 32)
SET_ASIDE = Reset(RUN_ID, 2, 4, 1, 3, "")
"""Term 3 sets the run aside: its head was 2, and 3 was a number that somebody had used."""
NEW = generation(4, term=3, run_id=OTHER)

JUDGEMENTS = {
    "nothing": (listing(), terms({1: 0}), {}, None, [], []),
    "the highest is the head, and what it keeps is live": (listing(ONE, TWO), terms({1: 0}), {}, 2, [1, 2], []),
    "what the head does not keep is dead though it is there": (listing(ONE, TWO, THREE), terms({1: 0}), {}, 3, [2, 3], []),
    "what the head keeps and is not there is not live": (
        listing(TWO, generation(3, keep=[1, 2])),
        terms({1: 0}),
        {},
        3,
        [2, 3],
        [],
    ),
    "rule 1: above the head of a higher settlement is void": (listing(ONE, TWO, THREE), terms({1: 0, 2: 2}), {}, 2, [1, 2], [3]),
    "rule 1: at the head of a higher settlement is not void": (listing(ONE, TWO, THREE), terms({1: 0, 2: 3}), {}, 3, [2, 3], []),
    "rule 1: of the settlement's own term is not void": (
        listing(TWO, generation(3, term=2, keep=[2])),
        terms({1: 0, 2: 2}),
        {},
        3,
        [2, 3],
        [],
    ),
    "rule 1: any higher term will do": (listing(ONE, TWO), terms({1: 0, 2: 2, 3: 1}), {}, 1, [1], [2]),
    "rule 1: a lower settlement voids nothing": (listing(ONE, generation(2, term=2)), terms({1: 0, 2: 1}), {}, 2, [2], []),
    "rule 1: a dead settlement voids nothing": (listing(ONE, TWO, THREE), terms({1: 0, 2: None}), {}, 3, [2, 3], []),
    "rule 1: everything may be void": (listing(ONE), terms({1: 0, 2: 0}), {}, None, [], [1]),
    "rule 2: a void manifest's keep counts for nothing": (
        listing(ONE, TWO, generation(3, keep=[1])),
        terms({1: 0, 2: 2}),
        {},
        2,
        [1, 2],
        [3],
    ),
    "rule 2: the keep of one that is not the head counts for nothing": (
        listing(ONE, TWO, generation(3)),
        terms({1: 0}),
        {},
        3,
        [3],
        [],
    ),
    "rule 2: a held pin makes alive": (listing(ONE, TWO, THREE), terms({1: 0}), held(1), 3, [1, 2, 3], []),
    "rule 2: a wanted pin does not": (listing(ONE, TWO, THREE), terms({1: 0}), wanted(1), 3, [2, 3], []),
    "rule 2: a held pin on what is not there": (listing(TWO, THREE), terms({1: 0}), held(1), 3, [2, 3], []),
    "rule 2: a held pin on what is void": (listing(ONE, TWO, THREE), terms({1: 0, 2: 2}), held(3), 2, [1, 2], [3]),
    "rule 3a: an unreadable one is never the head": (listing(ONE, TWO, unreadable=[3]), terms({1: 0}), {}, 2, [1, 2], []),
    "rule 3a: nor live though it is kept": (listing(ONE, THREE, unreadable=[2]), terms({1: 0}), {}, 3, [3], []),
    "rule 26: a foreign one is as if it were not there": (listing(ONE, TWO, FOREIGN), terms({1: 0}), {}, 2, [1, 2], []),
    "rule 26: one that says the term of another run is foreign": (
        listing(ONE, TWO, generation(3, run_id=OTHER)),
        terms({1: 0, 3: 0}, reset=SET_ASIDE),
        {},
        None,
        [],
        [1, 2],
    ),
    "rule 26: without a settlement nobody can say what is foreign": (listing(FOREIGN), Terms({}, {}), {}, 3, [3], []),
    "rule 26: a reset makes everything void": (listing(ONE, TWO), terms({1: 0, 3: 0}, reset=SET_ASIDE), {}, None, [], [1, 2]),
    "rule 26: what is pinned, too": (listing(ONE, TWO), terms({1: 0, 3: 0}, reset=SET_ASIDE), held(1), None, [], [1, 2]),
    "rule 26: but not what comes after it": (
        listing(ONE, TWO, NEW),
        terms({1: 0, 3: 0}, reset=SET_ASIDE),
        {},
        4,
        [4],
        [1, 2],
    ),
    "rule 26: nor later, under settlements of the new run": (
        listing(TWO, NEW, generation(5, term=4, run_id=OTHER, keep=[4])),
        terms({1: 0, 3: 0, 4: 4}, reset=SET_ASIDE),
        {},
        5,
        [4, 5],
        [2],
    ),
}


@pytest.mark.parametrize("case", JUDGEMENTS)
def test_the_head_the_live_and_the_void_are(case: str) -> None:
    found, told, pins, head, live, void = JUDGEMENTS[case]
    view = judge(RUN_ID, found, told, pins, {})
    assert (view.head.number if view.head else None) == head
    assert list(view.live) == live
    assert view.void == set(void)


UNDECIDED = {
    "a higher fence without settlement": (listing(ONE), terms({1: 0}, fenced=[2]), True),
    "a higher fence that settled": (listing(ONE), terms({1: 0, 2: 1}), False),
    "a higher fence that is dead": (listing(ONE), terms({1: 0, 2: None}), False),
    "an open fence between two that settled": (listing(ONE), terms({1: 0, 3: 1}, fenced=[2]), True),
    "an open fence of a lower term": (listing(generation(1, term=2)), terms({2: 0}, fenced=[1]), False),
    "a fence that cannot be read fences by its name": (
        listing(ONE),
        Terms({1: fence(1), 2: None}, terms({1: 0}).settlements),
        True,
    ),
    "nothing that could become void": (listing(), terms({1: 0}, fenced=[2]), False),
}


@pytest.mark.parametrize("case", UNDECIDED)
def test_the_head_is_undecided_under(case: str) -> None:
    found, told, undecided = UNDECIDED[case]
    assert judge(RUN_ID, found, told, {}, {}).undecided is undecided


RESET_3 = terms({1: 0, 3: 0}, reset=SET_ASIDE)

DOUBTS = {
    # what is listed, what the terms say, the barrier, and how far generations are unsure (rule 3a)
    "all can be read": (listing(ONE, TWO), terms({1: 0}), 0, 0),
    "one above the head cannot": (listing(ONE, TWO, unreadable=[3]), terms({1: 0}), 3, 3),
    "several cannot: the highest counts": (listing(ONE, unreadable=[2, 7]), terms({1: 0}), 7, 7),
    "one below the head cannot: no manifest above it dropped anything unseen": (
        listing(THREE, unreadable=[2]),
        terms({1: 0}),
        2,
        0,
    ),
    "one below and one above": (listing(ONE, THREE, unreadable=[2, 4]), terms({1: 0}), 4, 4),
    "none can": (listing(unreadable=[1, 2]), terms({1: 0}), 2, 2),
    "it was recorded, and the head is above it now": (
        listing(TWO, generation(4, term=2), unreadable=[3]),
        terms({1: 0, 2: 2}, unsure=3),
        3,
        3,
    ),
    "it was recorded, and the file is gone": (listing(TWO, generation(4, term=2)), terms({1: 0, 2: 2}, unsure=3), 0, 3),
    "an older settlement recorded it": (
        listing(generation(4, term=2)),
        Terms({}, {2: Settlement(RUN_ID, 2, 2, 4, 3), 3: Settlement(RUN_ID, 3, 4, 5)}),
        0,
        3,
    ),
    "a void one is no head": (listing(ONE, TWO, unreadable=[3]), terms({1: 0, 2: 1}), 3, 3),
    "one of a run that was set aside cannot": (listing(NEW, unreadable=[3]), RESET_3, 0, 0),
    "one of that run and one of this": (listing(NEW, unreadable=[3, 5]), RESET_3, 5, 5),
    "the first of a new run": (listing(unreadable=[4]), RESET_3, 4, 4),
    "one says another number": (listing(ONE, misnamed={3: ONE}), terms({1: 0}), 3, 3),
    "a foreign one says another number": (listing(ONE, misnamed={5: FOREIGN}), terms({1: 0}), 0, 0),
}


@pytest.mark.parametrize("case", DOUBTS)
def test_what_may_be_half_deleted_and_what_may_not_be_deleted_where(case: str) -> None:
    found, told, barrier, unsure = DOUBTS[case]
    view = judge(RUN_ID, found, told, {}, {})
    assert (view.barrier, view.unsure) == (barrier, unsure)


def test_a_manifest_that_says_another_number_is_unreadable_if_it_is_ours_and_foreign_if_it_is_not() -> None:
    view = judge(RUN_ID, listing(ONE, misnamed={3: TWO, 5: FOREIGN}), terms({1: 0}), {}, {})
    assert (dict(view.unreadable), view.foreign) == ({3: "it says that it is generation 2"}, {5})
    assert list(view.live) == [1]


LINES = {
    # rule 27: where a fallback may go
    "of a run that never turned: all of it": (generation(3, keep=[1, 2], line=[1, 2]), [1, 2, 3], {}, [1, 2, 3]),
    "of a rollback to 1: not what it left behind": (generation(4, keep=[1, 2, 3], line=[1]), [1, 2, 3, 4], {}, [1, 4]),
    "of a fresh start: itself alone": (generation(4, keep=[2, 3]), [2, 3, 4], {}, [4]),
    "only what is live: the head's word is not enough": (generation(3, keep=[1, 2], line=[1, 2]), [2, 3], {}, [2, 3]),
    "a pin makes alive, but brings nothing into the line": (generation(3, line=[]), [2, 3], held(2), [3]),
}


@pytest.mark.parametrize("case", LINES)
def test_the_line_is(case: str) -> None:
    head, there, pins, line = LINES[case]
    others = [generation(number) for number in there if number != head.number]
    assert list(judge(RUN_ID, listing(*others, head), terms({1: 0}), pins, {}).line) == line


def test_there_is_no_line_without_a_head() -> None:
    assert judge(RUN_ID, listing(unreadable=[1]), terms({1: 0}), {}, {}).line == {}


RUNS = {
    # rule 26: whose root it is, by its settlements in the order of their terms; None where milepost.json alone says it
    "nobody has settled": ([], None),
    "one run": ([Settlement(RUN_ID, 1, 0, 1)], RUN_ID),
    "a new one since a reset": ([Settlement(RUN_ID, 1, 0, 1), Settlement(OTHER, 3, 0, 4, 0, SET_ASIDE)], OTHER),
    "a claimer that died after the reset says nothing": (
        [Settlement(OTHER, 2, 0, 3), Settlement("", 3, 0, 0, dead=True)],
        OTHER,
    ),
    "only dead ones": ([Settlement("", 1, 0, 0, dead=True)], None),
}


@pytest.mark.parametrize("case", RUNS)
def test_the_run_of_a_root_is_that_of_its_highest_settlement_that_counts(case: str, world: World) -> None:
    settled, run_id = RUNS[case]
    world.plain().create(layout.RUN, encode(RunRecord(1, "e" * 32, "")))
    for each in settled:
        world.plain().create(layout.settlement(each.term), encode(each))
    assert world.view().run_id == (run_id or "e" * 32)
    world.plain().delete(layout.RUN)
    if run_id is None:
        with pytest.raises(NotFoundError):
            world.view()
    else:
        assert world.view().run_id == run_id


def test_resets_are_known_from_every_settlement_that_tells_of_one() -> None:
    second = Reset(OTHER, 5, 6, 3, 7, "")
    told = Terms({}, {4: Settlement(OTHER, 4, 0, 4, 0, SET_ASIDE), 7: Settlement("d" * 32, 7, 0, 6, 0, second)})
    assert told.resets == (SET_ASIDE, second)
    assert Terms({}, {}).resets == ()


def test_what_is_foreign_or_unreadable_still_takes_its_number_and_its_term() -> None:
    assert listing(ONE, unreadable=[5], misnamed={9: ONE}).highest == 9
    assert Listing().highest == 0
    assert Terms({1: None}, {}, frozenset({4})).highest == 4


@st.composite
def roots(draw: st.DrawFn) -> tuple[dict[int, Summary], dict[int, int | None], set[int]]:
    numbers = draw(st.sets(st.integers(1, 8), max_size=6))
    manifests = {
        n: generation(n, term=draw(st.integers(1, 4)), keep=draw(st.sets(st.integers(1, max(n - 1, 1)), max_size=4)))
        for n in numbers
    }
    settled = draw(st.dictionaries(st.integers(1, 5), st.none() | st.integers(0, 8), max_size=4))
    return manifests, settled, draw(st.sets(st.integers(1, 8), max_size=3))


@given(roots())
def test_judging_agrees_with_the_rules_read_word_by_word(
    root: tuple[dict[int, Summary], dict[int, int | None], set[int]],
) -> None:
    manifests, settled, pinned = root
    view = judge(RUN_ID, listing(*manifests.values()), terms(settled), held(*pinned), {})
    void = set()
    for number, manifest in manifests.items():
        for term, head in settled.items():
            if head is not None and term > manifest.term and number > head:
                void.add(number)
    standing = set(manifests) - void
    assert view.void == void
    if not standing:
        assert view.head is None
        assert view.live == {}
        return
    head = manifests[max(standing)]
    assert view.head == head
    assert set(view.live) == standing & ({head.number} | set(head.keep) | pinned)


# --- reading ------------------------------------------------------------------------------------------------------------


def spoil(world: World, name: str, position: int = -20) -> None:
    """Flip one bit of a record."""
    data = bytearray(world.plain().read(name))
    data[position] ^= 1
    world.plain().replace(name, bytes(data))


def test_a_directory_that_holds_no_run_is_said_to_be_none(world: World) -> None:
    with pytest.raises(NotFoundError) as caught:
        read(world.plain())
    assert caught.value.kind == "no-such-run"


def test_what_is_not_milepost_s_is_not_looked_at(world: World) -> None:
    a = world.open()
    a.save(1)
    for name in ("generations/notes.txt", "terms/readme", "pins/README", "quarantine/x", "blobs/mine.bin", "model.pt"):
        world.plain().create(name, b"mine")
    a.save(2)
    b = world.open()
    assert (b.head, set(b.opened.claimed.view.live)) == (2, {1, 2})
    assert {"generations/notes.txt", "blobs/mine.bin", "model.pt"} <= set(world.names())


def test_a_manifest_that_cannot_be_read_is_passed_over_and_keeps_its_number(world: World) -> None:
    a = world.open()
    a.save(1)
    a.save(2)
    spoil(world, layout.manifest(2))
    view = world.view()
    assert view.head is not None
    assert (view.head.number, list(view.listing.unreadable), view.barrier) == (1, [2], 2)
    b = world.open()
    assert (b.head, b.opened.claimed.settlement.next) == (1, 3)


def test_a_manifest_that_says_it_is_another_is_unreadable(world: World) -> None:
    a = world.open()
    a.save(1)
    world.plain().create(layout.manifest(2), world.plain().read(layout.manifest(1)))
    view = world.view()
    assert view.head is not None
    assert (view.head.number, dict(view.unreadable)) == (1, {2: "it says that it is generation 1"})
    b = world.open()
    assert (b.head, b.opened.claimed.settlement.unsure, b.save(3).number) == (1, 2, 3)


def test_a_settlement_that_cannot_be_read_is_read_from_a_manifest_of_its_term(world: World) -> None:  # rule 3a
    a = world.open()
    a.save(1)
    a.save(2)
    spoil(world, layout.manifest(2))
    b = world.open()
    with pytest.raises(ConflictError):
        a.save(3)  # void: B settled on 1
    b.save(4)
    told = world.view()
    spoil(world, layout.settlement(2))
    view = world.view()
    assert view.terms.settlements[2] == told.terms.settlements[2] == Settlement(view.run_id, 2, 1, 3, 2)
    assert (view.void, view.unsure, view.terms.unreadable) == ({3}, 2, {2})
    world.plain().delete(layout.manifest(2))
    assert world.view().unsure == 2  # the manifest repeats that, too


def test_a_settlement_that_cannot_be_read_is_not_missed_once_a_higher_term_has_settled(world: World) -> None:  # rule 3a
    a = world.open()
    a.save(1)
    b = world.open()  # saves nothing: no manifest repeats it
    assert b.term == 2
    c = world.open()
    saved = c.save(2)
    spoil(world, layout.settlement(2))
    assert (world.check(saved).terms.unreadable, world.view().undecided) == ({2}, False)
    d = world.open()
    assert (d.term, d.head) == (4, 2)
    world.check(d.save(3))


def test_a_dead_settlement_above_does_not_make_up_for_one_that_cannot_be_read(world: World) -> None:  # rule 3a
    world.open().save(1)
    world.open()
    dying = world.process()
    dying.kill("create", layout.settlement(3))
    with pytest.raises(Killed):
        world.open(dying)
    world.plain().create(layout.settlement(3), encode(Settlement("", 3, 0, 0, dead=True)))
    spoil(world, layout.settlement(2))
    spoil(world, layout.events(2), 20)
    with pytest.raises(CorruptError) as caught:
        world.view()
    assert caught.value.facts["name"] == layout.settlement(2)


def test_a_settlement_that_cannot_be_read_before_its_first_save_is_read_from_the_event_of_its_claim(world: World) -> None:
    a = world.open()  # rule 3a
    a.save(1)
    world.open()
    settled = world.view().terms.settlements[2]
    spoil(world, layout.settlement(2))
    assert world.view().terms.settlements[2] == settled
    assert world.view().terms.unreadable == {2}
    with pytest.raises(ConflictError):
        a.save(2)
    assert world.open().save(3).number == 3, "generation 2 of the fenced writer is void, and its number taken"
    reset(world.plain(), world.clock(), WHO)


def test_a_settlement_that_nothing_repeats_is_damage_that_is_said(world: World) -> None:  # rule 3a
    a = world.open()
    a.save(1)
    world.open()
    spoil(world, layout.settlement(2))
    spoil(world, layout.events(2), 20)
    for look in (world.view, world.open, lambda: reset(world.plain(), world.clock(), WHO)):
        with pytest.raises(CorruptError) as caught:
            look()
        assert (caught.value.kind, caught.value.facts["name"]) == ("damaged-settlement", layout.settlement(2))


def test_a_fence_that_cannot_be_read_still_fences(world: World) -> None:
    a = world.open()
    a.save(1)
    world.open()
    spoil(world, layout.fence(2))
    with pytest.raises(ConflictError):
        a.save(2)
    assert world.open().term == 3


def test_a_run_record_that_is_damaged_or_gone_costs_nothing_once_a_term_has_settled(world: World) -> None:
    a = world.open()
    a.save(1)
    for hurt in (lambda: spoil(world, layout.RUN), lambda: world.plain().delete(layout.RUN)):
        hurt()
        assert world.view().run_id == a.session.run_id
        b = world.open()
        assert b.session.run_id == a.session.run_id
        world.check(b.save(b.term))


def test_a_damaged_run_record_where_nothing_was_ever_settled_is_damage(world: World) -> None:
    world.plain().create(layout.RUN, b"{}")
    for look in (world.view, world.open):
        with pytest.raises(CorruptError) as caught:
            look()
        assert caught.value.facts["name"] == layout.RUN


def test_a_run_of_a_newer_milepost_is_refused_and_named(world: World) -> None:
    world.plain().create(layout.RUN, encode(RunRecord(99, RUN_ID, "")))
    with pytest.raises(MismatchError) as caught:
        read(world.plain())
    assert (caught.value.kind, caught.value.facts["name"]) == ("format", layout.RUN)


def foreign_records(world: World, run_id: str) -> None:
    """Leave what somebody who copies between two run roots may leave (rule 26)."""
    store = world.plain()
    store.create(layout.manifest(3), encode(generation(3, term=7, run_id=run_id, blobs=["blobs/000003-t7-00000000000000aa.x"])))
    store.create("blobs/000003-t7-00000000000000aa.x", b"theirs")
    store.replace(layout.pin(1), encode(Pin(run_id, 1, "held")))
    store.replace(layout.mark(2), encode(QuarantineMark(run_id, 2, "kills-loader", "x", "", 7)))


def test_records_of_another_run_are_ignored_and_left_alone_and_their_numbers_skipped(world: World) -> None:  # rule 26
    a = world.open()
    a.save(1)
    a.save(2)
    foreign_records(world, OTHER)
    theirs = {name: world.plain().read(name) for name in world.names() if "00003" in name or "pins/" in name}
    view = world.view()
    assert view.head is not None
    assert (view.head.number, view.undecided, view.void) == (2, False, frozenset())
    assert (view.foreign, dict(view.unreadable), dict(view.pins), dict(view.marks)) == ({3}, {}, {}, {})
    assert world.open().term == 8  # above the term that it names
    world.plain().replace(layout.pin(3), b"torn")  # perhaps on a generation 3 of ours
    b = world.open()
    assert (b.term, b.head) == (9, 2)
    world.plain().delete(layout.pin(3))
    saved = b.save(3)
    assert (saved.number, saved.parent) == (4, 2)
    world.check(saved)
    for name, data in theirs.items():
        assert world.plain().read(name) == data, name


def test_a_manifest_of_another_run_does_not_stop_the_rightful_writer(world: World) -> None:  # rule 26
    a = world.open()
    a.save(1)
    foreign_records(world, OTHER)
    saved = [a.save(2), a.save(3)]
    assert [manifest.number for manifest in saved] == [2, 4]
    world.check(*saved)


def test_a_pin_that_cannot_be_read_protects_and_makes_nothing_alive(world: World) -> None:
    a = world.open()
    a.save(1)
    a.save(2)
    world.plain().replace(layout.pin(1), b"torn")
    a.save(3)
    assert world.view().pins[1].state == "wanted"
    a.save(4)
    assert 1 in world.numbers()


def test_a_quarantine_mark_that_cannot_be_read_means_check_again(world: World) -> None:
    world.open().save(1)
    world.plain().replace(layout.mark(1), b"torn")
    assert world.view().marks[1].kind == "damaged"
