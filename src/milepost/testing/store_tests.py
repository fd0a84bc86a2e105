"""Hold the contract of `milepost.store.base.Store` as tests. Subclass `StoreTests` for a store of your own.

class TestMyStore(StoreTests):
    def make_store(self, tmp_path): ...
    def raw_read(self, store, name): ...
    def raw_write(self, store, name, data): ...
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from milepost.errors import ConflictError, NotFoundError, StoreError, UsageError
from milepost.store.base import Buffer, Entry, Store

T = TypeVar("T")

ODD_NAMES = [
    "a",
    ".hidden",
    "...",
    "with space",
    "a+b@c%20~#?&=;:'\"!$()[]{}^`|<>*,",
    "-dash/--x",
    "deep/er/and/deep.er/000042-t7-7c1e.safetensors",
    "x" * 200,
]
BAD_NAMES = ["", "/", "/etc/passwd", "a/", "a//b", "../a", "a/../b", "a/..", ".", "./a", "a\\b", "a\0b", "a\nb", "é"]
THREADS = 8


class StoreTests:
    """Test one kind of store. Override the first four methods, and no test."""

    @abstractmethod
    def make_store(self, tmp_path: Path) -> Store:
        """Return a new, empty store. Called again with the same path in a test: another handle on the same bytes."""

    @abstractmethod
    def raw_read(self, store: Store, name: str) -> bytes | None:
        """Return a name's bytes, None if it does not exist, without the store's own reading."""

    @abstractmethod
    def raw_write(self, store: Store, name: str, data: bytes) -> None:
        """Put bytes under a name, without the store's own writing."""

    def raw_is_there(self, store: Store, name: str) -> bool:
        """Say whether a name exists, without the store's own looking."""
        return self.raw_read(store, name) is not None

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return self.make_store(tmp_path)

    @pytest.fixture
    def second(self, tmp_path: Path) -> Store:
        """Another handle on the bytes of ``store``."""
        return self.make_store(tmp_path)

    # reading

    def test_reads_what_others_wrote(self, store: Store) -> None:
        self.raw_write(store, "a/b", b"0123456789")
        assert store.read("a/b") == b"0123456789"

    @pytest.mark.parametrize(
        ("start", "stop", "expected"),
        [
            (0, None, b"0123456789"),
            (3, 7, b"3456"),
            (3, None, b"3456789"),
            (9, 10, b"9"),
            (5, 5, b""),
            (7, 3, b""),
            (8, 99, b"89"),
            (10, None, b""),
            (99, None, b""),
            (99, 100, b""),
        ],
    )
    def test_a_range_is_half_open_and_ends_with_the_name(
        self, store: Store, start: int, stop: int | None, expected: bytes
    ) -> None:
        self.raw_write(store, "a", b"0123456789")
        assert store.read("a", start, stop) == expected

    def test_read_into_fills_exactly_the_given_bytes(self, store: Store) -> None:
        self.raw_write(store, "a", b"0123456789")
        buffer = bytearray(b"........")
        assert store.read_into("a", 2, memoryview(buffer)[1:5]) == 4
        assert buffer == b".2345..."

    def test_read_into_says_how_little_was_there_and_touches_no_more(self, store: Store) -> None:
        self.raw_write(store, "a", b"0123456789")
        buffer = bytearray(b"........")
        assert store.read_into("a", 7, memoryview(buffer)) == 3
        assert buffer == b"789....."
        assert store.read_into("a", 99, memoryview(buffer)) == 0
        assert store.read_into("a", 0, memoryview(bytearray())) == 0

    def test_read_into_takes_memory_of_other_items_than_bytes(self, store: Store) -> None:
        self.raw_write(store, "a", b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0")
        buffer = memoryview(bytearray(16)).cast("q")
        assert store.read_into("a", 0, buffer) == 16
        assert sorted(buffer.tobytes()) == sorted(b"\x01\x02" + bytes(14))

    @pytest.mark.parametrize("name", ["gone", "dir/gone", "dir", "a/b"])
    def test_a_name_that_is_not_there_is_not_found(self, store: Store, name: str) -> None:
        self.raw_write(store, "dir/x", b"x")
        for read in (lambda: store.read(name), lambda: store.read_into(name, 0, memoryview(bytearray(1)))):
            with pytest.raises(NotFoundError) as caught:
                read()
            assert (caught.value.kind, caught.value.facts["name"]) == ("no-such-name", name)

    # listing

    def test_a_list_is_sorted_by_name_descends_and_knows_sizes(self, store: Store) -> None:
        for name, size in [("d/b", 2), ("d/a/z", 0), ("d/a.b", 5), ("d2/x", 1), ("d/c.tmp", 3)]:
            self.raw_write(store, name, bytes(size))
        assert store.list("d/") == [Entry("d/a.b", 5), Entry("d/a/z", 0), Entry("d/b", 2), Entry("d/c.tmp", 3)]

    def test_the_empty_prefix_lists_the_whole_root(self, store: Store) -> None:
        for name in ("LATEST", "a/b", "a/c/d"):
            self.raw_write(store, name, b"x")
        assert [entry.name for entry in store.list("")] == ["LATEST", "a/b", "a/c/d"]

    @pytest.mark.parametrize("prefix", ["nothing/", "a/nothing/", "a/b/"])
    def test_a_prefix_nobody_wrote_to_is_an_empty_list(self, store: Store, prefix: str) -> None:
        self.raw_write(store, "a/b", b"x")
        assert store.list(prefix) == []

    @pytest.mark.parametrize("prefix", ["a", "/", "/a/", "../", "a/../b/", "a//"])
    def test_a_prefix_that_is_no_directory_name_is_refused(self, store: Store, prefix: str) -> None:
        for call in (store.list, store.sync):
            with pytest.raises(UsageError, match="not a name"):
                call(prefix)

    def test_listing_while_names_are_deleted_neither_fails_nor_forgets_the_others(self, store: Store) -> None:
        for number in range(100):
            self.raw_write(store, f"d/{number % 10}/{number:03d}", b"x")

        def delete_the_odd() -> None:
            for number in range(1, 100, 2):
                store.delete(f"d/{number % 10}/{number:03d}")

        thread = threading.Thread(target=delete_the_odd)
        thread.start()
        even = {f"d/{number % 10}/{number:03d}" for number in range(0, 100, 2)}
        while thread.is_alive():
            assert even <= {entry.name for entry in store.list("d/")}
        thread.join()
        assert {entry.name for entry in store.list("d/")} == even

    # creating

    @pytest.mark.parametrize("data", [b"", b"x", bytes(3_000_000), bytearray(b"abc"), memoryview(b"abcdef")[1:3]])
    def test_a_created_name_has_exactly_the_given_bytes(self, store: Store, data: bytes) -> None:
        assert store.create("a/b/c", data)
        assert self.raw_read(store, "a/b/c") == bytes(data)

    def test_create_never_touches_a_name_that_is_taken(self, store: Store, second: Store) -> None:
        self.raw_write(store, "a", b"first")
        assert not store.create("a", b"second")
        assert not second.create("a", b"third")
        assert self.raw_read(store, "a") == b"first"

    def test_of_many_creators_one_wins_and_its_bytes_stand(self, store: Store, second: Store) -> None:
        for turn in range(10):

            def create(i: int, name: str = f"terms/{turn}") -> bool:
                return (store, second)[i % 2].create(name, b"%d" % i, label=f"t{i}")

            won = _at_once(create)
            assert won.count(True) == 1
            assert self.raw_read(store, f"terms/{turn}") == b"%d" % won.index(True)

    def test_a_finished_write_leaves_no_other_name_behind(self, store: Store) -> None:
        store.create("d/a", b"1")
        store.create("d/a", b"2")
        store.replace("d/b", b"3")
        store.replace_if("d/b", b"3", b"4")
        assert [e.name for e in store.list("") if not e.name.endswith(".lock")] == ["d/a", "d/b"]

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_odd_but_legal_names_are_kept_as_they_are(self, store: Store, name: str) -> None:
        assert store.create(name, b"x")
        assert self.raw_read(store, name) == b"x"
        assert store.read(name) == b"x"
        directory = name[: name.rfind("/") + 1]
        assert name in [entry.name for entry in store.list(directory)]
        store.delete(name)
        assert not self.raw_is_there(store, name)

    @pytest.mark.parametrize("name", BAD_NAMES)
    def test_a_name_that_could_leave_the_root_is_refused_by_every_operation(self, store: Store, name: str) -> None:
        self.raw_write(store, "ok", b"x")
        calls: list[Callable[[], object]] = [
            lambda: store.read(name),
            lambda: store.read_into(name, 0, memoryview(bytearray(1))),
            lambda: store.create(name, b""),
            lambda: store.replace(name, b""),
            lambda: store.replace_if(name, None, b""),
            lambda: store.append(name, b""),
            lambda: store.open_blob(name),
            lambda: store.delete(name),
            lambda: store.move(name, "to"),
            lambda: store.move("ok", name),
        ]
        for call in calls:
            with pytest.raises(UsageError) as caught:
                call()
            assert caught.value.kind == "bad-name"
        assert self.raw_read(store, "ok") == b"x"

    # replacing

    @pytest.mark.parametrize("durable", [True, False])
    def test_replace_makes_and_overwrites(self, store: Store, second: Store, durable: bool) -> None:
        store.replace("LATEST", b"a long first text", durable=durable)
        second.replace("LATEST", b"short", durable=durable)
        assert self.raw_read(store, "LATEST") == b"short"
        store.replace("LATEST", b"", durable=durable)
        assert self.raw_read(store, "LATEST") == b""

    def test_a_reader_sees_the_old_bytes_or_the_new_ones(self, store: Store) -> None:
        texts = [bytes([65 + i]) * (1 + 20_000 * i) for i in range(8)]
        store.replace("LATEST", texts[0])
        stop = threading.Event()

        def replace_on_and_on() -> None:
            while not stop.is_set():
                for text in texts:
                    store.replace("LATEST", text, durable=False)

        thread = threading.Thread(target=replace_on_and_on)
        thread.start()
        seen = [store.read("LATEST") for _ in range(200)]
        stop.set()
        thread.join()
        assert all(text in texts for text in seen)

    def test_replace_if_compares_the_whole_bytes(self, store: Store) -> None:
        assert not store.replace_if("lease", b"", b"x")
        assert store.replace_if("lease", None, b"one")
        assert not store.replace_if("lease", None, b"two")
        assert not store.replace_if("lease", b"on", b"two")
        assert not store.replace_if("lease", b"one!", b"two")
        assert self.raw_read(store, "lease") == b"one"
        assert store.replace_if("lease", b"one", b"two")
        assert self.raw_read(store, "lease") == b"two"

    def test_replace_if_tells_no_bytes_from_no_name(self, store: Store) -> None:
        self.raw_write(store, "lease", b"")
        assert not store.replace_if("lease", None, b"x")
        assert store.replace_if("lease", b"", b"x")

    def test_of_many_that_replace_the_same_bytes_one_succeeds(self, store: Store, second: Store) -> None:
        expected: bytes | None = None
        for turn in range(6):

            def replace(i: int, turn: int = turn, expected: bytes | None = expected) -> bool:
                return (store, second)[i % 2].replace_if("lease", expected, b"%d %d" % (turn, i))

            won = _at_once(replace)
            assert won.count(True) == 1
            expected = b"%d %d" % (turn, won.index(True))
            assert self.raw_read(store, "lease") == expected

    # appending

    def test_append_makes_the_name_and_adds_to_it(self, store: Store, second: Store) -> None:
        store.append("events/0007.jsonl", b"one\n")
        second.append("events/0007.jsonl", b"two\n")
        store.append("events/0007.jsonl", b"")
        assert self.raw_read(store, "events/0007.jsonl") == b"one\ntwo\n"

    def test_records_appended_at_once_are_all_there_and_whole(self, store: Store) -> None:
        _at_once(lambda i: [store.append("e", bytes([65 + i]) * 1000 + b"\n") for _ in range(20)])
        lines = (self.raw_read(store, "e") or b"").splitlines()
        assert sorted(lines) == sorted(bytes([65 + i]) * 1000 for i in range(THREADS) for _ in range(20))

    # blobs

    def test_a_blob_holds_its_pieces_in_order(self, store: Store) -> None:
        pieces: list[Buffer] = [
            b"",
            b"a",
            bytearray(b"bc"),
            memoryview(b"xdefx")[1:4],
            b"",
            bytes(2_000_000),
            b"z" * 700_000,
            b"end",
        ]
        with store.open_blob("blobs/1") as blob:
            for piece in pieces:
                blob.write(piece)
            blob.commit()
        assert self.raw_read(store, "blobs/1") == b"".join(bytes(piece) for piece in pieces)

    def test_a_blob_does_not_look_at_a_piece_again_after_write(self, store: Store) -> None:
        piece = bytearray(b"as it was")
        with store.open_blob("blobs/1") as blob:
            blob.write(piece)
            piece[:] = b"changed.."
            blob.commit()
        assert self.raw_read(store, "blobs/1") == b"as it was"

    def test_an_empty_blob_is_a_name_without_bytes(self, store: Store) -> None:
        with store.open_blob("blobs/1") as blob:
            blob.commit()
        assert self.raw_read(store, "blobs/1") == b""

    def test_nobody_sees_a_blob_before_its_commit(self, store: Store, second: Store) -> None:
        with store.open_blob("blobs/1") as blob:
            blob.write(bytes(3_000_000))
            assert not self.raw_is_there(store, "blobs/1")
            assert [entry.name for entry in second.list("blobs/")] == ["blobs/1.part"]
            with pytest.raises(NotFoundError):
                second.read("blobs/1")
            blob.commit()
        assert [entry.name for entry in second.list("blobs/")] == ["blobs/1"]

    def test_a_blob_that_is_left_without_commit_is_gone(self, store: Store) -> None:
        with store.open_blob("blobs/1") as blob:
            blob.write(b"x" * 2_000_000)
        assert store.list("blobs/") == []

    def test_abort_may_come_twice_and_after_commit_changes_nothing(self, store: Store) -> None:
        blob = store.open_blob("blobs/1")
        blob.write(b"x")
        blob.abort()
        blob.abort()
        with store.open_blob("blobs/2") as kept:
            kept.commit()
            kept.abort()
        assert [entry.name for entry in store.list("blobs/")] == ["blobs/2"]

    def test_a_finished_blob_takes_nothing_more(self, store: Store) -> None:
        for finish in ("commit", "abort"):
            blob = store.open_blob(f"blobs/{finish}")
            getattr(blob, finish)()
            for call in (partial(blob.write, b"x"), blob.commit):
                with pytest.raises(UsageError) as caught:
                    call()
                assert caught.value.kind == "blob-closed"

    def test_a_blob_never_takes_a_name_that_is_used(self, store: Store, second: Store) -> None:
        self.raw_write(store, "blobs/1", b"old")
        with store.open_blob("blobs/2"):
            for name in ("blobs/1", "blobs/2"):
                with pytest.raises(ConflictError) as caught:
                    second.open_blob(name)
                assert caught.value.kind == "name-taken"
        assert self.raw_read(store, "blobs/1") == b"old"

    def test_a_blob_whose_unfinished_bytes_were_swept_cannot_be_committed(self, store: Store, second: Store) -> None:
        with store.open_blob("blobs/1") as blob:
            blob.write(b"x" * 2_000_000)
            second.delete("blobs/1.part")
            with pytest.raises(StoreError):
                blob.commit()
        assert not self.raw_is_there(store, "blobs/1")

    # deleting, moving, syncing

    def test_deleting_is_idempotent_and_spares_the_neighbours(self, store: Store) -> None:
        self.raw_write(store, "d/a", b"1")
        self.raw_write(store, "d/ab", b"2")
        for name in ("d/a", "d/a", "d/a/b", "none/x"):
            store.delete(name)
        assert store.list("") == [Entry("d/ab", 1)]

    def test_move_renames_and_may_be_repeated(self, store: Store) -> None:
        self.raw_write(store, "d/a", b"1")
        store.move("d/a", "reset/run-1/d/a")
        store.move("d/a", "reset/run-1/d/a")
        assert store.list("") == [Entry("reset/run-1/d/a", 1)]
        assert self.raw_read(store, "reset/run-1/d/a") == b"1"

    def test_move_replaces_nothing_and_misses_what_was_never_there(self, store: Store) -> None:
        self.raw_write(store, "a", b"1")
        self.raw_write(store, "b", b"2")
        with pytest.raises(ConflictError) as taken:
            store.move("a", "b")
        with pytest.raises(NotFoundError):
            store.move("gone", "c")
        assert taken.value.kind == "name-taken"
        assert (self.raw_read(store, "a"), self.raw_read(store, "b")) == (b"1", b"2")

    def test_sync_takes_any_directory_whether_it_is_there_or_not(self, store: Store) -> None:
        self.raw_write(store, "a/b/c", b"x")
        for prefix in ("", "a/", "a/b/", "none/"):
            store.sync(prefix)

    def test_free_bytes_is_a_number_or_none_even_before_the_first_write(self, store: Store) -> None:
        assert store.free_bytes() is None or (store.free_bytes() or 0) > 0

    # guarding

    def test_a_guard_keeps_a_second_writer_out_until_it_is_left(self, store: Store, second: Store) -> None:
        with store.guard(wait_s=0.0, take_over=False):
            for other in (store, second):
                with pytest.raises(ConflictError) as caught, other.guard(wait_s=0.0, take_over=False):
                    pytest.fail("two guards at once")
                assert caught.value.kind == "held"
        with second.guard(wait_s=0.0, take_over=False) as none:
            assert none is None

    def test_a_guard_is_given_up_when_its_block_fails(self, store: Store, second: Store) -> None:
        with pytest.raises(ZeroDivisionError), store.guard(wait_s=0.0, take_over=False):
            raise ZeroDivisionError
        with second.guard(wait_s=0.0, take_over=False):
            pass

    def test_taking_over_goes_on_and_says_so_only_if_somebody_was_there(self, store: Store, second: Store) -> None:
        free = store.guard(wait_s=0.0, take_over=True)
        with free:
            assert not free.forced
            forced = second.guard(wait_s=0.0, take_over=True)
            with forced:
                assert forced.forced
            with pytest.raises(ConflictError), second.guard(wait_s=0.0, take_over=False):
                pytest.fail("leaving a forced guard must not free the holder's")


def _at_once(action: Callable[[int], T]) -> list[T]:
    """Run ``action(0)`` ... in as many threads, all let go at the same moment; return the results in order."""
    barrier = threading.Barrier(THREADS)

    def run(number: int) -> T:
        barrier.wait()
        return action(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS)))
