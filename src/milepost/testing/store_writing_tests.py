"""Hold the writing half of a store's contract as tests; `milepost.testing.StoreTests` is the whole."""

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
from milepost.store.base import Buffer, Store

T = TypeVar("T")

THREADS = 8


class StoreWritingTests:
    """Test what a store does with bytes it is given: create, replace, append and blobs."""

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

        thread = threading.Thread(target=replace_on_and_on, name="milepost-test-replacer")
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

    @pytest.mark.parametrize("told", [1, 5_000_000, 9_000_000])
    def test_a_large_blob_is_as_long_as_its_pieces_whatever_was_said_before(self, store: Store, told: int) -> None:
        pieces: list[Buffer] = [bytearray(b"a" * 4096), memoryview(bytes(range(250)) * 20_000)[7:-7], b"end"]
        with store.open_blob("blobs/1", size_bytes=told) as blob:
            for piece in pieces:
                blob.write(piece)
            blob.commit()
        assert self.raw_read(store, "blobs/1") == b"".join(bytes(piece) for piece in pieces)

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


def _at_once(action: Callable[[int], T]) -> list[T]:
    """Run ``action(0)`` ... in as many threads, all let go at the same moment; return the results in order."""
    barrier = threading.Barrier(THREADS)

    def run(number: int) -> T:
        barrier.wait()
        return action(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS)))
