"""What anyone who lists a root makes of it: rules 1, 2, 3, 3a and 26 as tables, and against a plain definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import ConflictError, CorruptError, MismatchError, NotFoundError
from milepost.publish import layout
from milepost.publish.manifest import encode
from milepost.publish.view import Listing, Terms, judge, read, read_run
from milepost.records import Fence, Pin, QuarantineMark, RunRecord, Settlement, Summary
from tests.publish.summaries import RUN, RUN_ID, fence, generation, held, listing, terms, wanted
from tests.publish.world import World

ONE, TWO, THREE = generation(1), generation(2, keep=[1]), generation(3, keep=[2])

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
    "rule 26: a foreign one is as if it were not there": (listing(ONE, TWO, foreign=[3]), terms({1: 0}), {}, 2, [1, 2], []),
}


@pytest.mark.parametrize("case", JUDGEMENTS)
def test_the_head_the_live_and_the_void_are(case: str) -> None:
    found, told, pins, head, live, void = JUDGEMENTS[case]
    view = judge(RUN, found, told, pins, {})
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
    assert judge(RUN, found, told, {}, {}).undecided is undecided


def test_nothing_at_or_below_an_unreadable_number_may_be_deleted() -> None:
    assert judge(RUN, listing(ONE, unreadable=[2, 7]), terms({1: 0}), {}, {}).barrier == 7
    assert judge(RUN, listing(ONE), terms({1: 0}), {}, {}).barrier == 0


def test_what_is_foreign_or_unreadable_still_takes_its_number_and_its_term() -> None:
    assert listing(ONE, unreadable=[5], foreign=[9]).highest == 9
    assert Listing().highest == 0
    assert Terms({1: None}, {}, frozenset({4}), frozenset({6})).highest == 6


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
    view = judge(RUN, listing(*manifests.values()), terms(settled), held(*pinned), {})
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
    assert (view.head.number, list(view.listing.unreadable)) == (1, [2])


def test_a_settlement_that_cannot_be_read_is_read_from_a_manifest_of_its_term(world: World) -> None:  # rule 3a
    a = world.open()
    a.save(1)
    a.save(2)
    b = world.open()
    with pytest.raises(ConflictError):
        a.save(3)  # void: B settled on 2
    b.save(4)
    spoil(world, layout.settlement(2))
    view = world.view()
    assert view.terms.settlements[2] == Settlement(view.listing.summaries[4].run_id, 2, 2, 3)
    assert (view.void, view.terms.unreadable) == ({3}, {2})


def test_a_settlement_that_nothing_repeats_is_damage_that_is_said(world: World) -> None:  # rule 3a
    a = world.open()
    a.save(1)
    world.open()
    spoil(world, layout.settlement(2))
    with pytest.raises(CorruptError) as caught:
        world.view()
    assert (caught.value.kind, caught.value.facts["name"]) == ("damaged-settlement", layout.settlement(2))
    with pytest.raises(CorruptError):
        world.open()


def test_a_fence_that_cannot_be_read_still_fences(world: World) -> None:
    a = world.open()
    a.save(1)
    world.open()
    spoil(world, layout.fence(2))
    with pytest.raises(ConflictError):
        a.save(2)
    assert world.open().term == 3


def test_a_damaged_run_record_is_read_from_the_newest_fence(world: World) -> None:
    a = world.open()
    a.save(1)
    spoil(world, layout.RUN)
    run = read_run(world.plain())
    assert run is not None
    assert run.run_id == a.session.run_id
    b = world.open()
    assert (b.head, b.term) == (1, 2)
    world.check(b.save(2))


def test_a_damaged_run_record_with_nothing_to_read_it_from_is_damage(world: World) -> None:
    world.plain().create(layout.RUN, b"{}")
    with pytest.raises(CorruptError) as caught:
        read_run(world.plain())
    assert caught.value.facts["name"] == layout.RUN


def test_a_run_of_a_newer_milepost_is_refused_and_named(world: World) -> None:
    world.plain().create(layout.RUN, encode(RunRecord(99, RUN_ID, "")))
    with pytest.raises(MismatchError) as caught:
        read(world.plain())
    assert (caught.value.kind, caught.value.facts["name"]) == ("format", layout.RUN)


def foreign_records(world: World, run_id: str) -> None:
    """Leave what a writer of an earlier run that woke in this root may leave (rule 26)."""
    store = world.plain()
    store.create(layout.manifest(3), encode(generation(3, term=7, run_id=run_id)))
    store.create(layout.fence(8), encode(Fence(run_id, 8, "c", "h", "b", 1, "")))
    store.create(layout.settlement(8), encode(Settlement(run_id, 8, 0, 1)))
    store.replace(layout.pin(1), encode(Pin(run_id, 1, "held")))
    store.replace(layout.mark(2), encode(QuarantineMark(run_id, 2, "kills-loader", "x", "", 7)))


def test_records_of_another_run_are_ignored_and_their_numbers_and_terms_skipped(world: World) -> None:  # rule 26
    a = world.open()
    a.save(1)
    a.save(2)
    foreign_records(world, "f" * 32)
    view = world.view()
    assert view.head is not None
    assert (view.head.number, view.undecided, view.void) == (2, False, frozenset())
    assert (view.listing.foreign, view.terms.foreign, dict(view.pins), dict(view.marks)) == ({3}, {8}, {}, {})
    b = world.open()
    assert (b.term, b.head) == (9, 2)
    saved = b.save(3)
    assert (saved.number, saved.parent) == (4, 2)
    world.check(saved)


def test_a_fence_of_another_run_does_not_stop_the_rightful_writer(world: World) -> None:  # rule 26
    a = world.open()
    a.save(1)
    foreign_records(world, "f" * 32)
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
