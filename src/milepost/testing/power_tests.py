"""Hold a store to its durability as tests: cut the power at every moment. Subclass `PowerLossTests` for a store of your own.

class TestMyStore(PowerLossTests):
    def make_store(self, place, posix): ...

The store makes every change of files through ``posix``, which records it. One that goes around it fails `BlindSpotError`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from milepost.engine import oneshot
from milepost.errors import NotFoundError
from milepost.store.base import Store
from milepost.store.posix import Posix
from milepost.testing.power import Cut, Recorder, Tally, replay

BESIDE = b"what lies beside"


class PowerLossTests(ABC):
    """Test what one kind of store promises of a power cut. Override `make_store`, and no test."""

    seed = 0
    limit: int | None = None
    """How many cuts of each recording are checked, chosen by ``seed``; None: all of them."""

    @abstractmethod
    def make_store(self, place: Path, posix: Posix) -> Store:
        """Return a store that keeps all it has below the directory ``place``; called again to open what is there."""

    def cut_everywhere(
        self,
        act: Callable[[Store, Recorder], object],
        check: Callable[[Store, Cut], object],
        prepare: Callable[[Store], object] = lambda _: None,
    ) -> Tally:
        """Record ``act`` on a store, and ``check`` what is left after power cuts; ``prepare`` is durable before."""
        tally = replay(
            lambda place, recorder: act(self.make_store(place, recorder), recorder),
            lambda cut, place: check(self.make_store(place, Posix()), cut),
            prepare=lambda place: prepare(self.make_store(place, Posix())),
            seed=self.seed,
            limit=self.limit,
        )
        assert tally.operations, "nothing was recorded: does the store make its calls through `posix`?"
        assert not tally.lost, tally.failures[0]
        return tally

    def test_a_created_name_is_whole_or_absent_and_stays_once_it_was_told(self) -> None:
        contents = {f"generations/{number:06d}.json": b"%d\n" % number * 400 for number in (1, 2, 3)}

        def act(store: Store, recorder: Recorder) -> None:
            for name, data in contents.items():
                assert store.create(name, data)
                recorder.note("told", name=name)
                assert not store.create(name, b"another")

        def check(store: Store, cut: Cut) -> None:
            told = {facts["name"] for facts in cut.noted("told")}
            for name, data in contents.items():
                assert read(store, name) in ([data] if name in told else [data, None])

        self.cut_everywhere(act, check)

    def test_a_replaced_name_is_old_or_new_and_new_once_it_was_told(self) -> None:
        contents = [bytes([number]) * 1500 for number in range(4)]

        def act(store: Store, recorder: Recorder) -> None:
            for number in (1, 2, 3):
                if number == 2:
                    assert store.replace_if("deep/er/name", contents[1], contents[2])
                else:
                    store.replace("deep/er/name", contents[number])
                recorder.note("told", number=number)

        def check(store: Store, cut: Cut) -> None:
            told = max([0, *(facts["number"] for facts in cut.noted("told"))])
            assert read(store, "deep/er/name") in contents[told:]

        self.cut_everywhere(act, check, lambda store: store.replace("deep/er/name", contents[0]))

    def test_a_blob_is_whole_or_absent_and_stays_once_it_was_committed(self) -> None:
        pieces = [b"a" * 70, b"b" * 9000, b"c"]

        def act(store: Store, recorder: Recorder) -> None:
            for name in ("blobs/000001-t1-0000000000000001.safetensors", "blobs/000001-t1-0000000000000002.safetensors"):
                with store.open_blob(name) as sink:
                    for piece in pieces:
                        sink.write(piece)
                    sink.commit()
                recorder.note("told", name=name)
            with store.open_blob("blobs/000001-t1-0000000000000003.safetensors") as sink:
                sink.write(b"never committed")

        def check(store: Store, cut: Cut) -> None:
            told = {facts["name"] for facts in cut.noted("told")}
            there = {entry.name for entry in store.list("blobs/") if entry.name.endswith(".safetensors")}
            assert told <= there
            assert all(store.read(name) == b"".join(pieces) for name in there)

        self.cut_everywhere(act, check)

    def test_a_large_blob_with_room_set_aside_is_whole_or_absent_and_stays_once_it_was_committed(self) -> None:
        pieces = [bytes([65 + number]) * 600_000 for number in range(3)]

        def act(store: Store, recorder: Recorder) -> None:
            for number, size_bytes in enumerate((1_800_000, 2_000_000, 1_100_000)):
                name = f"blobs/000001-t1-000000000000000{number}.safetensors"
                with store.open_blob(name, size_bytes=size_bytes) as sink:
                    for piece in pieces:
                        sink.write(piece)
                    sink.commit()
                recorder.note("told", name=name)

        def check(store: Store, cut: Cut) -> None:
            told = {facts["name"] for facts in cut.noted("told")}
            there = {entry.name for entry in store.list("blobs/") if entry.name.endswith(".safetensors")}
            assert told <= there
            assert all(store.read(name) == b"".join(pieces) for name in there)

        self.cut_everywhere(act, check)

    def test_a_deleted_name_stays_deleted_once_its_directory_was_synced(self) -> None:
        def act(store: Store, recorder: Recorder) -> None:
            store.delete("generations/1")
            store.sync("generations/")
            recorder.note("told")

        def check(store: Store, cut: Cut) -> None:
            assert read(store, "generations/1") in ([None] if cut.noted("told") else [None, b"1"])
            assert read(store, "generations/2") == b"2"

        def prepare(store: Store) -> None:
            store.create("generations/1", b"1")
            store.create("generations/2", b"2")

        self.cut_everywhere(act, check, prepare)

    def test_a_moved_name_is_never_in_neither_place_and_in_the_new_one_once_both_were_synced(self) -> None:
        def act(store: Store, recorder: Recorder) -> None:
            store.move("here/name", "there/over/name")
            store.sync("there/over/")
            store.sync("here/")
            recorder.note("told")

        def check(store: Store, cut: Cut) -> None:
            places = (read(store, "here/name"), read(store, "there/over/name"))
            assert set(places) <= {None, b"moved"}
            assert any(places)
            assert places == (None, b"moved") or not cut.noted("told")

        self.cut_everywhere(act, check, lambda store: store.create("here/name", b"moved"))

    def test_what_is_not_durable_spoils_nothing_that_is(self) -> None:
        def act(store: Store, recorder: Recorder) -> None:
            for number in range(3):
                store.append("events/0001.jsonl", b"%d\n" % number * 300)
                store.replace("LATEST", b"%d" % number, durable=False)
                recorder.note("told", number=number)
            with store.open_blob("blobs/000001-t1-0000000000000001.safetensors") as sink:
                sink.write(b"aborted")
            store.delete("events/0000.jsonl")

        def check(store: Store, cut: Cut) -> None:
            assert read(store, "events/beside") == read(store, "beside") == BESIDE, cut
            assert (read(store, "events/0001.jsonl") or b"").startswith(b"before\n")

        def prepare(store: Store) -> None:
            store.create("beside", BESIDE)
            store.create("events/beside", BESIDE)
            store.create("events/0000.jsonl", b"goes")
            store.create("events/0001.jsonl", b"before\n")

        self.cut_everywhere(act, check, prepare)

    def test_a_run_keeps_what_was_saved_and_goes_on(self) -> None:
        def act(store: Store, recorder: Recorder) -> None:
            for step in (1, 2, 3):
                saved = oneshot.save(store, {"policy": {"w": [float(step)] * 50}}, step=step)
                recorder.note("acknowledged", number=saved.number)

        def check(store: Store, cut: Cut) -> None:
            acknowledged = max([0, *(facts["number"] for facts in cut.noted("acknowledged"))])
            try:
                loaded = oneshot.load(store)
            except NotFoundError:
                assert not acknowledged
            else:
                assert loaded in [{"policy": {"w": [float(step)] * 50}} for step in range(max(acknowledged, 1), 4)]
            assert oneshot.save(store, {"policy": {"w": [9.0]}}, step=9).number > acknowledged
            assert oneshot.load(store) == {"policy": {"w": [9.0]}}
            assert oneshot.verify(store).ok

        self.cut_everywhere(act, check)


def read(store: Store, name: str) -> bytes | None:
    """Return what is under a name; None if nothing is."""
    try:
        return store.read(name)
    except NotFoundError:
        return None
