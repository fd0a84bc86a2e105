"""Make parts of versions, and tiers with versions in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from milepost.service.index import Chunks, Index, blob_of
from milepost.service.tiers.memory import MemoryTier
from milepost.service.transports.base import Blob


def part_of(tensors: dict[str, tuple[str, list[int], bytes]], *, ties: dict[str, str] | None = None, gap: int = 0) -> bytes:
    """Write a safetensors file by hand, also one that the library would not write: tied tensors, holes."""
    header: dict[str, Any] = {"__metadata__": {"step": "3"}}
    data = b""
    for name, (dtype, shape, raw) in tensors.items():
        data += b"\7" * gap
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    for name, other in (ties or {}).items():
        header[name] = header[other]
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data + b"\7" * gap


def adam_like(seed: int, count: int = 2, words: int = 1 << 20, rate: float = 0.018) -> list[bytes]:
    """Return a part of bfloat16 weights, and it after updates that each moved so many of them by one step of their bits."""
    rng = np.random.default_rng(seed)
    bits = (rng.standard_normal(words).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    parts = []
    for _ in range(count):
        parts.append(part_of({"w": ("BF16", [words], bits.tobytes())}))
        where = rng.random(words) < rate
        bits[where] += rng.choice(np.array([1, 0xFFFF], np.uint16), size=int(where.sum()))
    return parts


def tier_of(directory: Path, versions: list[dict[str, bytes]]) -> tuple[MemoryTier, list[Index]]:
    """Return a memory tier with these versions, whose parts are given by slot."""
    memory = MemoryTier(str(directory))
    memory.make()
    indexes = []
    for number, parts in enumerate(versions):
        index = Index("trainer", f"k{number}", number, {slot: Chunks.of(part) for slot, part in parts.items()})
        for slot, part in parts.items():
            memory.new_blob(Blob(index.place, blob_of(slot)), len(part))
            memory.write(Blob(index.place, blob_of(slot)), 0, part)
        memory.write_index(index)
        indexes.append(index)
    return memory, indexes
