"""Large blobs: directly from the caller's memory where that can be, whole whatever the system answers, and not left in the cache.

B9, and the store's part of DESIGN 9.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from milepost.clock import FakeClock
from milepost.encode.blob import Item, layout, write_blob
from milepost.errors import StoreError
from milepost.store import syscalls
from milepost.store.base import LARGE_BYTES, Store
from milepost.store.blob_bytes import BUFFER_BYTES, CALL_BYTES
from milepost.store.local import LocalStore
from milepost.store.posix import Posix
from milepost.testing.faults import FaultyPosix, FileOperation
from milepost.testing.sick import SickPosix, failing
from tests.places.odd_places import Changed, refuse
from tests.store.pages import PAGE, aligned, keeps_pages, resident

MIB = 1 << 20
NAME = "blobs/1"
MEMORY = "/dev/shm"
ARENA = aligned(3 * BUFFER_BYTES)


def local(root: Path, posix: Posix | None = None) -> LocalStore:
    return LocalStore(root, FakeClock(), posix=posix)


def write(store: Store, pieces: Sequence[bytes | memoryview], size_bytes: int | None = None, name: str = NAME) -> None:
    with store.open_blob(name, size_bytes=size_bytes) as blob:
        for piece in pieces:
            blob.write(piece)
        blob.commit()


class Told(Posix):
    """Note every call, and the address of what is written."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.written: list[tuple[int, int]] = []

    def perform(self, name, function, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        self.calls.append(name)
        if name == "write":
            self.written.append((syscalls.address_of(args[1]), len(args[1])))
        return function(*args, **kwargs)

    def own(self, data: memoryview) -> list[tuple[int, int]]:
        """Return (offset, size) of what was written from this memory."""
        begins = syscalls.address_of(data)
        return [(address - begins, size) for address, size in self.written if 0 <= address - begins < len(data)]


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Yield a directory on what the tests' temporary files are on, and one in memory."""
    if request.param == "disk":
        yield tmp_path
        return
    if not os.path.isdir(MEMORY):
        pytest.skip("there is no file system in memory here")
    made = Path(tempfile.mkdtemp(dir=MEMORY))
    yield made
    shutil.rmtree(made)


def short_by(dice: st.DataObject) -> Callable[..., int]:
    """Write as much as the dice say: whole pages, odd amounts, all."""

    def write_some(descriptor: int, data: memoryview) -> int:
        count = dice.draw(st.one_of(st.just(len(data)), st.integers(1, len(data)), st.integers(1, 999).map(lambda n: n * 512)))
        return os.write(descriptor, data[: min(count, len(data))])

    return write_some


def refusing_writes() -> Callable[..., int]:
    """Refuse each write that would be a direct one, as file systems do that take the flag and cannot."""

    def write_buffered(descriptor: int, data: memoryview) -> int:
        with open(f"/proc/self/fdinfo/{descriptor}") as lines:
            flags = next(int(line.split()[1], 8) for line in lines if line.startswith("flags:"))
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return os.write(descriptor, data)

    return write_buffered


WAYS: dict[str, Callable[[], Changed]] = {
    "as it comes": Changed,
    "no direct writes": lambda: Changed(set_direct=refuse(errno.EINVAL)),
    "direct writes that are refused": lambda: Changed(write=refusing_writes()),
    "an alignment of 64 kB": lambda: Changed(direct_alignment=lambda _: 65536),
    "no alignment is told": lambda: Changed(direct_alignment=lambda _: None),
    "no room set aside": lambda: Changed(preallocate=lambda *_: False),
}

splits = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 300), st.integers(LARGE_BYTES - 2, LARGE_BYTES + 2), st.integers(0, 2 * BUFFER_BYTES)),
        st.one_of(st.sampled_from([0, PAGE, 64]), st.integers(0, 2 * PAGE)),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@given(split=splits, way=st.sampled_from(sorted(WAYS)), cut=st.booleans(), told=st.floats(0, 1.5), dice=st.data())
@example(split=[(4096, 0, True), (2 * BUFFER_BYTES, 0, False), (77, 0, True)], way="as it comes", cut=False, told=1, dice=None)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_pieces_from_anywhere_make_the_same_file(
    place: Path, split: list[tuple[int, int, bool]], way: str, cut: bool, told: float, dice: st.DataObject
) -> None:
    pieces: list[memoryview] = [ARENA[at : at + size] for size, at, _ in split]
    given_pieces = [bytes(piece) if copied else piece for piece, (_, _, copied) in zip(pieces, split, strict=True)]
    posix = WAYS[way]()
    if cut:
        posix.instead["write"] = short_by(dice)
    size, store = sum(map(len, pieces)), local(place, posix)
    write(store, given_pieces, round(size * told) or None)
    assert cut or store._way.direct == ("direct writes" not in way or size < LARGE_BYTES), "none was refused for its place"
    assert (place / NAME).read_bytes() == b"".join(pieces)
    (place / NAME).unlink()


# --- what reaches the kernel


def test_a_small_blob_makes_no_more_calls_than_before(tmp_path: Path) -> None:
    posix = Told()
    store = local(tmp_path, posix)
    store.sync("")
    (tmp_path / "blobs").mkdir()
    write(store, [bytes(20)], name="blobs/0")
    del posix.calls[:]
    write(store, [bytes(1000)] * 20, 20_000)
    assert posix.calls == [
        "is_link",  # of blobs/
        "is_directory",
        "exists",
        "open_new",
        "write",
        "fsync",
        "close",
        "replace",
        "sync_directory",
    ]


@pytest.mark.parametrize("cut", [CALL_BYTES + PAGE, CALL_BYTES + 123])
def test_page_aligned_memory_goes_from_where_it_is_to_the_disk(tmp_path: Path, cut: int) -> None:
    posix = Told()
    header, data = bytes(PAGE), aligned(3 * CALL_BYTES + 5).toreadonly()
    write(local(tmp_path, posix), [header, data[:cut], data[cut:]], PAGE + len(data))
    own = posix.own(data)
    whole = len(data) - len(data) % PAGE
    askew = PAGE if cut % PAGE else 0
    assert sum(size for _, size in own) == whole - askew, "all but the tail, and nothing twice"
    assert all(at + size + askew >= after for (at, size), (after, _) in pairwise(own))
    assert max(size for _, size in posix.written) <= CALL_BYTES
    assert (tmp_path / NAME).read_bytes() == header + bytes(data)
    assert posix.calls.count("set_direct") == 2, "on, and off for the tail"


def test_leaves_that_lie_in_a_page_aligned_arena_are_written_from_there(tmp_path: Path) -> None:
    posix, sizes = Told(), [3 * MIB + 4, 700, 9 * MIB, 12, 2 * MIB]
    arena = aligned(sum(sizes))
    views = [arena[stop - size : stop] for size, stop in zip(sizes, accumulate(sizes), strict=True)]
    placed = layout([Item(str(number), "float32", (size // 4,), size) for number, size in enumerate(sizes)], {})
    with local(tmp_path, posix).open_blob(NAME, size_bytes=placed.size_bytes) as sink:
        write_blob(sink, placed, views)
        sink.commit()
    assert sum(size for _, size in posix.own(arena)) == len(arena) - len(arena) % PAGE
    assert (tmp_path / NAME).read_bytes() == placed.header + bytes(arena)


def test_what_lies_askew_in_memory_takes_a_detour_through_one_buffer(tmp_path: Path) -> None:
    posix = Told()
    data = aligned(2 * BUFFER_BYTES + 17, offset=64)
    write(local(tmp_path, posix), [data])
    addresses = {address for address, size in posix.written if size == BUFFER_BYTES}
    assert len(addresses) == 1
    assert next(iter(addresses)) % PAGE == 0
    assert (tmp_path / NAME).read_bytes() == bytes(data)


def test_the_buffer_is_used_again_and_never_by_two_at_once(tmp_path: Path) -> None:
    posix = Told()
    store = local(tmp_path, posix)
    for number in range(3):
        write(store, [bytes(BUFFER_BYTES)], name=f"blobs/{number}")
    assert len({address for address, _ in posix.written}) == 1
    one, two = store.open_blob("blobs/one"), store.open_blob("blobs/two")
    for blob, content in ((one, b"1"), (two, b"2"), (one, b"3"), (two, b"4")):
        blob.write(content * (LARGE_BYTES + 1))
    one.commit()
    two.abort()
    assert len(store._way._kept) == 1
    assert (tmp_path / "blobs" / "one").read_bytes() == b"1" * (LARGE_BYTES + 1) + b"3" * (LARGE_BYTES + 1)


def test_a_direct_write_that_is_cut_short_off_the_grid_goes_on_buffered_and_the_next_blob_directly() -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:  # there direct writes may have any length
        asked: list[tuple[str, object]] = []

        def cut_the_first(descriptor: int, data: memoryview) -> int:
            asked.append(("write", len(data)))
            return os.write(descriptor, data[:1000] if len(asked) == 2 else data)

        posix = Changed(write=cut_the_first, set_direct=lambda _, direct: asked.append(("direct", direct)))
        store = local(Path(place), posix)
        write(store, [ARENA])
        assert [what for what in asked if what[0] == "direct"] == [("direct", True), ("direct", False)]
        assert asked[2] == ("direct", False), "at once"
        write(store, [ARENA], name="blobs/2")
        assert asked[-1] == ("write", asked[-1][1])
        assert [what for what in asked if what[0] == "direct"][2:] == [("direct", True)]
        assert store.read(NAME) == store.read("blobs/2") == bytes(ARENA)


# --- a file system that has no direct writes


@pytest.mark.parametrize("way", ["no direct writes", "direct writes that are refused"])
def test_where_direct_writes_are_refused_blobs_go_through_the_cache_and_that_is_told_once(
    tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    posix, asked = WAYS[way](), []
    inner = posix.perform
    posix.perform = lambda name, *args, **kwargs: (asked.append(name), inner(name, *args, **kwargs))[1]  # type: ignore[method-assign, assignment]
    store = local(tmp_path, posix)
    with caplog.at_level(logging.DEBUG, "milepost"):
        for number in range(3):
            write(store, [ARENA, b"tail"], name=f"blobs/{number}")
            assert (tmp_path / "blobs" / str(number)).read_bytes() == bytes(ARENA) + b"tail"
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert asked.count("direct_alignment") == 1, "it is not asked again"


def test_a_file_system_that_takes_the_first_direct_write_and_refuses_a_later_one_writes_nothing_twice(tmp_path: Path) -> None:
    written: list[tuple[int, int]] = []

    def refuse_the_second(descriptor: int, data: memoryview) -> int:
        if len(written) == 1:
            written.append((0, 0))
            raise OSError(errno.EINVAL, "Invalid argument")
        at = os.lseek(descriptor, 0, os.SEEK_CUR)
        written.append((at, os.write(descriptor, data)))
        return written[-1][1]

    write(local(tmp_path, Changed(write=refuse_the_second)), [ARENA])
    spans = sorted(span for span in written if span[1])
    assert all(at + size == after for (at, size), (after, _) in pairwise(spans))
    assert (tmp_path / NAME).read_bytes() == bytes(ARENA)


def test_direct_writes_are_not_tried_where_the_file_system_says_that_it_has_none(tmp_path: Path) -> None:
    posix = Changed(direct_alignment=lambda _: 0, set_direct=refuse(errno.EIO))
    write(local(tmp_path, posix), [ARENA])
    assert (tmp_path / NAME).read_bytes() == bytes(ARENA)


def test_an_error_of_a_direct_write_is_one_of_the_blob(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        write(local(tmp_path, Changed(write=refuse(errno.EIO))), [ARENA])
    assert caught.value.kind == "io"
    assert list((tmp_path / "blobs").iterdir()) == []


# --- room that is set aside


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, "disk-full"), (errno.EDQUOT, "quota"), (errno.EFBIG, "file-too-big")]
)
def test_a_full_disk_says_so_before_the_first_byte_is_written(tmp_path: Path, number: int, kind: str) -> None:
    posix = Changed(preallocate=refuse(number), write=refuse(errno.EIO))
    with pytest.raises(StoreError) as caught:
        local(tmp_path, posix).open_blob(NAME, size_bytes=5 * MIB)
    assert (caught.value.kind, caught.value.retryable) == (kind, False)
    assert list((tmp_path / "blobs").iterdir()) == []


def test_the_disk_itself_says_so(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    with pytest.raises(StoreError) as caught:
        local(tmp_path).open_blob(NAME, size_bytes=(status.f_blocks + 1) * status.f_frsize)
    assert caught.value.kind in ("disk-full", "file-too-big")
    assert os.statvfs(tmp_path).f_bavail > status.f_bavail // 2, "what was set aside until then is free again"


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_a_file_system_that_cannot_set_room_aside_is_taken_as_it_is(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Libc:
        def fallocate64(self, *_: object) -> int:
            syscalls.ctypes.set_errno(number)
            return -1

    descriptor = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    with monkeypatch.context() as patched:
        patched.setattr(syscalls, "_libc", Libc)
        assert not syscalls.preallocate(descriptor, MIB)
    os.close(descriptor)


def test_a_signal_at_every_attempt_to_set_room_aside_does_not_hold_a_save_up(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    class Libc:
        def fallocate64(self, *_: object) -> int:
            tries.append(1)
            syscalls.ctypes.set_errno(errno.EINTR)
            return -1

    monkeypatch.setattr(syscalls, "_libc", Libc)
    assert not syscalls.preallocate(0, MIB)
    assert len(tries) == 3


@pytest.mark.parametrize("actual", [0, 5, LARGE_BYTES - 1, LARGE_BYTES + 1, 2 * BUFFER_BYTES, 3 * BUFFER_BYTES])
def test_a_blob_that_is_shorter_or_longer_than_it_was_said_to_be_is_as_long_as_it_is(place: Path, actual: int) -> None:
    write(local(place), [ARENA[:actual]], 2 * BUFFER_BYTES)
    assert (place / NAME).read_bytes() == ARENA[:actual]
    assert (place / NAME).stat().st_blocks * 512 <= actual + 2 * PAGE, "what was set aside in vain is free again"


# --- every call may fail


def all_calls(tmp_path: Path) -> list[str]:
    told = Told()
    write(local(tmp_path / "told", told), LARGE, sum(map(len, LARGE)) + 5)
    return told.calls


LARGE = [bytes(PAGE), ARENA[: BUFFER_BYTES + 5], b"tail"]
HINTS = frozenset({"set_direct", "direct_alignment", "drop_cached", "start_write_back"})


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL])
def test_an_error_at_any_call_leaves_a_whole_blob_or_none(tmp_path: Path, number: int) -> None:
    calls = all_calls(tmp_path)
    assert {"preallocate", "truncate", *HINTS} - {"start_write_back"} <= set(calls)
    failed = set()
    for at, name in enumerate(calls):
        root = tmp_path / str(at)
        posix = SickPosix(failing(number), at, calls=frozenset(calls))
        try:
            write(local(root, posix), LARGE, sum(map(len, LARGE)) + 5)
        except StoreError:
            failed.add(name)
            there = [path for path in root.rglob("*") if path.is_file()] if root.exists() else []
            assert not there, name
        else:
            assert (root / NAME).read_bytes() == b"".join(LARGE), name
        assert posix.struck == 1
        shutil.rmtree(root, ignore_errors=True)
    must_not_fail = {"direct_alignment", "drop_cached"} | ({"write"} if number == errno.EINVAL else set())
    assert not failed & (must_not_fail - {"write"})
    assert {"fsync", "preallocate", "replace"} <= failed


def test_hints_that_fail_are_no_failures(tmp_path: Path) -> None:
    hints = dict.fromkeys(HINTS, refuse(errno.ENOSYS))
    write(local(tmp_path, Changed(**hints)), LARGE)
    assert (tmp_path / NAME).read_bytes() == b"".join(LARGE)


def test_the_order_of_a_large_blob_is_room_then_bytes_then_their_length_then_the_name(tmp_path: Path) -> None:
    operations: list[FileOperation] = []
    posix = FaultyPosix()
    posix.operations = operations
    write(local(tmp_path, posix), LARGE, sum(map(len, LARGE)) + 5)
    names = [operation.name for operation in operations]
    names = names[names.index("open_new") :]
    writes = names.count("write")
    assert names == ["open_new", "preallocate", *["write"] * writes, "truncate", "fsync", "replace", "sync_directory"]


# --- manners


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    if not keeps_pages(tmp_path / "probe"):
        pytest.skip("the temporary directory is in memory")
    return tmp_path


@pytest.mark.parametrize("way", ["as it comes", "no direct writes"])
def test_after_its_commit_a_large_blob_is_not_in_the_page_cache_and_its_neighbour_still_is(on_disk: Path, way: str) -> None:
    neighbour = on_disk / "data"
    neighbour.write_bytes(bytes(ARENA[:MIB]))
    assert resident(neighbour) == MIB
    write(local(on_disk, WAYS[way]()), [bytes(PAGE), ARENA, b"tail"], len(ARENA))
    assert resident(on_disk / NAME) == 0
    assert resident(neighbour) == MIB


def test_reading_in_passing_leaves_the_page_cache_as_it_was(on_disk: Path) -> None:
    store = local(on_disk)
    write(store, [ARENA])
    assert not store.is_cached(NAME)
    with store.passing(NAME, len(ARENA)):
        assert store.read(NAME) == bytes(ARENA)
        assert store.is_cached(NAME)
    assert resident(on_disk / NAME) == 0
    assert store.read(NAME) == bytes(ARENA)
    with store.passing(NAME, len(ARENA)):
        store.read_into(NAME, 0, memoryview(bytearray(100)))
    assert resident(on_disk / NAME) >= len(ARENA), "somebody else uses it"


def test_passing_by_a_name_that_is_gone_is_no_error_of_its_own(tmp_path: Path) -> None:
    store = local(tmp_path)
    with store.passing("blobs/nothing", LARGE_BYTES):
        assert not store.is_cached("blobs/nothing")
    with local(tmp_path, Changed(cached_bytes=refuse(errno.ENOSYS))).passing("blobs/nothing", LARGE_BYTES):
        pass
