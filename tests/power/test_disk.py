"""The model of a disk, rule by rule: what a power cut may leave, and what it may not."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from milepost.store.posix import Posix
from milepost.testing.faults import run_in_child
from milepost.testing.power import Cut, Recorder, cuts, record
from milepost.testing.power_recorder import read_journal

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


class Hand:
    """Do file operations by short names, below a place."""

    def __init__(self, place: Path, recorder: Recorder) -> None:
        self.place = place
        self.posix = recorder

    def path(self, name: str) -> str:
        return str(self.place / name)

    def make(self, name: str, *pieces: bytes, sync: bool = False) -> None:
        descriptor = self.posix.open_append(self.path(name))
        for piece in pieces:
            self.posix.write(descriptor, memoryview(piece))
        if sync:
            self.posix.fsync(descriptor)
        self.posix.close(descriptor)

    def sync(self, name: str = "") -> None:
        self.posix.sync_directory(self.path(name))

    def rename(self, name: str, to: str) -> None:
        self.posix.replace(self.path(name), self.path(to))

    def mkdir(self, name: str) -> None:
        self.posix.mkdir(self.path(name))


States = set[frozenset[tuple[str, bytes]]]


@pytest.fixture
def left(tmp_path: Path) -> Callable[..., States]:
    """Return a function that says which files may be there after a power cut at the end of an act."""
    count = iter(range(100))

    def left_after(act: Callable[[Hand], object], prepare: Callable[[Path], object] = lambda _: None) -> States:
        number = next(count)
        place = tmp_path / f"{number}"
        place.mkdir()
        prepare(place)
        records = record(place, tmp_path / f"{number}.journal", lambda place, recorder: act(Hand(place, recorder)))
        return {frozenset(cut.tree.files.items()) for cut in cuts(records, samples=40) if cut.position == len(records)}

    return left_after


def state(**files: bytes) -> frozenset[tuple[str, bytes]]:
    return frozenset((name.replace("__", "/"), data) for name, data in files.items())


def last(*acts: Callable[[Hand], object]) -> Callable[[Hand], None]:
    """Do these, and add a note, so that every state is a new one of the last record."""

    def act(hand: Hand) -> None:
        for each in acts:
            each(hand)
        hand.posix.note("end")

    return act


def test_an_fsync_keeps_the_bytes_and_not_the_name(left: Callable[..., States]) -> None:
    assert left(last(lambda hand: hand.make("a", b"12", sync=True))) == {state(), state(a=b"12")}


def test_a_sync_of_the_directory_keeps_the_name_and_not_the_bytes(left: Callable[..., States]) -> None:
    assert left(last(lambda hand: hand.make("a", b"1234"), lambda hand: hand.sync())) == {
        *(state(a=data) for data in (b"", b"1234", b"12", b"\0\0\0\0"))
    }


def test_bytes_are_lost_from_any_write_on_or_torn_or_zero_or_with_a_hole(left: Callable[..., States]) -> None:
    found = left(last(lambda hand: hand.make("a", b"1" * 600, b"2" * 600), lambda hand: hand.sync()))
    whole = b"1" * 600 + b"2" * 600
    expected = [b"", whole, whole[:600], whole[:900], bytes(1200), bytes(512) + whole[512:]]
    assert found == {state(a=data) for data in expected}


def test_what_is_preallocated_reads_as_zeros_until_it_is_written_and_synced(left: Callable[..., States]) -> None:
    def act(hand: Hand) -> None:
        descriptor = hand.posix.open_lock(hand.path("a"))
        hand.posix.preallocate(descriptor, 1200)
        hand.posix.write_at(descriptor, b"1" * 600, 0)
        hand.posix.close(descriptor)

    whole = b"1" * 600 + bytes(600)
    expected = [b"", bytes(1200), whole, whole[:300] + bytes(900), bytes(512) + whole[512:]]
    assert left(last(act, lambda hand: hand.sync())) == {state(a=data) for data in expected}


def test_bytes_that_were_synced_before_stay_under_those_that_were_not(left: Callable[..., States]) -> None:
    def act(hand: Hand) -> None:
        hand.make("a", b"old", sync=True)
        hand.sync()
        hand.make("a", b"new!")
        hand.posix.note("end")

    assert left(act) == {state(a=b"old" + data) for data in (b"", b"new!", b"ne", bytes(4))}


def test_a_rename_is_one_change_and_durable_with_its_new_directory(left: Callable[..., States]) -> None:
    def prepare(place: Path) -> None:
        (place / "here").mkdir()
        (place / "there").mkdir()
        (place / "here/a").write_bytes(b"1")

    def rename(hand: Hand) -> None:
        hand.rename("here/a", "there/a")

    both = {state(here__a=b"1"), state(there__a=b"1")}
    assert left(last(rename), prepare) == both
    assert left(last(rename, lambda hand: hand.sync("here")), prepare) == both
    assert left(last(rename, lambda hand: hand.sync("there")), prepare) == {state(there__a=b"1")}


def test_a_rename_leaves_no_second_name_behind_that_was_made_before_it(left: Callable[..., States]) -> None:
    def act(hand: Hand) -> None:
        hand.mkdir("sub")
        hand.sync()
        hand.make("sub/temporary", b"1", sync=True)
        hand.rename("sub/temporary", "a")
        hand.sync()
        hand.posix.note("end")

    assert left(act) == {state(a=b"1")}


def test_a_deleted_file_may_come_back(left: Callable[..., States]) -> None:
    def unlink(hand: Hand) -> None:
        hand.posix.unlink(hand.path("a"))

    def prepare(place: Path) -> None:
        (place / "a").write_bytes(b"1")

    assert left(last(unlink), prepare) == {state(), state(a=b"1")}
    assert left(last(unlink, lambda hand: hand.sync()), prepare) == {state()}


def test_a_directory_whose_own_name_is_lost_takes_along_what_was_synced_in_it(left: Callable[..., States]) -> None:
    def act(hand: Hand) -> None:
        hand.mkdir("d")
        hand.make("d/a", b"1", sync=True)
        hand.sync("d")
        hand.posix.note("end")

    assert left(act) == {state(), state(d__a=b"1")}


def test_changes_of_names_are_kept_in_any_order_across_directories(left: Callable[..., States]) -> None:
    def act(hand: Hand) -> None:
        hand.make("a", b"1", sync=True)
        hand.make("b", b"2", sync=True)
        hand.posix.link(hand.path("a"), hand.path("c"))
        hand.posix.note("end")

    assert left(act) >= {state(b=b"2"), state(c=b"1"), state(a=b"1"), state(a=b"1", b=b"2", c=b"1"), state()}


def test_two_names_of_one_file_have_the_same_bytes(left: Callable[..., States]) -> None:
    def act(hand: Hand) -> None:
        hand.make("a", b"1234")
        hand.posix.link(hand.path("a"), hand.path("b"))
        hand.sync()
        hand.posix.note("end")

    assert left(act) == {state(a=data, b=data) for data in (b"", b"1234", b"12", bytes(4))}


def test_an_inode_that_is_used_again_is_another_file(left: Callable[..., States]) -> None:
    def act(hand: Hand) -> None:
        for data in (b"1", b"2", b"3"):
            hand.make("a", data, sync=True)
            hand.posix.unlink(hand.path("a"))
        hand.make("a", b"4", sync=True)
        hand.sync()
        hand.posix.note("end")

    assert left(act) == {state(a=b"4")}


def test_what_failed_is_not_recorded_and_a_short_write_as_short_as_it_was(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()

    class Short(Posix):
        def perform(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            return function(args[0], args[1][:3]) if name == "write" else function(*args, **kwargs)

    def act(place: Path, recorder: Recorder) -> None:
        hand = Hand(place, recorder)
        hand.make("a", b"12345")
        with pytest.raises(FileExistsError):
            recorder.open_new(hand.path("a"))
        with pytest.raises(FileNotFoundError):
            recorder.unlink(hand.path("b"))
        with pytest.raises(FileExistsError):
            recorder.link(hand.path("a"), hand.path("a"))

    records = record(place, tmp_path / "journal", act, Short())
    assert [each.name for each in records] == ["found", "open_append", "write"]
    assert (records[-1].data, (place / "a").read_bytes()) == (b"123", b"123")


def test_what_lies_elsewhere_is_no_concern(tmp_path: Path) -> None:
    place, other = tmp_path / "place", tmp_path / "other"
    place.mkdir()
    other.mkdir()

    def act(place: Path, recorder: Recorder) -> None:
        Hand(other, recorder).make("a", b"1", sync=True)
        Hand(other, recorder).sync()
        Hand(place, recorder).make("a", b"2", sync=True)

    records = record(place, tmp_path / "journal", act)
    assert [each.name for each in records] == ["found", "open_append", "write", "fsync"]
    with pytest.raises(ValueError, match="outside"):
        Recorder(tmp_path, tmp_path / "place/journal")


def test_operations_of_many_processes_are_one_order(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()

    def act(place: Path, recorder: Recorder) -> None:
        pids = []
        for number in range(4):
            pid = os.fork()
            if pid == 0:
                os._exit(run_in_child(lambda number=number: [write(number, each) for each in range(10)]))  # type: ignore[misc]
            pids.append(pid)
        for pid in pids:
            assert os.waitpid(pid, 0)[1] == 0

    def write(number: int, each: int) -> None:
        hand = Hand(place, Recorder(place, tmp_path / "journal"))
        hand.make(f"{number}-{each}", b"%d" % each, sync=True)
        hand.rename(f"{number}-{each}", f"same-{each}")

    records = record(place, tmp_path / "journal", act)
    assert len(records) == 1 + 4 * 10 * 4
    assert read_journal(tmp_path / "journal") == records


NAMES = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "f/a"])
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("make"), NAMES, st.binary(min_size=1, max_size=700), st.booleans()),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.just("link"), NAMES, NAMES),
        st.tuples(st.just("rename"), st.sampled_from(["d", "d/e", "f"]), st.sampled_from(["d", "d/e", "f", "g"])),
        st.tuples(st.just("unlink"), NAMES),
        st.tuples(st.sampled_from(["mkdir", "rmdir"]), st.sampled_from(["d", "d/e", "f", "g"])),
        st.tuples(st.sampled_from(["truncate", "preallocate"]), NAMES, st.integers(1, 300)),
        st.tuples(st.just("sync"), st.sampled_from(["", "d", "d/e", "f", "g"])),
    ),
    max_size=25,
)


def do(hand: Hand, operation: tuple[Any, ...]) -> None:
    name, path, *rest = operation
    with suppress(OSError):
        if name == "make":
            hand.make(path, rest[0], sync=rest[1])
        elif name in ("truncate", "preallocate"):
            descriptor = hand.posix.open_lock(hand.path(path))
            getattr(hand.posix, name)(descriptor, rest[0])
            hand.posix.close(descriptor)
        elif name == "link":
            hand.posix.link(hand.path(path), hand.path(rest[0]))
        elif name in ("unlink", "rmdir"):
            getattr(hand.posix, name)(hand.path(path))
        else:
            getattr(hand, name)(path, *rest)


def sync_all(hand: Hand) -> None:
    for directory, _, files in os.walk(hand.place):
        for file in files:
            descriptor = os.open(os.path.join(directory, file), os.O_RDONLY)
            hand.posix.fsync(descriptor)
            hand.posix.close(descriptor)
        hand.posix.sync_directory(directory)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=OPERATIONS, seed=st.integers(0, 1000))
def test_the_model_is_the_real_directory_and_once_all_is_synced_nothing_can_be_lost(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[Any, ...]], seed: int
) -> None:
    home = tmp_path_factory.mktemp("model")
    place = home / "place"
    place.mkdir()

    def act(place: Path, recorder: Recorder) -> None:
        for operation in operations:
            do(Hand(place, recorder), operation)
        recorder.note("done")
        sync_all(Hand(place, recorder))
        recorder.note("synced")

    records = record(place, home / "journal", act)  # raises if the model is not the directory, byte for byte
    found: list[Cut] = list(cuts(records, seed=seed))
    real = {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    synced = [cut for cut in found if cut.noted("synced")]
    assert [cut.tree.files for cut in synced] == [real]
    found[len(found) // 2].write_to(home / "written")
    written = {path.relative_to(home / "written").as_posix() for path in (home / "written").rglob("*")}
    assert written == found[len(found) // 2].tree.directories | found[len(found) // 2].tree.files.keys()
