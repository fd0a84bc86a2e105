"""Hold the contract of `milepost.service.transports.base` as tests. Subclass `TransportTests` for a transport of your own.

class TestMine(TransportTests):
    def serving(self, directory): ...
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from milepost.errors import CorruptError, NotFoundError, ServiceError
from milepost.service.index import Chunks
from milepost.service.transports.base import Blob, Link, Source, Transport
from milepost.service.transports.moving import Mover

BLOB = Blob("000000000001-00", "weights.safetensors")
DIGITS = b"0123456789" * 100
LIMIT = 1 << 40


@dataclass(frozen=True, slots=True)
class Serving:
    """Be bytes that are served, and the way to them."""

    source: Source
    transport: Callable[[float], Transport]
    """Makes one that waits at most so many seconds for a byte."""
    pid: int | None = None
    """The process without which nothing comes; None where there is none."""

    def link(self, stall_s: float = 30.0) -> Link:
        link = self.transport(stall_s).reach(self.source)
        assert link is not None
        return link


def read(link: Link, blob: Blob, start: int, stop: int) -> bytes:
    into = bytearray(stop - start)
    link.read_into(blob, start, memoryview(into))
    return bytes(into)


class TransportTests:
    """Test one kind of way. Override what is above the first test, and no test."""

    can_write = True
    can_map = False
    has_server = True

    def serving(self, directory: Path) -> AbstractContextManager[Serving]:
        """Serve what lies in this directory; a place is a directory in it, a blob a file."""
        raise NotImplementedError

    def put(self, directory: Path, blob: Blob, data: bytes) -> None:
        """Have a blob served."""
        (directory / blob.place).mkdir(parents=True, exist_ok=True)
        (directory / blob.place / blob.name).write_bytes(data)

    def change(self, directory: Path, blob: Blob, at: int) -> None:
        """Flip a bit of a blob where it lies."""
        path = directory / blob.place / blob.name
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    def grow(self, directory: Path, blob: Blob, size_bytes: int) -> None:
        """Have a blob be so long, mostly of zeros, which take no room."""
        os.truncate(directory / blob.place / blob.name, size_bytes)

    can_be_large = True
    """Whether `grow` takes no room."""

    @pytest.fixture(scope="class")
    @classmethod
    def shared(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Serving] | None]:
        """Serve one directory to all tests of a class: to start a process for each would take most of their time."""
        if not cls.has_server:
            yield None
            return
        directory = tmp_path_factory.mktemp("shared") / "versions"
        directory.mkdir()
        with cls().serving(directory) as serving:
            yield directory, serving

    @pytest.fixture
    def directory(self, shared: tuple[Path, Serving] | None, tmp_path: Path) -> Path:
        directory = tmp_path / "versions" if shared is None else shared[0]
        shutil.rmtree(directory, ignore_errors=True)
        (directory / BLOB.place).mkdir(parents=True)
        self.put(directory, BLOB, DIGITS)
        return directory

    @pytest.fixture
    def served(self, shared: tuple[Path, Serving] | None, directory: Path) -> Iterator[Serving]:
        if shared is not None:
            yield shared[1]
            return
        with self.serving(directory) as serving:
            yield serving

    @pytest.fixture
    def link(self, served: Serving) -> Iterator[Link]:
        with served.link() as link:
            yield link

    # getting

    @pytest.mark.parametrize(("start", "stop"), [(0, 1000), (0, 1), (3, 7), (999, 1000), (500, 1000), (500, 500), (0, 0)])
    def test_a_range_comes_as_it_lies_there(self, link: Link, start: int, stop: int) -> None:
        assert read(link, BLOB, start, stop) == DIGITS[start:stop]

    def test_bytes_go_where_they_are_to_go_and_nowhere_else(self, link: Link) -> None:
        into = bytearray(b"-" * 12)
        link.read_into(BLOB, 5, memoryview(into)[4:8])
        assert into == b"----5678----"

    def test_pieces_come_in_their_order_each_when_it_is_full(self, link: Link) -> None:
        into = memoryview(bytearray(10))
        come = [bytes(piece) for piece in link.read_each(BLOB, 4, (into[:1], into[1:7], into[7:]))]
        assert come == [b"4", b"567890", b"123"]

    def test_many_requests_go_over_one_link(self, link: Link) -> None:
        for start in range(0, 1000, 37):
            assert read(link, BLOB, start, min(start + 50, 1000)) == DIGITS[start : start + 50]

    def test_a_blob_without_bytes_comes(self, directory: Path, served: Serving) -> None:
        empty = Blob(BLOB.place, "empty.safetensors")
        self.put(directory, empty, b"")
        with served.link() as link:
            assert read(link, empty, 0, 0) == b""
            mapped = link.map(empty)
            assert mapped is None or bytes(mapped) == b""

    def test_all_bytes_of_several_mebibytes_come(self, directory: Path, served: Serving) -> None:
        data = os.urandom(5 << 20)
        blob = Blob(BLOB.place, "more.safetensors")
        self.put(directory, blob, data)
        with served.link() as link:
            assert read(link, blob, 0, len(data)) == data
            assert read(link, blob, 12345, 4 << 20) == data[12345 : 4 << 20]

    def test_a_range_beyond_four_gibibytes_comes(self, directory: Path, served: Serving) -> None:
        if not self.can_be_large:
            pytest.skip("zeros take room here")
        self.grow(directory, BLOB, (5 << 30) + 3)
        with served.link() as link:
            assert read(link, BLOB, 990, 1010) == DIGITS[990:] + bytes(10)
            assert read(link, BLOB, 5 << 30, (5 << 30) + 3) == bytes(3)
            with pytest.raises(NotFoundError):
                read(link, BLOB, 5 << 30, (5 << 30) + 4)

    def test_what_is_not_there_is_told_and_the_link_goes_on(self, link: Link) -> None:
        for blob in (Blob(BLOB.place, "optimizer.safetensors"), Blob("000000000009-00", BLOB.name)):
            with pytest.raises(NotFoundError) as caught:
                read(link, blob, 0, 10)
            assert caught.value.kind == "no-such-blob"
        assert read(link, BLOB, 0, 10) == DIGITS[:10]

    def test_a_blob_that_ends_early_is_told_and_the_link_goes_on(self, link: Link) -> None:
        for start, stop in ((990, 1001), (1000, 1001), (5000, 5001), (1 << 40, (1 << 40) + 1)):
            with pytest.raises(NotFoundError) as caught:
                read(link, BLOB, start, stop)
            assert caught.value.kind == "no-such-blob"
        assert read(link, BLOB, 990, 1000) == DIGITS[990:]

    @pytest.mark.parametrize(
        "blob",
        [
            Blob("..", "secret"),
            Blob("", "secret"),
            Blob(".", "secret"),
            Blob(BLOB.place, "../../secret"),
            Blob(BLOB.place, "/etc/passwd"),
            Blob("/etc", "passwd"),
            Blob(BLOB.place, ""),
            Blob(BLOB.place, "."),
            Blob(BLOB.place, "x" * 201),
            Blob(BLOB.place, "a\nb"),
            Blob(f"{BLOB.place}/../{BLOB.place}", BLOB.name),
        ],
        ids=str,
    )
    def test_no_name_leads_out_of_what_is_served(self, directory: Path, served: Serving, blob: Blob) -> None:
        (directory.parent / "secret").write_bytes(DIGITS)
        (directory / "secret").write_bytes(DIGITS)
        with served.link() as link, pytest.raises((NotFoundError, ServiceError)):
            read(link, blob, 0, 5)

    def test_two_links_do_not_get_in_each_others_way(self, directory: Path, served: Serving) -> None:
        blobs = [Blob(BLOB.place, f"weights.{number}-of-2.safetensors") for number in range(2)]
        data = [os.urandom(3 << 20) for _ in blobs]
        for blob, its in zip(blobs, data, strict=True):
            self.put(directory, blob, its)
        got: list[bytes] = [b"", b""]

        def fetch(number: int) -> None:
            with served.link() as link:
                got[number] = b"".join(read(link, blobs[number], at << 20, (at + 1) << 20) for at in range(3))

        threads = [threading.Thread(target=fetch, args=(number,), name=f"fetch-{number}") for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == data

    def test_a_source_of_another_kind_is_none_of_ours_and_nothing_is_raised(self, served: Serving) -> None:
        transport = served.transport(30.0)
        assert transport.name == served.source.transport
        assert transport.reach(Source("pigeon", served.source.address, served.source.host)) is None

    def test_a_link_that_is_closed_twice_is_closed(self, served: Serving) -> None:
        link = served.link()
        assert read(link, BLOB, 0, 10) == DIGITS[:10]
        link.close()
        link.close()

    # bringing

    def test_bytes_are_brought_in_pieces_in_any_order_and_twice(self, link: Link) -> None:
        if not self.can_write:
            pytest.skip("bytes go one way here")
        new = Blob(BLOB.place, "new.safetensors")
        for start, stop in ((500, 1000), (0, 500), (250, 750), (250, 750)):
            link.write(new, start, DIGITS[start:stop])
        assert read(link, new, 0, 1000) == DIGITS

    def test_where_bytes_go_one_way_it_is_said(self, link: Link) -> None:
        if self.can_write:
            pytest.skip("bytes go both ways here")
        with pytest.raises(ServiceError) as caught:
            link.write(BLOB, 0, b"x")
        assert caught.value.kind == "cannot-write"

    def test_several_mebibytes_are_brought(self, link: Link) -> None:
        if not self.can_write:
            pytest.skip("bytes go one way here")
        new, data = Blob(BLOB.place, "new.safetensors"), os.urandom(5 << 20)
        link.write(new, 0, data)
        assert read(link, new, 0, len(data)) == data

    # mapping

    def test_what_is_mapped_cannot_be_written_and_outlives_name_and_link(self, directory: Path, served: Serving) -> None:
        with served.link() as link:
            view = link.map(BLOB)
            assert (view is not None) == self.can_map == served.transport(30.0).is_local
            if view is None:
                pytest.skip("nothing is mapped here")
            assert view.readonly
            (directory / BLOB.place / BLOB.name).unlink()
        self.put(directory, BLOB, b"x" * 1000)
        assert view == DIGITS

    def test_what_is_not_there_cannot_be_mapped(self, link: Link) -> None:
        if not self.can_map:
            pytest.skip("nothing is mapped here")
        with pytest.raises(NotFoundError):
            link.map(Blob(BLOB.place, "optimizer.safetensors"))

    def test_new_memory_lies_where_it_is_wanted_and_takes_no_other_name_its_bytes(self, link: Link) -> None:
        new = Blob(BLOB.place, "new.safetensors")
        memory = link.map_new(new, 1000)
        assert (memory is not None) == self.can_map
        if memory is None:
            pytest.skip("nothing is mapped here")
        memory[:] = DIGITS
        first = link.map(new)
        again = link.map_new(new, 10)
        assert again is not None
        assert (bytes(again), first) == (bytes(10), DIGITS)

    # failing

    def test_a_server_that_dies_in_the_middle_is_told(self, tmp_path: Path) -> None:
        self._check_that_it_is_told(tmp_path, signal.SIGKILL, 60.0)

    def test_a_server_that_stands_still_is_waited_for_so_long_and_no_longer(self, tmp_path: Path) -> None:
        self._check_that_it_is_told(tmp_path, signal.SIGSTOP, 0.3)

    def _check_that_it_is_told(self, directory: Path, struck: signal.Signals, stall_s: float) -> None:
        if not self.has_server:
            pytest.skip("there is no server here")
        self.put(directory, BLOB, DIGITS)
        self.grow(directory, BLOB, 512 << 20)  # more than any socket holds
        with self.serving(directory) as served, served.link(60.0) as whole, served.link(stall_s) as link:
            assert served.pid is not None
            assert read(whole, BLOB, 0, 10) == DIGITS[:10]
            piece = memoryview(bytearray(1 << 20))
            pieces = link.read_each(BLOB, 0, [piece] * 512)
            next(pieces)
            os.kill(served.pid, struck)
            with pytest.raises(ServiceError) as caught:
                for _ in pieces:
                    pass
            assert caught.value.kind == "transport-failed"
            with pytest.raises(ServiceError) as caught:
                link.read_into(BLOB, 0, piece)
            assert caught.value.kind == "transport-failed"

    # with what moves versions

    def test_a_version_comes_whole_and_of_a_damaged_one_only_the_chunk_comes_from_elsewhere(
        self, directory: Path, served: Serving, tmp_path: Path
    ) -> None:
        data = os.urandom(1 << 20)
        chunks = Chunks.of(data, 100_000)
        blob = Blob(BLOB.place, "optimizer.safetensors")
        self.put(directory, blob, data)
        mover = Mover([served.transport(30.0), _Spare(data)], links=2)
        into = {blob: memoryview(bytearray(len(data)))}  # what lies there mapped would not be looked at
        moved = mover.fetch([served.source], {blob: chunks}, limit_bytes=LIMIT, into=into)
        assert moved.views[blob] == data
        self.change(directory, blob, 250_000)
        with pytest.raises(CorruptError) as caught:
            mover.fetch([served.source], {blob: chunks}, limit_bytes=LIMIT, into=into)
        assert (caught.value.kind, caught.value.facts["shard"], caught.value.facts["chunk"]) == ("damaged-shard", "optimizer", 2)
        moved = mover.fetch([served.source, Source("spare", "")], {blob: chunks}, limit_bytes=LIMIT, into=into)
        assert moved.views[blob] == data
        assert moved.bytes_by["spare"] == 100_000


class _Spare(Transport):
    """Reach a good copy in memory."""

    name = "spare"

    def __init__(self, data: bytes) -> None:
        self._data = data

    def reach(self, source: Source) -> Link | None:
        return _SpareLink(self._data) if source.transport == self.name else None


class _SpareLink(Link):
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_into(self, blob: Blob, start: int, into: memoryview) -> None:
        into[:] = self._data[start : start + len(into)]

    def close(self) -> None:
        pass
