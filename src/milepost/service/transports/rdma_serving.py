"""Offer the memory tier by RDMA: a process beside the service, which maps what is asked for and lets the engine hand it out.

It is a process of its own, because the engine is foreign code that answers to anybody who reaches its ports: if it falls, the
service stands, and readers go another way. It ends with the service, however that ends: its standard input closes then.

It speaks the bulk protocol. A GET of a blob says where that lies (`rdma_mooncake.WHERE`), and not what is in it.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from dataclasses import dataclass

import msgspec

from milepost.errors import MilepostError, ServiceError
from milepost.service.transports.base import Blob, Source
from milepost.service.transports.bulk_server import BulkServer
from milepost.service.transports.failures import no_such_blob
from milepost.service.transports.folder import Folder
from milepost.service.transports.rdma_mooncake import NAME, WHERE, Engine, address_of, has_device
from milepost.threads import Member

_SWEEP_S = 1.0


class _Orders(msgspec.Struct, frozen=True):
    directory: str
    host: str
    token: str


class RdmaServer:
    """Run that process for the memory tier in ``directory``, from `start` to `close`. ``host``: by which address readers reach it."""

    def __init__(self, directory: str, token: str = "", *, host: str = "127.0.0.1") -> None:
        self._orders = _Orders(directory, host, token)
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""

    def start(self) -> Source:
        """Begin, and return how it is reached. Raises `ServiceError` (kind ``no-transfer-engine``) where it does not begin."""
        self._process = subprocess.Popen(  # noqa: S603 - this Python, this module
            [sys.executable, "-m", "milepost.service.transports.rdma_serving"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(self._orders) + b"\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline().decode().strip()
        if not said.startswith("at "):
            self.close()
            raise ServiceError(
                "the memory of this service cannot be offered by RDMA",
                kind="no-transfer-engine",
                hint="pip install 'milepost[rdma]', and libibverbs (Debian: libibverbs1); or transport=`auto`",
                why=said or "its process ended",
            )
        self._address = said.removeprefix("at ")
        return Source(NAME, self._address)

    @property
    def source(self) -> Source | None:
        """Return how it is reached; None if it has ended."""
        alive = self._process is not None and self._process.poll() is None
        return Source(NAME, self._address) if alive else None

    @property
    def pid(self) -> int:
        """Return which process it is."""
        assert self._process is not None, "start() comes first"
        return self._process.pid

    def close(self) -> None:
        """End it, and wait until it has ended. A second call does nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()  # there is nothing that it would have to finish, and foreign threads may hold it up
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@dataclass(slots=True)
class _Registered:
    descriptor: int
    inode: int
    memory: mmap.mmap | None
    address: int
    size_bytes: int


class Register:
    """Map and register what is asked for; let go of what the service has erased. From several threads."""

    def __init__(self, directory: str, engine: Engine) -> None:
        self._folder, self._engine = Folder(directory), engine
        self._changing = threading.Lock()
        self._held: dict[Blob, _Registered] = {}

    def open_file(self, blob: Blob) -> int:
        """Return a descriptor of what is said about a blob: see `rdma_mooncake.WHERE`."""
        with self._changing:
            held = self._of(blob)
            said = WHERE.pack(held.address, held.size_bytes, self._engine.name.encode())
        answer = os.memfd_create("milepost-where")
        os.write(answer, said)
        return answer

    def write(self, blob: Blob, start: int, data: memoryview) -> None:  # noqa: ARG002
        """Refuse: bytes go one way only."""
        raise ServiceError("nothing can be brought this way", kind="cannot-write", hint="bring it over another transport")

    def sweep(self) -> None:
        """Let go of what has no name any more: its memory would stay taken for as long as it is mapped here."""
        with self._changing:
            for blob, held in list(self._held.items()):
                if not os.fstat(held.descriptor).st_nlink:
                    self._let_go(blob)

    def _of(self, blob: Blob) -> _Registered:
        descriptor = self._folder.open_file(blob)
        status = os.fstat(descriptor)
        held = self._held.get(blob)
        if held is not None and held.inode == status.st_ino:
            os.close(descriptor)
            return held
        if held is not None:
            self._let_go(blob)
        self._held[blob] = held = self._registered(descriptor, status)
        return held

    def _registered(self, descriptor: int, status: os.stat_result) -> _Registered:
        if not status.st_size:
            return _Registered(descriptor, status.st_ino, None, 0, 0)
        try:
            memory = _mapped(descriptor, status.st_size)
            address = address_of(memory)
            if not self._engine.register(address, status.st_size):
                raise OSError("the engine refused to register it")
        except (OSError, ValueError) as error:
            os.close(descriptor)
            raise ServiceError(
                "a version's memory cannot be offered by RDMA",
                kind="transport-failed",
                hint="may enough memory be locked (ulimit -l)? it is had over another transport meanwhile",
                size_bytes=status.st_size,
                why=str(error),
            ) from error
        return _Registered(descriptor, status.st_ino, memory, address, status.st_size)

    def _let_go(self, blob: Blob) -> None:
        held = self._held.pop(blob)
        if held.memory is not None:
            self._engine.unregister(held.address)
            held.memory.close()
        os.close(held.descriptor)


def _mapped(descriptor: int, size_bytes: int) -> mmap.mmap:
    if not has_device():
        return mmap.mmap(descriptor, size_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    # The engine has a card register only what may also be written to.
    to_write = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(to_write, size_bytes, flags=mmap.MAP_SHARED)
    finally:
        os.close(to_write)


def main() -> int:
    """Serve until standard input ends."""
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=_Orders)
    try:
        register = Register(orders.directory, Engine(orders.host))
        server = BulkServer(register, orders.token, host=orders.host)
        address = server.start()
    except MilepostError as error:
        print(str(error).replace("\n", " "), flush=True)  # noqa: T201 - to the service, which waits for it
        return 1
    print(f"at {address}", flush=True)  # noqa: T201
    over = threading.Event()
    sweeping = Member(lambda: _sweep(register, over), "milepost-rdma-sweep")
    sweeping.start()
    sys.stdin.buffer.read()
    os._exit(0)  # the engine's own threads are not waited for


def _sweep(register: Register, over: threading.Event) -> None:
    while not over.wait(_SWEEP_S):
        register.sweep()


if __name__ == "__main__":
    sys.exit(main())
