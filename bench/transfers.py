"""Move the same bytes by each way that weights go, beside a memcpy and a raw TCP loop.

The server's end of each socket is a process of its own, as a service is. Nothing is remembered between two transfers: each one
connects, and lands in memory that was not touched before, where it lands at all.
"""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from milepost.service import connect
from milepost.service.index import Chunks
from milepost.service.server.serving import serve
from milepost.service.settings import ServiceSettings
from milepost.service.transports.base import Blob, Source, Transport
from milepost.service.transports.bulk import BulkTransport
from milepost.service.transports.bulk_server import BulkServer
from milepost.service.transports.files import FilesTransport
from milepost.service.transports.folder import Folder
from milepost.service.transports.host import host_id
from milepost.service.transports.host_cache import HostCache
from milepost.service.transports.landing import new_memory
from milepost.service.transports.moving import Mover
from milepost.service.transports.shm import ShmTransport

BLOB = Blob("000000000001-bench", "weights.safetensors")
RAW, COPY = "raw TCP loop", "memcpy"
SHM, FILES, BULK, SHARED = "shm", "files", "bulk", "bulk, shared by a host's readers"

_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Transfers:
    """Be some bytes in memory of this host, and servers of them. Each method moves all of them once and returns seconds."""

    directory: str
    chunks: Chunks
    raw_port: int
    bulk: str

    def memcpy(self) -> float:
        """Copy them into new memory: no way is faster that leaves the reader a copy of its own."""
        there = Folder(self.directory).map(BLOB)
        started = time.perf_counter()
        np.copyto(np.frombuffer(new_memory(len(there)), np.uint8), np.frombuffer(there, np.uint8))
        return time.perf_counter() - started

    def raw(self) -> float:
        """Receive them from a socket into new memory, and do nothing else: no request, no digest."""
        started = time.perf_counter()
        with socket.create_connection(("127.0.0.1", self.raw_port)) as server:
            into = new_memory(self.chunks.size_bytes)
            while into:
                into = into[server.recv_into(into[:_AT_ONCE], 0, socket.MSG_WAITALL) :]
        return time.perf_counter() - started

    def shm(self) -> float:
        """Map them."""
        return self._fetch([ShmTransport()], Source("shm", self.directory, host_id()))

    def files(self) -> float:
        """Read and check the file."""
        return self._fetch([FilesTransport()], Source("files", self.directory))

    def over_bulk(self) -> float:
        """Fetch and check them over the bulk port."""
        return self._fetch([BulkTransport()], Source("bulk", self.bulk))

    def shared(self) -> float:
        """Fetch them over the bulk port to where all readers of this host share them."""
        cache = HostCache(f"{self.directory}-cache-{time.monotonic_ns()}")
        try:
            return self._fetch([BulkTransport()], Source("bulk", self.bulk), cache)
        finally:
            cache.close()
            for name in os.listdir(cache.directory):
                os.unlink(os.path.join(cache.directory, name))
            os.rmdir(cache.directory)

    def _fetch(self, transports: list[Transport], source: Source, cache: HostCache | None = None) -> float:
        mover = Mover(transports, land=None if cache is None else cache.land)
        started = time.perf_counter()
        moved = mover.fetch([source], {BLOB: self.chunks}, limit_bytes=self.chunks.size_bytes)
        took = time.perf_counter() - started
        assert len(moved.views[BLOB]) == self.chunks.size_bytes
        return took


@contextmanager
def transfers(directory: Path, size_bytes: int, seed: int = 0) -> Iterator[Transfers]:
    """Put random bytes into a directory of a memory file system, and serve them."""
    memory = Folder(str(directory)).map_new(BLOB, size_bytes)
    memory[:] = np.random.default_rng(seed).bytes(size_bytes)
    chunks = Chunks.of(memory)
    with ExitStack() as stack:
        raw = stack.enter_context(_server("raw", directory))
        bulk = stack.enter_context(_server("bulk", directory))
        yield Transfers(str(directory), chunks, int(raw), bulk)


class Service:
    """Be a real service with one version of so many bytes, and its clients: what a trainer and a sampler see. Returns seconds."""

    def __init__(self, root: str, weights: dict[str, Any]) -> None:
        self._root, self._weights = root, weights
        self._step = 0
        self.commit("auto")

    def commit(self, transport: str) -> float:
        """Commit other weights, so that nothing of an earlier commit serves; until they are live."""
        self._step += 1
        for array in self._weights.values():
            array[:1] = self._step
        with connect(
            self._root, component="trainer", role="trainer", step=self._step - 1 or None, transport=transport, incremental=False
        ) as trainer:
            started = time.perf_counter()
            trainer.commit(self._step, self._weights)
            return time.perf_counter() - started

    def fetch(self, transport: str) -> float:
        """Fetch the newest version as a sampler that has none; control is in it, the connection is not."""
        with connect(self._root, component="sampler", role="sampler", transport=transport, incremental=False) as sampler:
            started = time.perf_counter()
            weights = sampler.fetch()
            took = time.perf_counter() - started
            assert weights is not None
            weights.release()
            return took


@contextmanager
def service(root: Path, size_bytes: int, arrays: int = 16, seed: int = 0) -> Iterator[Service]:
    """Serve a new run below ``root``, and commit weights of float32 to it."""
    generator = np.random.default_rng(seed)
    weights = {f"layer.{n}": generator.random(size_bytes // arrays // 4, dtype=np.float32) for n in range(arrays)}
    with _server("serve", root):
        yield Service(str(root), weights)


@contextmanager
def _server(kind: str, directory: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "bench.transfers", kind, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def _serve(root: str) -> None:
    serve(root, ServiceSettings(), ready=lambda _: print("ready", flush=True))


def _serve_raw(directory: str) -> None:
    with open(Folder(directory).path(BLOB), "rb") as file:
        memory = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            client, _ = listener.accept()
            with client:
                client.sendall(memory)


def _serve_bulk(directory: str) -> None:
    with BulkServer(Folder(directory)) as server:
        print(server.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    {"raw": _serve_raw, "bulk": _serve_bulk, "serve": _serve}[sys.argv[1]](sys.argv[2])
