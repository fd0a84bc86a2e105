"""Read another process's memory with Mooncake's transfer engine. Without a card for it the engine goes over TCP."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from milepost.errors import ServiceError
from milepost.service.transports import rdma_mooncake
from milepost.service.transports.base import Blob, Source
from milepost.service.transports.bulk import BulkTransport
from milepost.service.transports.rdma_mooncake import RdmaTransport
from milepost.service.transports.rdma_serving import RdmaServer
from tests.service.transports.contract import BLOB, DIGITS, Serving, TransportTests, read

TOKEN = "a-token"


@contextmanager
def offered(directory: Path) -> Iterator[RdmaServer]:
    server = RdmaServer(str(directory), TOKEN)
    server.start()
    try:
        yield server
    finally:
        server.close()


def has_mapped(pid: int, name: str) -> bool:
    with open(f"/proc/{pid}/maps") as file:
        return any(f"/versions/{BLOB.place}/{name}" in line for line in file)


class TestRdma(TransportTests):
    can_write = False

    @contextmanager
    def serving(self, directory: Path) -> Iterator[Serving]:
        with offered(directory) as server:
            assert server.source is not None
            yield Serving(server.source, lambda stall_s: RdmaTransport(BulkTransport(TOKEN, stall_s=stall_s)), server.pid)

    def test_who_does_not_know_the_token_is_not_told_where_anything_lies(self, served: Serving) -> None:
        assert RdmaTransport(BulkTransport("another")).reach(served.source) is None

    def test_memory_of_what_was_erased_is_given_back(self, directory: Path, served: Serving) -> None:
        assert served.pid is not None
        with served.link() as link:
            assert read(link, BLOB, 0, 1000) == DIGITS
            assert has_mapped(served.pid, BLOB.name)
            (directory / BLOB.place / BLOB.name).unlink()
            while has_mapped(served.pid, BLOB.name):
                threading.Event().wait(0.05)

    def test_a_blob_that_was_made_anew_is_another(self, directory: Path, served: Serving) -> None:
        with served.link() as link:
            assert read(link, BLOB, 0, 1000) == DIGITS
        (directory / BLOB.place / BLOB.name).unlink()
        self.put(directory, BLOB, DIGITS[::-1] * 2)
        with served.link() as link:
            assert read(link, BLOB, 0, 2000) == DIGITS[::-1] * 2

    def test_a_reader_whose_bytes_do_not_come_in_time_keeps_the_memory_to_which_they_may_come(
        self, directory: Path, served: Serving
    ) -> None:
        assert served.pid is not None
        with served.link() as link:
            assert read(link, BLOB, 0, 10) == DIGITS[:10]
            engine, room, lies_at = link._engine, link._room, link._at  # type: ignore[attr-defined]
            where = bytearray(rdma_mooncake.WHERE.size)
            link._lookup.read_into(BLOB, 0, memoryview(where))  # type: ignore[attr-defined]
            address, _, name = rdma_mooncake.WHERE.unpack(where)
            os.kill(served.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, served.pid, os.WSTOPPED | os.WNOWAIT)
            before = len(rdma_mooncake._abandoned)
            with pytest.raises(ServiceError):
                link._fetch(name.rstrip(b"\0").decode(), address, 1000)  # type: ignore[attr-defined]
            os.kill(served.pid, signal.SIGCONT)
            assert rdma_mooncake._abandoned[before:] == [room]
        engine.unregister(lies_at)
        del rdma_mooncake._abandoned[before:]
        with served.link() as link:
            assert read(link, BLOB, 0, 1000) == DIGITS

    def test_after_too_many_that_did_not_come_in_time_this_process_goes_other_ways(
        self, served: Serving, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rdma_mooncake, "_MOST_ABANDONED", 0)
        assert served.transport(30.0).reach(served.source) is None


def test_the_process_that_offers_memory_ends_with_the_service_however_that_ends(tmp_path: Path) -> None:
    code = (
        "import sys; from milepost.service.transports.rdma_serving import RdmaServer; "
        "server = RdmaServer(sys.argv[1]); server.start(); print(server.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as service:
        assert service.stdout is not None
        pid = int(service.stdout.readline())
        waiting = os.pidfd_open(pid)
        service.kill()
        assert select.select([waiting], [], [], 60)[0]
        os.close(waiting)


def test_a_process_that_has_ended_is_offered_no_more(tmp_path: Path) -> None:
    with offered(tmp_path) as server:
        source = server.source
        assert source is not None
        assert source.transport == "rdma"
        waiting = os.pidfd_open(server.pid)
        os.kill(server.pid, signal.SIGKILL)
        assert select.select([waiting], [], [], 60)[0]
        os.close(waiting)
        assert server.source is None
        assert RdmaTransport(BulkTransport(TOKEN)).reach(source) is None


def test_an_address_that_is_none_is_not_reached() -> None:
    for address in ("", "nonsense", "127.0.0.1:1", "127.0.0.1:99999"):
        assert RdmaTransport(BulkTransport(TOKEN)).reach(Source("rdma", address)) is None


def test_a_place_that_is_not_there_is_told(tmp_path: Path) -> None:
    with offered(tmp_path) as server:
        assert server.source is not None
        link = RdmaTransport(BulkTransport(TOKEN)).reach(server.source)
        assert link is not None
        with link, pytest.raises(ServiceError) as caught:
            link.write(Blob("a", "b"), 0, b"x")
        assert caught.value.kind == "cannot-write"
