"""Ways within one host, and through a file system or store that several hosts share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from milepost.clock import SystemClock
from milepost.service.transports.base import Blob, Source
from milepost.service.transports.files import FilesTransport
from milepost.service.transports.host import host_id
from milepost.service.transports.shm import ShmTransport
from milepost.service.transports.store import StoreTransport
from milepost.store.base import Store
from milepost.store.local import LocalStore
from milepost.store.memory import MemoryStore
from tests.service.transports.contract import Serving, TransportTests


class TestShm(TransportTests):
    can_map = True
    has_server = False

    @contextmanager
    def serving(self, directory: Path) -> Iterator[Serving]:
        yield Serving(Source("shm", str(directory), host_id()), lambda _: ShmTransport())


class TestFiles(TransportTests):
    can_write = False
    has_server = False

    @contextmanager
    def serving(self, directory: Path) -> Iterator[Serving]:
        yield Serving(Source("files", str(directory)), lambda _: FilesTransport())


class TestLocalStore(TransportTests):
    can_write = False
    has_server = False

    @contextmanager
    def serving(self, directory: Path) -> Iterator[Serving]:
        store = LocalStore(directory, SystemClock())
        yield Serving(Source("store", "here"), lambda _: StoreTransport({"here": store}.__getitem__))


class TestMemoryStore(TransportTests):
    can_write = False
    has_server = False
    can_be_large = False

    def put(self, directory: Path, blob: Blob, data: bytes) -> None:
        self._store(directory).replace(str(blob), data)

    def change(self, directory: Path, blob: Blob, at: int) -> None:
        data = bytearray(self._store(directory).read(str(blob)))
        data[at] ^= 1
        self._store(directory).replace(str(blob), data)

    def _store(self, directory: Path) -> Store:
        return MemoryStore(str(directory))

    @contextmanager
    def serving(self, directory: Path) -> Iterator[Serving]:
        yield Serving(Source("store", f"memory://{directory}"), lambda _: StoreTransport())
