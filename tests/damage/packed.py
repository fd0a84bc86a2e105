"""Write a generation whose replay is packed: a log of rows in pieces, beside leaves that are stored as they are."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from milepost.encode.blob import Item, layout, write_blob
from milepost.encode.compress import Compressor
from milepost.encode.digest import xxh3
from milepost.publish.layout import blob
from milepost.records import BlobRecord, ComponentRecord, LeafRecord, Manifest
from tests.cli.runs import Run

ROWS = 200
ROW_BYTES = 24
FRAME_BYTES = ROWS * ROW_BYTES


def pieces(count: int) -> dict[str, bytes]:
    """Return pieces of a log: a little noise, then none, so that their frames hold literal and packed bytes, and are short."""
    noise = random.Random(0)
    return {
        f"replay.observations[{n * ROWS}:{(n + 1) * ROWS}]": noise.randbytes(40) + bytes(FRAME_BYTES - 40) for n in range(count)
    }


def save_packed(root: Path, count: int = 3) -> Manifest:
    """Publish a generation with ``count`` pieces, each in a frame of its own, then a small leaf in one with another's."""
    run = Run(root)
    weights = random.Random(1).randbytes(5000)
    logs = pieces(count)
    small = {"sampler/order": b"abcd" * 10, "counters/seen": b"efgh" * 10}
    leaves = {"policy/w": weights} | logs | small
    # Small frames, so that a few kilobytes have several.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("milepost.encode.compress.FRAME_BYTES", FRAME_BYTES)
        plain, _ = _blob(run, 0, {"policy/w": weights}, None)
        packed, spans = _blob(run, 1, logs | small, Compressor())
    spans = [(4096, 4096 + 5000), *spans]
    records = [
        LeafRecord(path, "numpy", "uint8", (len(data),), int(index > 0), *span, xxh3(data))
        for index, ((path, data), span) in enumerate(zip(leaves.items(), spans, strict=True))
    ]
    names = ("policy", "replay", "sampler", "counters")
    by_name = {name: tuple(one for one in records if one.path.startswith(name)) for name in names}
    components = tuple(
        ComponentRecord(name, ["list", [["array", index] for index in range(len(held))]], held) for name, held in by_name.items()
    )
    return run.save(1, blobs=(plain, packed), components=components)


def _blob(
    run: Run, part: int, leaves: dict[str, bytes], packer: Compressor | None
) -> tuple[BlobRecord, tuple[tuple[int, int], ...]]:
    rows = "replay.0-600" if packer else ""
    name = blob(run.chain.next, run.chain.term, run.clock.nonce(), part, rows, packer is not None)
    placed = layout([Item(path, "uint8", (len(data),), len(data)) for path, data in leaves.items()], {})
    with run.store.open_blob(name) as sink:
        written = write_blob(sink, placed, list(leaves.values()), compress=packer)
        sink.commit()
    return BlobRecord(name, written.size_bytes, written.digest, written.frames), placed.offsets
