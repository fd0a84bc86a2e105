"""A scrub reads what was not looked at for longest first, at a bounded rate, goes on where it was, and names what rots. B4, B8"""

from __future__ import annotations

import pytest

from milepost.clock import FakeClock
from milepost.errors import CorruptError, StoreError
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.scrub import Pace, Scrub, ScrubReport
from milepost.lifecycle.verify import verify
from milepost.publish import layout
from milepost.publish.manifest import decode, encode
from milepost.records import Scrubbed
from milepost.store.base import Store
from milepost.testing.faults import FaultStore
from tests.publish.world import World, Writer, blobs_of, done

DAY_S = 86400.0


class Stopped(Exception):
    """Stand for a Ctrl-C."""


def ignore(_: int) -> None:
    """Let everything through."""


def scrubbed(store: Store, clock: FakeClock, older_than_s: float = 0.0) -> ScrubReport:
    return Scrub(store, clock, older_than_s=older_than_s).run(ignore)


def three(world: World, keep: int = 9) -> Writer:
    """Save three generations that share a blob."""
    a = world.open(keep=Keep(last=keep))
    for value in (1, 2, 3):
        a.save(value)
    return a


def due(world: World, clock: FakeClock, older_than_s: float = 0.0, **settings: bool) -> list[str]:
    return [blob.name for blob in Scrub(world.plain(), clock, older_than_s=older_than_s, **settings).due]


def flip(world: World, name: str, position: int) -> None:
    data = bytearray(world.plain().read(name))
    data[position] ^= 1
    world.plain().replace(name, bytes(data))


def test_every_blob_that_counts_is_read_once_and_nothing_else_is_changed(world: World) -> None:
    three(world)
    store, before = world.process(), world.names()
    report = scrubbed(store, world.clock())
    blobs = {entry.name: entry.size_bytes for entry in world.plain().list(layout.BLOBS)}
    assert sorted(store.names_asked("read_into")) == sorted(blobs)
    assert (report.ok, report.blobs_read, report.read_bytes) == (True, len(blobs), sum(blobs.values()))
    assert set(world.names()) == {*before, layout.SCRUB}
    assert {op.operation for op in store.operations} <= {"read", "read_into", "drop_cached", "list", "replace"}
    assert verify(world.plain()).ok


def test_it_goes_on_where_it_was_interrupted_and_begins_again_with_the_oldest(world: World) -> None:
    three(world)
    clock = world.clock()
    order = due(world, clock)
    seen: list[int] = []

    def one_only(size_bytes: int) -> None:
        seen.append(size_bytes)
        if len(seen) == 2:
            raise Stopped

    with pytest.raises(Stopped):
        Scrub(world.plain(), clock).run(one_only)
    clock.advance(seconds=60)
    assert due(world, clock, DAY_S) == order[1:]
    assert due(world, clock) == [*order[1:], order[0]]
    assert scrubbed(world.plain(), clock, DAY_S).recent == 1
    assert due(world, clock, DAY_S) == []
    clock.advance(seconds=DAY_S)
    assert due(world, clock, DAY_S) == order


def test_a_scrub_that_is_killed_loses_seconds_of_its_work_and_not_all(world: World) -> None:
    three(world)
    clock = world.clock()
    seen: list[int] = []

    def slowly(size_bytes: int) -> None:
        seen.append(size_bytes)
        clock.advance(seconds=11)
        if len(seen) == 3:
            # A kill runs no `finally`; what is on the disk by now is what the next scrub finds.
            record = decode(world.plain().read(layout.SCRUB), Scrubbed, layout.SCRUB)
            assert len(record.checked_ns) == 2
            raise Stopped

    with pytest.raises(Stopped):
        Scrub(world.plain(), clock).run(slowly)


def test_damage_is_named_once_for_each_generation_that_stands_on_it_with_its_components(world: World) -> None:
    a = three(world)
    live = world.view().live
    [shared] = blobs_of(live[1]) & blobs_of(live[2]) & blobs_of(live[3])
    head = a.session.base
    assert head is not None
    leaf = next(leaf for part in head.components if part.name == "replay" for leaf in part.leaves)
    flip(world, shared, leaf.start)
    report = scrubbed(world.plain(), world.clock())
    assert [(problem.name, problem.generation, problem.components) for problem in report.problems] == [
        (shared, number, ("replay",)) for number in (1, 2, 3)
    ]
    assert due(world, world.clock(), DAY_S) == [shared], "what is damaged is not noted as sound"


def test_damage_in_a_header_touches_no_component(world: World) -> None:
    a = world.open()
    blob = a.save(1).blobs[0].name
    flip(world, blob, 20)
    [problem] = scrubbed(world.plain(), world.clock()).problems
    assert problem.components == ()
    assert "no component" in str(problem)


def test_a_flaky_read_is_not_damage(world: World) -> None:
    three(world)

    class Flaky(FaultStore):
        def read_into(self, name: str, start: int, into: memoryview) -> int:
            got = super().read_into(name, start, into)
            if self.names_asked("read_into").count(name) == 1:
                into[0] ^= 1
            return got

    assert scrubbed(Flaky(world.plain()), world.clock()).ok


def test_what_is_read_is_asked_for_from_the_medium_and_not_from_memory(world: World) -> None:
    blob = world.open().save(1).blobs[0].name
    flip(world, blob, 300)
    store = world.process()
    scrubbed(store, world.clock())
    asked = [op.operation for op in store.operations if op.name == blob]
    assert asked[:4] == ["drop_cached", "read_into", "drop_cached", "read_into"], "before the second look, too"


def test_a_store_error_ends_it_and_is_no_damage(world: World) -> None:
    three(world)
    store = world.process()
    store.fail("read_into", error=StoreError("could not read", kind="io", retryable=True))
    with pytest.raises(StoreError):
        scrubbed(store, world.clock())


def test_what_is_retired_while_it_is_read_is_no_damage(world: World) -> None:
    a = three(world, keep=1)
    store = world.process()
    gate = store.pause("read_into", nth=1)
    work = world.start(lambda: scrubbed(store, world.clock()))
    gate.wait_until_reached()
    old = blobs_of(world.view().live[3])
    a.save(4, fixed=4)
    assert not old & set(world.names())
    gate.release()
    assert done(work).ok


def test_a_blob_that_somebody_removed_is_damage(world: World) -> None:
    a = world.open()
    blob = a.save(1).blobs[0].name
    world.plain().delete(blob)
    [problem] = scrubbed(world.plain(), world.clock()).problems
    assert (problem.name, problem.problem, problem.components) == (blob, "it is gone", ("policy", "replay"))


@pytest.mark.parametrize("what", ["gone", "torn", "another run's"])
def test_a_lost_record_only_means_to_read_again(world: World, what: str) -> None:
    three(world)
    clock = world.clock()
    scrubbed(world.plain(), clock)
    assert due(world, clock, DAY_S) == []
    if what == "gone":
        world.plain().delete(layout.SCRUB)
    else:
        data = world.plain().read(layout.SCRUB)
        other = encode(Scrubbed("f" * 32, decode(data, Scrubbed, layout.SCRUB).checked_ns))
        world.plain().replace(layout.SCRUB, other if what == "another run's" else data[:-9])
    assert len(due(world, clock, DAY_S)) == 3


def test_a_clock_that_was_set_back_makes_nothing_sound(world: World) -> None:
    three(world)
    clock = world.clock()
    clock.advance(seconds=30 * DAY_S)
    scrubbed(world.plain(), clock)
    clock.advance(seconds=-29 * DAY_S)
    assert len(due(world, clock, 7 * DAY_S)) == 3


def test_what_was_written_lately_is_trusted_only_where_that_is_wanted(world: World) -> None:
    a = three(world)
    a.clock.advance(seconds=DAY_S)
    a.save(4)
    clock = world.clock()
    clock.advance(seconds=DAY_S + 1)
    assert len(due(world, clock, DAY_S)) == 4
    assert len(due(world, clock, DAY_S, trust_writes=True)) == 3


def test_two_scrubs_at_once_forget_nothing_of_each_other(world: World) -> None:
    three(world)
    clock = world.clock()
    first, second = Scrub(world.plain(), clock), Scrub(world.plain(), clock)
    first.due, second.due = first.due[:1], second.due[1:]
    first.run(ignore)
    second.run(ignore)
    assert due(world, clock, DAY_S) == []


def test_what_is_no_longer_there_is_forgotten(world: World) -> None:
    a = three(world, keep=1)
    scrubbed(world.plain(), world.clock())
    a.save(4, fixed=4)
    scrubbed(world.plain(), world.clock())
    record = decode(world.plain().read(layout.SCRUB), Scrubbed, layout.SCRUB)
    assert record.checked_ns.keys() == blobs_of(world.view().live[4])


def test_a_root_that_cannot_be_written_is_read_all_the_same(world: World) -> None:
    three(world)
    store = world.process()
    store.fail("replace", error=StoreError("read-only", kind="read-only", retryable=False))
    report = scrubbed(store, world.clock())
    assert (report.ok, report.blobs_read, report.not_remembered) == (True, 3, "read-only")


def test_a_generation_whose_manifest_rots_meanwhile_is_still_named(world: World) -> None:
    a = world.open()
    blob = a.save(1).blobs[0].name
    flip(world, blob, 300)

    class Rotting(FaultStore):
        def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
            if name == layout.manifest(1) and self.names_asked("read").count(name) >= 2:
                raise CorruptError("a record is damaged", kind="damaged-record")
            return super().read(name, start, stop)

    [problem] = scrubbed(Rotting(world.plain()), world.clock()).problems
    assert (problem.generation, problem.components) == (1, ())


class TestPace:
    def test_bytes_pass_at_the_rate_and_not_faster(self) -> None:
        clock = FakeClock()
        pace = Pace(1000, clock, lambda seconds: clock.advance(seconds=seconds))
        for _ in range(100):
            pace.spend(500)
        assert clock.now_ns == pytest.approx((50 - 1) * 1e9, abs=2e9)

    def test_after_a_pause_nothing_is_made_up_for_in_a_rush(self) -> None:
        clock = FakeClock()
        pace = Pace(1000, clock, lambda seconds: clock.advance(seconds=seconds))
        pace.spend(1000)
        clock.advance(seconds=3600)
        before = clock.now_ns
        for _ in range(10):
            pace.spend(1000)
        assert clock.now_ns - before >= 8.9e9

    @pytest.mark.parametrize(("bytes_s", "piece"), [(10, 4096), (1 << 20, 1 << 17), (1 << 40, 8 << 20)])
    def test_pieces_are_an_eighth_of_a_second(self, bytes_s: float, piece: int) -> None:
        assert Pace(bytes_s, FakeClock(), lambda _: None).piece_bytes == piece
