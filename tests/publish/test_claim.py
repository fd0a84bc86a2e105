"""Claiming a root: terms, seals, settlements, and what a claim may delete (rules 4 to 8)."""

from __future__ import annotations

import itertools

import pytest

from milepost.errors import ConflictError, CorruptError, StoreError
from milepost.lifecycle.retain import Keep
from milepost.publish import layout
from milepost.publish.hints import read_latest
from milepost.publish.manifest import decode, encode
from milepost.publish.pins import pin
from milepost.publish.reset import reset
from milepost.publish.term import ATTEMPTS, claim
from milepost.records import Fence, RunRecord, Settlement
from milepost.store.base import Buffer
from milepost.testing.faults import FaultStore, Killed
from tests.publish.summaries import generation
from tests.publish.world import WHO, World, blobs_of, done


def settlement(world: World, term: int) -> Settlement:
    name = layout.settlement(term)
    return decode(world.plain().read(name), Settlement, name)


def test_the_first_claim_makes_a_run_and_settles_on_nothing(world: World) -> None:
    a = world.open()
    assert (a.term, a.head, a.session.chain.next) == (1, 0, 1)
    assert settlement(world, 1) == Settlement(a.session.run_id, 1, 0, 1)
    assert world.view().head is None


def test_a_claim_takes_the_term_after_the_highest_that_any_record_names(world: World) -> None:  # rule 4
    a = world.open()
    a.save(1)
    run = a.session.run_id
    world.plain().create(layout.fence(5), encode(Fence(5, "c", "h", "b", 1, "")))
    assert world.open().term == 6
    world.plain().create(layout.settlement(9), encode(Settlement(run, 9, 0, 0, dead=True)))
    assert world.open().term == 10


def test_a_term_is_not_used_again_when_only_a_manifest_is_left_to_name_it(world: World) -> None:  # rule 4
    a = world.open()
    a.save(1)
    b = world.open()
    b.save(2)
    for term in (1, 2):  # an operator's rm
        world.plain().delete(layout.fence(term))
        world.plain().delete(layout.settlement(term))
    assert world.open().term == 3


def test_a_dead_seal_is_made_for_each_lower_term_that_has_not_settled(world: World) -> None:  # rule 5
    store = world.process()
    store.kill("create", layout.settlement(1))
    with pytest.raises(Killed):
        world.open(store)
    b = world.open()
    assert (b.term, settlement(world, 1).dead, settlement(world, 2).dead) == (2, True, False)


def test_next_goes_on_from_earlier_settlements_when_their_numbers_left_no_file(world: World) -> None:  # rule 7
    a = world.open()
    a.save(1)
    world.open()
    with pytest.raises(ConflictError):
        a.save(2)  # void
    c = world.open()  # deletes it: nothing names 2 any more but this settlement
    assert (c.head, c.session.chain.next, world.numbers()) == (1, 3, [1])
    d = world.open()
    assert (d.head, d.session.chain.next) == (1, 3)
    assert d.save(3).number == 3


def test_a_claim_gives_up_after_losing_the_race_again_and_again(world: World) -> None:
    taken: list[int] = []

    class Rival(FaultStore):
        """Take every fence just before it is created."""

        def create(self, name: str, data: Buffer, *, label: str = "t0") -> bool:
            term = layout.fence_term(name)
            if term is not None:
                taken.append(term)
                self.inner.create(name, b"a rival's", label=label)
            return super().create(name, data, label=label)

    with pytest.raises(ConflictError) as caught:
        claim(Rival(world.plain()), world.clock(), WHO)
    assert caught.value.kind == "claim-race"
    assert taken == list(range(1, ATTEMPTS + 1))


def test_of_two_first_claims_at_once_one_makes_the_run_and_the_other_is_told(world: World) -> None:
    slow = world.process()
    gate = slow.pause("create", layout.RUN)
    late = world.start(lambda: world.open(slow))
    gate.wait_until_reached()
    first = world.open()
    gate.release()
    with pytest.raises(ConflictError) as caught:
        done(late)
    assert caught.value.kind == "fenced"
    assert world.view().run_id == first.session.run_id
    third = world.open()
    assert (first.term, third.term, third.session.run_id) == (2, 3, first.session.run_id)


def test_a_claimer_that_finds_a_run_made_meanwhile_goes_on_with_it(world: World) -> None:
    slow = world.process()
    gate = slow.pause("create", layout.RUN)
    late = world.start(lambda: world.open(slow))
    gate.wait_until_reached()
    world.plain().create(layout.RUN, encode(RunRecord(1, "e" * 32, "")))
    gate.release()
    assert done(late).session.run_id == "e" * 32


def test_a_claim_deletes_what_is_dead_and_the_blobs_that_nobody_names(world: World) -> None:  # rule 8
    a = world.open(keep=Keep(last=2))
    a.save(1)
    a.save(2)
    a.store.kill("delete", layout.manifest(1))  # type: ignore[attr-defined]
    with pytest.raises(Killed):
        a.save(3)
    assert world.numbers() == [1, 2, 3]
    world.plain().open_blob("blobs/000004-t1-00000000000000aa.safetensors").write(b"half")
    world.plain().replace("blobs/LATEST-t1-00000000000000ab.tmp", b"half")
    b = world.open()
    assert world.numbers() == [2, 3]
    assert set(world.names(layout.BLOBS)) == blobs_of(*b.opened.claimed.view.live.values())


def test_a_claim_spares_what_a_pin_wants(world: World) -> None:  # rule 8
    a = world.open(keep=Keep(last=1))
    a.save(1, fixed=1)
    pin(world.plain(), 1)
    a.save(2, fixed=2)
    a.save(3, fixed=3)
    b = world.open()
    assert set(b.opened.claimed.view.live) == {1, 3}
    assert world.value(1) == 1


def test_a_claim_writes_the_pointer_that_its_predecessor_died_before(world: World) -> None:
    a = world.open()
    a.save(1)
    a.store.kill("replace", layout.LATEST)  # type: ignore[attr-defined]
    with pytest.raises(Killed):
        a.save(2)
    world.open()
    latest = read_latest(world.plain())
    assert latest is not None
    assert latest.generation == 2


def test_a_claim_whose_sweep_fails_goes_on_and_says_so(world: World) -> None:
    a = world.open()
    a.store.kill("create", layout.manifest(1))  # type: ignore[attr-defined]
    with pytest.raises(Killed):
        a.save(1)
    store = world.process()
    store.fail("delete", "blobs/*", StoreError("read-only", kind="read-only", retryable=False))
    b = world.open(store)
    assert b'"sweep-failed"' in world.plain().read(layout.events(2))
    world.check(b.save(1))


def test_a_claim_that_is_overtaken_before_its_sweep_goes_on_until_it_is_told(world: World) -> None:
    world.open(keep=Keep(last=1)).save(1)
    store = world.process()
    gate = store.pause("read", layout.manifest(1), nth=3)  # to point LATEST at it
    slow = world.start(lambda: world.open(store))
    gate.wait_until_reached()
    c = world.open(keep=Keep(last=1))
    c.save(2)
    c.save(3)
    gate.release()
    b = done(slow)
    with pytest.raises(ConflictError) as caught:
        b.save(9)
    assert (caught.value.kind, caught.value.facts["claimed_by_term"]) == ("fenced", 3)
    world.check()


@pytest.mark.parametrize("world", ["memory"], indirect=True)
def test_a_claimer_killed_at_any_operation_leaves_a_root_that_the_next_one_takes_over(world: World) -> None:
    a = world.open()
    a.save(1)
    a.save(2)
    a.store.kill("delete", layout.manifest(1))  # type: ignore[attr-defined]
    with pytest.raises(Killed):
        a.save(3)  # leaves a dropped generation and its blob to the sweep
    world.plain().create("blobs/000004-t1-00000000000000aa.safetensors.part", b"half")
    finished = False
    for number in itertools.count():
        trial = world.copy(number)
        dying = trial.process()
        dying.kill_before(number)
        try:
            trial.open(dying)
            finished = True
        except Killed:
            pass
        survivor = trial.open()
        assert (survivor.head, trial.numbers()) == (3, [2, 3])
        assert set(trial.names(layout.BLOBS)) == blobs_of(*trial.check().live.values())
        assert trial.value() == 3
        assert survivor.save(4).parent == 3
        if finished:
            break
    assert number > 20


def test_a_claim_of_generations_whose_terms_and_milepost_json_are_gone_goes_on_with_their_run(world: World) -> None:
    a = world.open()
    saved = a.save(1)
    for name in [layout.RUN, *world.names(layout.TERMS)]:  # an operator's rm
        world.plain().delete(name)
    b = world.open()
    assert (b.session.run_id, b.head) == (a.session.run_id, 1)
    world.check(saved, b.save(2))


# --- nothing that can be read is not nothing (rule 3a) ------------------------------------------------------------------


def nothing_readable(world: World, how: str) -> None:
    """Publish 1 and 2, and let there be no manifest that can be read; if all are gone, a later settlement tells of them."""
    a = world.open()
    a.save(1)
    a.save(2)
    if how == "all are gone":
        world.open()
    for number in (1, 2):
        name = layout.manifest(number)
        if how == "all are torn":
            world.plain().replace(name, b"torn")
        elif how == "all are another run's":
            world.plain().replace(name, encode(generation(number, run_id="f" * 32)))
        else:
            world.plain().delete(name)


@pytest.mark.parametrize("how", ["all are torn", "all are another run's", "all are gone"])
def test_a_claim_refuses_to_settle_on_nothing_where_there_was_something(world: World, how: str) -> None:
    nothing_readable(world, how)
    before = {name for name in world.names() if not name.startswith(layout.TERMS)}
    for _ in range(2):
        with pytest.raises(CorruptError) as caught:
            world.open()
        assert caught.value.kind == "nothing-valid"
        assert "milepost reset" in caught.value.hint
    assert {name for name in world.names() if not name.startswith(layout.TERMS)} == before
    named = [caught.value.facts["unreadable"], caught.value.facts["of_another_run"]]
    numbers = f"{layout.manifest(1)}, {layout.manifest(2)}"
    assert named == {"all are torn": [numbers, None], "all are another run's": [None, numbers]}.get(how, [None, None])


@pytest.mark.parametrize("how", ["all are torn", "all are another run's", "all are gone"])
@pytest.mark.parametrize("dies", [False, True])
def test_what_cannot_be_read_can_be_set_aside(world: World, how: str, dies: bool) -> None:  # the way out that the error names
    nothing_readable(world, how)
    blobs = set(world.names(layout.BLOBS))
    store = world.process()
    if dies:
        store.kill("list", layout.BLOBS, nth=2)
        with pytest.raises(Killed):
            reset(store, world.clock(), WHO)
        assert world.names(layout.ASIDE) == []
        world.open()  # goes on with it
        [aside] = world.view().terms.resets
    else:
        aside = reset(store, world.clock(), WHO)
    assert (aside.head, aside.next) == (0, 3)
    assert {name.removeprefix(aside.to) for name in world.names(aside.to + layout.BLOBS)} == blobs
    assert len(world.names(aside.to + layout.GENERATIONS)) == (0 if how == "all are gone" else 2)
    b = world.open()
    assert (b.head, b.session.chain.barrier, b.session.chain.next) == (0, 0, 3)
    world.check(b.save(9))


def test_a_run_without_any_generation_is_a_fresh_start_however_often_it_is_claimed(world: World) -> None:
    for term in (1, 2, 3):
        b = world.open()
        assert (b.term, b.head, b.session.chain.next) == (term, 0, 1)
