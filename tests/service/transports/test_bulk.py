"""What the bulk port promises beyond the contract: who gets in, what a liar gets, and how much a server gives of itself."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from milepost.clock import FakeClock, SystemClock
from milepost.encode.digest import Buffer
from milepost.errors import NotFoundError, ServiceError, StoreError
from milepost.service.transports import bulk_frames as frames
from milepost.service.transports.base import Blob, Source
from milepost.service.transports.bulk import BulkTransport
from milepost.service.transports.bulk_server import BulkServer, Limits
from milepost.service.transports.bulk_wire import Wire
from milepost.service.transports.folder import Folder
from tests.service.transports.contract import BLOB, DIGITS, Serving, TransportTests, read
from tests.service.transports.serving import serving

TOKEN = "a-token"


class TestBulk(TransportTests):
    @contextmanager
    def serving(self, directory: Path) -> Iterator[Serving]:
        with serving("bulk", directory, TOKEN) as (address, pid):
            yield Serving(Source("bulk", address), lambda stall_s: BulkTransport(TOKEN, stall_s=stall_s), pid)


class Shelf(Folder):
    """Take nothing but what was announced."""

    def write(self, blob: Blob, start: int, data: Buffer) -> None:
        if blob.name != "announced":
            raise ServiceError("this part was not announced", kind="not-announced", hint="begin with it", blob=str(blob))
        super().write(blob, start, data)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(str(tmp_path))
    folder.write(BLOB, 0, DIGITS)
    return folder


@contextmanager
def raw(address: str, *, greet: bool = True) -> Iterator[socket.socket]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.settimeout(None)  # else MSG_WAITALL waits for nothing
        if greet:
            client.sendall(frames.greeting(TOKEN))
            assert client.recv(frames.ANSWER.size, socket.MSG_WAITALL) == frames.ANSWER.pack(frames.DONE, 0)
        yield client


def has_ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def until(holds: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(6000):
        if holds():
            return
        waiting.wait(0.01)
    raise AssertionError("it did not come about")


# who gets in


@pytest.mark.parametrize("token", ["", "a-toke", "a-tokem", "a-token ", "x" * 1024])
def test_without_the_token_nobody_gets_in(folder: Folder, token: str) -> None:
    with BulkServer(folder, TOKEN) as server:
        assert BulkTransport(token).reach(Source("bulk", server.address)) is None
        with raw(server.address, greet=False) as client:
            client.sendall(frames.greeting(token) + frames.Request(frames.GET, BLOB, 0, 10).encode())
            _, size = frames.ANSWER.unpack(client.recv(frames.ANSWER.size, socket.MSG_WAITALL))
            assert json.loads(client.recv(size, socket.MSG_WAITALL))["kind"] == "bad-token"
            assert has_ended(client)
        assert server.counts.bytes_out == 0


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        frames.GREETING.pack(b"MILEBULK", 2, 0),
        frames.GREETING.pack(b"MILEBULK", 1, 1025),
        frames.GREETING.pack(b"MILEBULK", 1, 65535),
    ],
)
def test_who_greets_otherwise_is_sent_away(folder: Folder, said: bytes) -> None:
    with BulkServer(folder, TOKEN) as server, raw(server.address, greet=False) as client:
        client.sendall(said)
        assert has_ended(client)


@pytest.mark.parametrize(
    "request_",
    [
        frames.REQUEST.pack(3, 1, 1, 0, 1) + b"ab",
        frames.REQUEST.pack(frames.GET, 201, 1, 0, 1),
        frames.REQUEST.pack(frames.GET, 1, 65535, 0, 1),
        frames.REQUEST.pack(frames.PUT, 1, 1, 0, (16 << 20) + 1),
        frames.REQUEST.pack(frames.PUT, 1, 1, 0, 1 << 63),
        frames.REQUEST.pack(frames.GET, 1, 1, 0, 1) + b"\xff\xff",
    ],
)
def test_what_is_no_request_ends_the_connection_and_no_other(folder: Folder, request_: bytes) -> None:
    with BulkServer(folder, TOKEN) as server, raw(server.address) as other, raw(server.address) as client:
        client.sendall(request_)
        assert has_ended(client)
        other.sendall(frames.Request(frames.GET, BLOB, 0, 10).encode())
        assert other.recv(frames.ANSWER.size + 10, socket.MSG_WAITALL)[frames.ANSWER.size :] == DIGITS[:10]


@pytest.mark.parametrize(("start", "size"), [(0, 1 << 63), (1 << 63, 10), ((1 << 64) - 1, (1 << 64) - 1)])
def test_a_range_that_cannot_be_is_refused(folder: Folder, start: int, size: int) -> None:
    with BulkServer(folder, TOKEN) as server, raw(server.address) as client:
        client.sendall(frames.Request(frames.GET, BLOB, start, size).encode())
        status, size = frames.ANSWER.unpack(client.recv(frames.ANSWER.size, socket.MSG_WAITALL))
        assert status == frames.REFUSED
        assert json.loads(client.recv(size, socket.MSG_WAITALL))["kind"] == "no-such-blob"


# how much a server gives of itself


def test_there_are_so_many_connections_and_one_that_ends_makes_room(folder: Folder) -> None:
    with BulkServer(folder, TOKEN, limits=Limits(connections=1)) as server:
        transport, source = BulkTransport(TOKEN), Source("bulk", server.address)
        first = transport.reach(source)
        assert first is not None
        assert transport.reach(source) is None
        assert server.counts.refused == 1
        assert read(first, BLOB, 0, 10) == DIGITS[:10]
        first.close()
        until(lambda: server.connections == 0)
        second = transport.reach(source)
        assert second is not None
        second.close()


@pytest.mark.parametrize("said", [b"", b"MILE", frames.GREETING.pack(b"MILEBULK", 1, 10) + b"a"])
def test_who_does_not_greet_is_not_waited_for(folder: Folder, said: bytes) -> None:
    with BulkServer(folder, TOKEN, limits=Limits(greet_s=0.1)) as server, raw(server.address, greet=False) as client:
        client.sendall(said)
        assert has_ended(client)
        until(lambda: server.connections == 0)


@pytest.mark.parametrize("said", [b"", b"\1", frames.Request(frames.PUT, Blob("a", "b"), 0, 100).encode() + b"half"])
def test_who_says_nothing_more_is_not_waited_for(folder: Folder, said: bytes) -> None:
    limits = Limits(idle_s=0.1, stall_s=0.1)
    with BulkServer(folder, TOKEN, limits=limits) as server, raw(server.address) as client:
        client.sendall(said)
        assert has_ended(client)


def test_a_reader_that_takes_nothing_is_not_waited_for(folder: Folder) -> None:
    os.truncate(folder.path(BLOB), 512 << 20)  # more than any socket holds
    with BulkServer(folder, TOKEN, limits=Limits(stall_s=0.1)) as server, raw(server.address) as client:
        client.sendall(frames.Request(frames.GET, BLOB, 0, 512 << 20).encode())
        until(lambda: server.connections == 0)
        assert server.counts.bytes_out == 0


def test_a_server_that_closes_ends_what_is_under_way_and_leaves_no_thread(folder: Folder) -> None:
    os.truncate(folder.path(BLOB), 512 << 20)
    server = BulkServer(folder, TOKEN)
    server.start()
    with raw(server.address) as idle, raw(server.address) as reader, raw(server.address, greet=False):
        reader.sendall(frames.Request(frames.GET, BLOB, 0, 512 << 20).encode())
        assert reader.recv(frames.ANSWER.size, socket.MSG_WAITALL)
        server.close()
        assert has_ended(idle)
        assert server.connections == 0
    server.close()


def test_a_port_that_is_taken_is_told(folder: Folder) -> None:
    with BulkServer(folder) as server, pytest.raises(ServiceError) as caught:
        BulkServer(folder, port=int(server.address.rpartition(":")[2])).start()
    assert caught.value.kind == "cannot-listen"


# what is refused, and what fails


def test_a_write_that_is_refused_says_why_and_the_link_goes_on(folder: Folder) -> None:
    shelf = Shelf(folder.directory)
    with BulkServer(shelf) as server:
        link = BulkTransport().reach(Source("bulk", server.address))
        assert link is not None
        with link:
            for size in (0, 10, 3 << 20):
                with pytest.raises(ServiceError) as caught:
                    link.write(Blob(BLOB.place, "other"), 0, bytes(size))
                assert (caught.value.kind, caught.value.hint) == ("not-announced", "begin with it")
            link.write(Blob(BLOB.place, "announced"), 7, b"abc")
            assert read(link, BLOB, 3, 7) == b"3456"
    assert bytes(shelf.map(Blob(BLOB.place, "announced"))) == bytes(7) + b"abc"
    assert (server.counts.bytes_in, server.counts.bytes_out) == (3, 4)


class Written(Folder):
    """Be what is no file."""

    def open_file(self, blob: Blob) -> None:  # type: ignore[override]
        self.size(blob)

    def size(self, blob: Blob) -> int:
        if blob != BLOB:
            raise NotFoundError("there is no such blob", kind="no-such-blob")
        return len(DIGITS) * 5000

    def read_into(self, blob: Blob, start: int, into: memoryview) -> None:
        if start >= 4 << 20:
            raise StoreError("could not read", kind="io", retryable=False)
        into[:] = (DIGITS * (len(into) // 1000 + 2))[start % 1000 :][: len(into)]


def test_what_is_no_file_is_read_and_sent_and_a_failure_in_the_middle_ends_the_transfer(folder: Folder) -> None:
    with BulkServer(Written(folder.directory)) as server:
        link = BulkTransport().reach(Source("bulk", server.address))
        assert link is not None
        with link:
            with pytest.raises(NotFoundError):
                read(link, Blob(BLOB.place, "none"), 0, 1)
            assert read(link, BLOB, 1, 3_000_001) == (DIGITS * 3001)[1:3_000_001]
            with pytest.raises(ServiceError) as caught:
                read(link, BLOB, 0, 5_000_000)
            assert caught.value.kind == "transport-failed"


def test_a_file_that_became_shorter_ends_the_transfer(folder: Folder) -> None:
    os.truncate(folder.path(BLOB), 512 << 20)
    with BulkServer(folder, TOKEN) as server, raw(server.address) as client:
        client.sendall(frames.Request(frames.GET, BLOB, 0, 512 << 20).encode())
        assert client.recv(frames.ANSWER.size, socket.MSG_WAITALL)
        os.truncate(folder.path(BLOB), 0)
        while client.recv(1 << 20):
            pass


def test_a_refusal_fits_whatever_it_says() -> None:
    error = ServiceError("\0\x1b\u2028é" * 5000, kind="k" * 5000, hint='"\\\n' * 5000)
    text = frames.refusal(error)
    assert len(text) <= frames.MOST_TEXT_BYTES
    assert frames.refused(text)[0] == "k" * 100


# servers that lie


@contextmanager
def liar(*answers: bytes) -> Iterator[str]:
    """Answer a greeting with the first, a request with the second; then end."""

    def answer() -> None:
        client, _ = listener.accept()
        with client, suppress(OSError):
            for said in answers:
                client.recv(frames.GREETING.size)
                client.sendall(said)
            client.shutdown(socket.SHUT_WR)
            client.settimeout(60)
            while client.recv(4096):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, name="liar")
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


WELCOME = frames.ANSWER.pack(frames.DONE, 0)


@pytest.mark.parametrize(
    "said",
    [b"", b"SSH-2.0-OpenSSH_9.6\r\n", frames.ANSWER.pack(2, 0), frames.ANSWER.pack(1, 1 << 60), frames.ANSWER.pack(1, 2) + b"{}"],
)
def test_who_greets_back_otherwise_is_not_reached(said: bytes) -> None:
    with liar(said) as address:
        assert BulkTransport().reach(Source("bulk", address)) is None


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\0",
        frames.ANSWER.pack(0, 9) + DIGITS[:9],
        frames.ANSWER.pack(0, 11) + DIGITS[:11],
        frames.ANSWER.pack(0, 1 << 60) + DIGITS,
        frames.ANSWER.pack(0, 10) + DIGITS[:9],
        frames.ANSWER.pack(1, 1 << 60) + DIGITS,
        frames.ANSWER.pack(1, 10) + DIGITS[:10],
        frames.ANSWER.pack(1, 10) + b"{}",
        frames.ANSWER.pack(7, 10) + DIGITS[:10],
    ],
)
def test_an_answer_that_lies_is_a_transport_that_failed(said: bytes) -> None:
    with liar(WELCOME, said) as address:
        link = BulkTransport().reach(Source("bulk", address))
        assert link is not None
        with link, pytest.raises(ServiceError) as caught:
            read(link, BLOB, 0, 10)
        assert caught.value.kind == "transport-failed"


def test_who_does_not_greet_back_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert BulkTransport(connect_s=0.1, stall_s=3600.0).reach(Source("bulk", address)) is None


@pytest.mark.parametrize(
    "address", ["", "here", ":", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:0", "127.0.0.1:99999", "127.0.0.1:²"]
)
def test_an_address_that_is_none_is_not_reached(address: str) -> None:
    assert BulkTransport().reach(Source("bulk", address)) is None


def test_an_address_without_a_host_is_that_of_the_control_connection(folder: Folder) -> None:
    with BulkServer(folder) as server:
        link = BulkTransport(host="127.0.0.1").reach(Source("bulk", f":{server.address.rpartition(':')[2]}"))
        assert link is not None
        link.close()


def test_a_byte_now_and_then_keeps_nobody_waiting() -> None:
    class Hours(FakeClock):
        def monotonic_ns(self) -> int:
            self.advance(seconds=3600)
            return super().monotonic_ns()

    for clock, comes in ((SystemClock(), True), (Hours(), False)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            wire, into = Wire(ours, clock, 60.0), bytearray(2)
            theirs.sendall(b"a")
            drip = threading.Thread(target=lambda: (theirs.recv(1), theirs.sendall(b"b")), name="drip")  # noqa: B023
            drip.start()
            if comes:
                ours.sendall(b"!")
                wire.fill(memoryview(into))
                assert into == b"ab"
            else:
                with pytest.raises(TimeoutError, match="less than 64 KiB"):
                    _fill_after_a_byte(wire, into, ours)
            drip.join()


def _fill_after_a_byte(wire: Wire, into: bytearray, ours: socket.socket) -> None:
    wire.wait_at_most(0.1)
    try:
        wire.fill(memoryview(into))
    finally:
        ours.sendall(b"!")


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    directory = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-keyout",
            "key.pem",
            "-out",
            "cert.pem",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ],
        cwd=directory,
        check=True,
        capture_output=True,
    )
    return directory / "cert.pem", directory / "key.pem"


def test_over_tls_the_same_bytes_come_and_nobody_comes_in_without(folder: Folder, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(cert, key)
    trusting = ssl.create_default_context(cafile=str(cert))
    data = os.urandom(3 << 20)
    folder.write(Blob(BLOB.place, "large"), 0, data)
    with BulkServer(folder, TOKEN, tls=ours) as server:
        source = Source("bulk", server.address)
        link = BulkTransport(TOKEN, tls=trusting).reach(source)
        assert link is not None
        with link:
            assert read(link, Blob(BLOB.place, "large"), 5, len(data)) == data[5:]
            link.write(Blob(BLOB.place, "new"), 0, data)
            with pytest.raises(NotFoundError):
                read(link, Blob(BLOB.place, "none"), 0, 1)
            assert read(link, Blob(BLOB.place, "new"), 0, len(data)) == data
        assert BulkTransport(TOKEN, tls=ssl.create_default_context()).reach(source) is None
        assert BulkTransport(TOKEN).reach(source) is None
        assert BulkTransport("other", tls=trusting).reach(source) is None
        slow = BulkTransport(TOKEN, tls=trusting, stall_s=60.0).reach(source)
        assert slow is not None
        # `close` at the end of this test ends this connection, which nobody has closed.
    slow.close()
