"""Verify names every byte that is not as it was written, and what each generation is (B4)."""

from __future__ import annotations

import pytest

from milepost.errors import ConflictError, NotFoundError
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.sealed import GONE
from milepost.lifecycle.verify import Report, verify
from milepost.publish import layout, quarantine
from milepost.publish.manifest import encode
from milepost.publish.pins import pin
from milepost.records import Manifest
from milepost.testing.faults import FaultStore, Killed
from tests.publish.summaries import generation
from tests.publish.world import World, Writer, done


def states(report: Report) -> dict[int, str]:
    return {found.number: found.state for found in report.generations}


def saved(world: World, *values: float) -> tuple[Writer, list[Manifest]]:
    a = world.open(keep=Keep(last=9))
    return a, [a.save(value, fixed=value) for value in values]


def full_root(world: World) -> Writer:
    """Leave one of every kind of file."""
    a = world.open(keep=Keep(last=2))
    for value in (1, 2, 3):
        a.save(value)
    pin(world.plain(), 2)
    quarantine.mark(world.plain(), world.clock(), run_id=a.session.run_id, term=1, number=2, kind="kills-loader", reason="x")
    return a


def test_a_sound_root_is_ok_and_every_byte_of_it_was_read(world: World) -> None:
    full_root(world)
    report = verify(world.plain())
    assert (report.ok, report.undecided, report.resume_from) == (True, False, 3)
    assert states(report) == {2: "valid", 3: "valid"}
    blobs = sum(entry.size_bytes for entry in world.plain().list(layout.BLOBS))
    others = sum(
        len(world.plain().read(name)) for name in world.names() if not name.startswith((layout.BLOBS, layout.GENERATIONS))
    )
    assert report.checked_bytes == blobs + others


def test_one_flipped_bit_in_any_file_is_found_and_named(world: World) -> None:
    full_root(world)
    assert verify(world.plain()).ok
    for name in world.names():
        if name.startswith(layout.TERMS) and name.endswith("from.json"):
            continue  # read from the manifests of its term: the next test
        data = world.plain().read(name)
        for position in sorted({0, len(data) // 3, len(data) // 2, len(data) - 1}):
            spoiled = bytearray(data)
            spoiled[position] ^= 0x10
            world.plain().replace(name, bytes(spoiled))
            report = verify(world.plain())
            assert name in [problem.name for problem in report.problems], f"{name}[{position}]"
            world.plain().replace(name, data)
    assert verify(world.plain()).ok


def test_a_flipped_bit_in_a_settlement_is_found_though_the_root_can_still_be_read(world: World) -> None:
    full_root(world)
    name = layout.settlement(1)
    data = bytearray(world.plain().read(name))
    data[5] ^= 1
    world.plain().replace(name, bytes(data))
    report = verify(world.plain())
    assert [problem.name for problem in report.problems] == [name]
    assert states(report) == {2: "valid", 3: "valid"}


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(
    ("how", "words"), [("gone", GONE), ("shorter", "shorter"), ("longer", "longer"), ("empty", "shorter"), ("flipped", "digest")]
)
def test_what_is_wrong_with_a_blob_is_said(world: World, how: str, words: str, full: bool) -> None:
    _, manifests = saved(world, 1, 2)
    blob = manifests[1].blobs[0].name
    data = world.plain().read(blob)
    if how == "gone":
        world.plain().delete(blob)
    else:
        flipped = data[:-1] + bytes([data[-1] ^ 1])
        world.plain().replace(blob, {"shorter": data[:-1], "longer": data + b"\0", "empty": b"", "flipped": flipped}[how])
    report = verify(world.plain(), full=full)
    if how == "flipped" and not full:
        assert report.ok
        return
    assert (states(report), report.resume_from) == ({1: "valid", 2: "damaged"}, 1)
    [problem] = report.problems
    assert (problem.name, problem.generation) == (blob, 2)
    assert words in problem.problem
    assert str(problem).startswith(blob)


def test_damage_is_told_by_the_components_that_it_touches(world: World) -> None:
    _, manifests = saved(world, 1)
    blob = manifests[0].blobs[0].name
    leaf = next(leaf for part in manifests[0].components if part.name == "replay" for leaf in part.leaves)
    data = bytearray(world.plain().read(blob))
    data[leaf.start] ^= 1
    world.plain().replace(blob, bytes(data))
    [problem] = verify(world.plain()).problems
    assert problem.components == ("replay",)


def spoil(world: World, manifest: Manifest, component: str) -> None:
    leaf = next(leaf for part in manifest.components if part.name == component for leaf in part.leaves)
    name = manifest.blobs[leaf.blob].name
    data = bytearray(world.plain().read(name))
    data[leaf.start] ^= 1
    world.plain().replace(name, bytes(data))


def test_each_generation_says_which_of_its_components_are_sound(world: World) -> None:
    _, manifests = saved(world, 1, 2)
    spoil(world, manifests[1], "replay")
    found = {one.number: (one.sound, one.damaged) for one in verify(world.plain()).generations}
    assert found == {1: (("policy", "replay"), ()), 2: (("policy",), ("replay",))}


def test_what_a_resume_would_go_on_without_is_told_only_where_none_is_whole_and_nothing_essential_is_hit(world: World) -> None:
    def taken() -> tuple[int | None, tuple[str, ...]]:
        report = verify(world.plain(), spare=lambda name: name == "replay")
        return report.resume_from, report.resume_without

    a, manifests = saved(world, 1, 2, 3)
    a.save(float("nan"), fixed=9)
    spoil(world, manifests[2], "replay")
    assert taken() == (2, ())
    spoil(world, manifests[1], "policy")
    assert taken() == (1, ())
    spoil(world, manifests[0], "replay")
    assert taken() == (3, ("replay",))
    spoil(world, manifests[2], "policy")
    assert taken() == (1, ("replay",))
    assert verify(world.plain()).resume_from is None, "nobody said that anything can be spared"


def test_a_flaky_read_of_a_record_is_not_damage_either(world: World) -> None:
    full_root(world)

    class Flaky(FaultStore):
        """Return one wrong byte of each record that is no manifest and decides nothing, at its first reading."""

        def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
            data = super().read(name, start, stop)
            first = self.names_asked("read").count(name) == 1
            return b"?" + data[1:] if first and name in (layout.PROGRESS, layout.events(1)) else data

    flaky = Flaky(world.plain())
    assert verify(flaky).problems == ()
    assert flaky.names_asked("read").count(layout.PROGRESS) == 2


def test_a_shared_blob_is_read_once(world: World) -> None:
    a = world.open(keep=Keep(last=9))
    for value in range(5):
        a.save(value, fixed=7)
    store = world.process()
    verify(store)
    read = [name for name in store.names_asked("read_into") if name != layout.BALLAST]
    assert len(read) == len(set(read))


def test_a_flaky_read_is_not_damage(world: World) -> None:
    _, manifests = saved(world, 1)
    name = manifests[0].blobs[0].name
    store = world.process()

    class Flaky(FaultStore):
        """Return one wrong byte, once."""

        def read_into(self, name: str, start: int, into: memoryview) -> int:
            got = super().read_into(name, start, into)
            if self.names_asked("read_into").count(name) == 1:
                into[0] ^= 1
            return got

    flaky = Flaky(store.inner)
    assert verify(flaky).ok
    assert flaky.names_asked("read_into").count(name) == 2


def test_each_generation_is_called_what_it_is(world: World) -> None:
    a = world.open(keep=Keep(last=2))
    for value in (1, 2):
        a.save(value, fixed=value)
    assert isinstance(a.store, FaultStore)
    a.store.kill("delete", layout.manifest(1))
    with pytest.raises(Killed):
        a.save(3, fixed=3)  # 1 is retired, and still there
    zombie = world.open()
    b = world.open()
    with pytest.raises(ConflictError):
        zombie.save(4)  # void
    saved_ = b.save(5, fixed=5)
    assert saved_.number == 5
    world.plain().create(layout.manifest(6), encode(generation(6, run_id="f" * 32)))
    world.plain().create(layout.manifest(7), b"torn")
    report = verify(world.plain())
    assert states(report) == {3: "valid", 4: "void", 5: "valid", 6: "foreign", 7: "unreadable"}
    assert [problem.name for problem in report.problems] == [layout.manifest(7)]
    assert report.resume_from == 5


def test_a_generation_whose_deletion_is_due_is_called_retired_and_not_checked(world: World) -> None:
    a = world.open(keep=Keep(last=1))
    first = a.save(1, fixed=1)
    assert isinstance(a.store, FaultStore)
    a.store.kill("delete", layout.manifest(1))
    with pytest.raises(Killed):
        a.save(2, fixed=2)
    world.plain().delete(first.blobs[0].name)
    report = verify(world.plain())
    assert (states(report), report.ok) == ({1: "retired", 2: "valid"}, True)


@pytest.mark.parametrize("operation", ["read", "read_into"])
def test_a_generation_that_is_retired_while_it_is_checked_is_no_damage(world: World, operation: str) -> None:
    a = world.open(keep=Keep(last=1))
    first = a.save(1, fixed=1)
    store = world.process()
    gate = store.pause("read", layout.manifest(1), nth=2) if operation == "read" else store.pause(operation, first.blobs[0].name)
    checking = world.start(lambda: verify(store))
    gate.wait_until_reached()
    a.save(2, fixed=2)
    gate.release()
    report = done(checking)
    assert (states(report), report.ok) == ({1: "retired"}, True)


def test_only_the_generations_asked_for_are_checked(world: World) -> None:
    _, manifests = saved(world, 1, 2)
    world.plain().delete(manifests[1].blobs[0].name)
    report = verify(world.plain(), [1])
    assert (states(report), report.ok) == ({1: "valid"}, True)
    with pytest.raises(NotFoundError) as caught:
        verify(world.plain(), [1, 8])
    assert (caught.value.kind, caught.value.facts["generation"]) == ("no-such-generation", 8)


def test_where_resume_would_go_on_is_told(world: World) -> None:
    a, _ = saved(world, 1, 2, 3)
    a.save(float("nan"), fixed=9)
    a.save(5, fixed=5, complete=False)
    assert verify(world.plain()).resume_from == 3
    run_id = a.session.run_id
    quarantine.mark(world.plain(), world.clock(), run_id=run_id, term=1, number=3, kind="kills-loader", reason="x")
    assert verify(world.plain()).resume_from == 2
    for number in (1, 2, 3):
        world.plain().delete(world.view().live[number].blobs[0].name)
    assert verify(world.plain()).resume_from == 5


def test_a_root_under_an_open_fence_is_undecided(world: World) -> None:
    saved(world, 1)
    store = world.process()
    store.kill("create", layout.settlement(2))
    with pytest.raises(Killed):
        world.open(store)
    assert verify(world.plain()).undecided


def test_checking_changes_nothing(world: World) -> None:
    full_root(world)
    store = world.process()
    verify(store)
    assert {op.operation for op in store.operations} <= {"read", "read_into", "list"}


def test_progress_is_told_in_bytes(world: World) -> None:
    saved(world, 1, 2)
    told: list[int] = []
    report = verify(world.plain(), progress=told.append)
    assert sum(told) == report.checked_bytes
