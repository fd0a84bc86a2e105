"""Fetch versions at random from another host, for ever: ``python -m tests.service.transports.besieging``, orders on its input.

Says ``whole`` after each that has the bytes it ought to have; anything else it says is a fault.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from milepost.service.index import Chunks
from milepost.service.transports.base import Blob, Source
from milepost.service.transports.bulk import BulkTransport
from milepost.service.transports.host_cache import HostCache
from milepost.service.transports.moving import Moved, Mover

ROOT = Path(__file__).resolve().parents[3]


def besiege(
    address: str, cache: Path, limit_bytes: int, versions: Sequence[Mapping[Blob, Chunks]], seed: int
) -> subprocess.Popen[str]:
    """Start one."""
    told = [[[b.place, b.name, c.size_bytes, c.digests.hex(), c.chunk_bytes] for b, c in parts.items()] for parts in versions]
    orders = json.dumps([address, str(cache), limit_bytes, told, seed])
    command = [sys.executable, "-m", "tests.service.transports.besieging"]
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert reader.stdin is not None
    with reader.stdin as stdin:
        stdin.write(orders)
    return reader


def main() -> None:
    address, cache, limit_bytes, told, seed = json.load(sys.stdin)
    versions = [{Blob(p, n): Chunks(size, bytes.fromhex(d), at) for p, n, size, d, at in parts} for parts in told]
    by_chance = random.Random(seed)
    land = HostCache(cache, limit_bytes=limit_bytes, shares_alone=by_chance.random() < 0.7).land
    mover = Mover([BulkTransport()], land=land, links=by_chance.choice([1, 2]))
    held: list[Moved] = []
    while True:
        parts = by_chance.choice(versions)
        moved = mover.fetch([Source("bulk", address)], parts, limit_bytes=1 << 40)
        wrong = [str(blob) for blob, chunks in parts.items() if [*chunks.wrong(moved.views[blob])]]
        print(f"wrong: {wrong}" if wrong else "whole", flush=True)
        held = [*held, moved][-by_chance.choice([1, 2, 3]) :]


if __name__ == "__main__":
    main()
