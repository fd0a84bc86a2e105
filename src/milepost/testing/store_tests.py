"""Hold the contract of `milepost.store.base.Store` as tests. Subclass `StoreTests` for a store of your own.

class TestMyStore(StoreTests):
    def make_store(self, tmp_path): ...
    def raw_read(self, store, name): ...
    def raw_write(self, store, name, data): ...
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from milepost.errors import ConflictError, NotFoundError, UsageError
from milepost.store.base import Entry, Store
from milepost.testing.faults import run_in_child
from milepost.testing.store_writing_tests import StoreWritingTests

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


class StoreTests(StoreWritingTests):
    """Test one kind of store. Override the three abstract methods, and no test."""

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

    def test_an_open_reader_reads_what_the_store_does_and_goes_on_after_it_was_closed(self, store: Store) -> None:
        self.raw_write(store, "a", b"0123456789")
        with store.open_reader("a") as reader:
            for _ in range(2):
                for start, size, expected in [(2, 4, b"2345"), (7, 8, b"789....."), (99, 2, b".."), (0, 0, b"")]:
                    into = bytearray(b"." * size)
                    assert reader.read_into(start, memoryview(into)) == store.read_into("a", start, memoryview(bytearray(size)))
                    assert into == expected
                reader.close()

    def test_dropping_what_is_cached_changes_no_byte_and_misses_nothing(self, store: Store) -> None:
        self.raw_write(store, "a", b"0123456789")
        store.drop_cached("a")
        store.drop_cached("b")
        assert store.read("a") == b"0123456789"
        with store.passing("a", 1 << 30), store.passing("b", 1 << 30):
            assert store.read("a") == b"0123456789"
        assert not store.is_cached("b")
        assert store.read("a") == b"0123456789"

    def test_read_into_takes_memory_of_other_items_than_bytes(self, store: Store) -> None:
        self.raw_write(store, "a", b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0")
        buffer = memoryview(bytearray(16)).cast("q")
        assert store.read_into("a", 0, buffer) == 16
        assert sorted(buffer.tobytes()) == sorted(b"\x01\x02" + bytes(14))

    @pytest.mark.parametrize("name", ["gone", "dir/gone", "dir", "a/b"])
    def test_a_name_that_is_not_there_is_not_found(self, store: Store, name: str) -> None:
        self.raw_write(store, "dir/x", b"x")
        into = memoryview(bytearray(1))
        reads = (
            lambda: store.read(name),
            lambda: store.read_into(name, 0, into),
            lambda: store.open_reader(name).read_into(0, into),
        )
        for read in reads:
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

        thread = threading.Thread(target=delete_the_odd, name="milepost-test-deleter")
        thread.start()
        even = {f"d/{number % 10}/{number:03d}" for number in range(0, 100, 2)}
        while thread.is_alive():
            assert even <= {entry.name for entry in store.list("d/")}
        thread.join()
        assert {entry.name for entry in store.list("d/")} == even

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

    # what a store declares; a case is skipped where it declares otherwise

    def test_what_is_declared_does_not_change_from_handle_to_handle_or_by_writing(self, store: Store, second: Store) -> None:
        declared = store.capabilities
        store.create("a/b", b"x")
        assert store.capabilities == second.capabilities == declared

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_what_was_acknowledged_outlives_the_process_that_wrote_it(self, store: Store, second: Store) -> None:
        if store.capabilities.survives == "nothing":
            pytest.skip("this store declares that its bytes end with the process")

        def write() -> None:
            assert store.create("created", b"1")
            store.replace("replaced", b"2")
            with store.open_blob("blob") as blob:
                blob.write(b"3")
                blob.commit()

        assert run_in_child(write) == 0
        assert [second.read(name) for name in ("created", "replaced", "blob")] == [b"1", b"2", b"3"]

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_guard_keeps_out_another_process(self, store: Store, second: Store) -> None:
        if store.capabilities.guard == "process":
            pytest.skip("this store declares that its guard is for one process")

        def enter() -> None:
            with pytest.raises(ConflictError), second.guard(wait_s=0.0, take_over=False):
                pytest.fail("two guards at once")

        with store.guard(wait_s=0.0, take_over=False):
            assert run_in_child(enter) == 0

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_lock_ends_with_the_process_that_held_it(self, store: Store, second: Store) -> None:
        if store.capabilities.guard != "lock":
            pytest.skip("this store declares another guard than a lock")
        assert run_in_child(store.guard(wait_s=0.0, take_over=False).__enter__) == 0
        with second.guard(wait_s=0.0, take_over=False) as entered:
            assert entered is None
