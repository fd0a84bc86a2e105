"""Fetch as a reader on another host than the server's: ``python -m tests.service.transports.reading ADDRESS CACHE PARTS STOP``.

Says what it has as a line of JSON, and holds it until its input ends. After STOP chunks it says so and waits for a line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from milepost.encode.digest import xxh3
from milepost.service.index import Chunks
from milepost.service.transports.base import Blob, Source
from milepost.service.transports.bulk import BulkTransport
from milepost.service.transports.host_cache import HostCache
from milepost.service.transports.landing import Landing
from milepost.service.transports.moving import Mover
from milepost.service.transports.shm import ShmTransport

ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def reading(address: str, cache: Path, parts: Mapping[Blob, Chunks], stop: int = -1) -> Iterator[subprocess.Popen[str]]:
    """Fetch in a process of its own; what it has fetched is its first line."""
    told = json.dumps([[b.place, b.name, c.size_bytes, c.digests.hex(), c.chunk_bytes] for b, c in parts.items()])
    command = [sys.executable, "-m", "tests.service.transports.reading", address, str(cache), told, str(stop)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as reader:
        try:
            yield reader
        finally:
            reader.kill()


class Stopping(HostCache):
    """Stop after so many chunks."""

    def __init__(self, directory: str, left: int) -> None:
        super().__init__(directory)
        self.left = left

    def land(self, chunks: Chunks) -> Landing:
        landing = super().land(chunks)
        landed = landing.landed

        def stopping(number: int) -> None:
            landed(number)
            self.left -= 1
            if self.left == 0:
                print("stopped", flush=True)
                sys.stdin.readline()

        landing.landed = stopping  # type: ignore[method-assign]
        return landing


def read(address: str, cache: str, told: str, stop: str) -> None:
    parts = {
        Blob(place, name): Chunks(size, bytes.fromhex(digests), chunk_bytes)
        for place, name, size, digests, chunk_bytes in json.loads(told)
    }
    mover = Mover([ShmTransport("another host"), BulkTransport()], links=1, land=Stopping(cache, int(stop)).land)
    moved = mover.fetch([Source("shm", cache, "the server's"), Source("bulk", address)], parts, limit_bytes=1 << 40)
    has = {str(blob): xxh3(view) for blob, view in moved.views.items()}
    print(json.dumps({"has": has, "moved": sum(moved.bytes_by.values())}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    read(*sys.argv[1:])
