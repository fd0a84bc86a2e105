"""Tell one update of bfloat16 weights by what changed, beside what others send: at four rates of change, and of float32.

An update is simulated: an Adam step is about the learning rate for every weight, either way, so a bfloat16 copy of the weights
changes where the step reaches the next number, and that is rare at the rates of fine-tuning.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import zstandard
from numpy.typing import NDArray

from bench.measure import Contender, Outcome, Setting, interleave
from milepost.service.delta.applying import apply
from milepost.service.delta.encoding import encode
from milepost.service.delta.records import Tensor

FULL, XOR, XOR_PLANES, INDEX = "full bytes", "XOR + zstd", "XOR planes + zstd", "index + value + zstd"
CODED, ON_CORE, APPLIED = "encode", "encode, time on a core", "apply"
RATES = {"": 6e-7, ", 4.6%": 1.85e-6, ", 12%": 6e-6, ", 52%": 5.5e-5}
"""Learning rates, by how much of bfloat16 weights of this spread changes at them; the goals are those at 1.8%."""
FLOAT32_RATE = 1e-5

Array: TypeAlias = NDArray[Any]
Encoder: TypeAlias = Callable[[Array, Array], Sequence[bytes]]


@dataclass(frozen=True, slots=True)
class _Update:
    """Hold the bits of some weights before and after an update."""

    name: str
    dtype: str
    old: Array
    new: Array

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        old, new = (Tensor(self.dtype, bits.shape, bits.view(np.uint8).data) for bits in (self.old, self.new))
        return {"w": old}, {"w": new}

    def ours(self) -> Mapping[str, float]:
        old, new = self.tensors()
        started, used = time.perf_counter(), time.thread_time()
        delta = encode(old, new)
        encoded, used = time.perf_counter(), time.thread_time() - used
        made = apply(delta, old)
        applied = time.perf_counter()
        if not np.array_equal(np.frombuffer(made["w"].data, np.uint8), self.new.view(np.uint8)):
            raise ArithmeticError(f"other bits: {self.name}")
        return self._figures(delta.size_bytes, {CODED: encoded - started, ON_CORE: used, APPLIED: applied - encoded})

    def theirs(self, encoder: Encoder) -> Mapping[str, float]:
        started = time.perf_counter()
        size = sum(len(part) for part in encoder(self.old, self.new))
        return self._figures(size, {CODED: time.perf_counter() - started})

    def _figures(self, size: int, seconds: Mapping[str, float]) -> Mapping[str, float]:
        gigabytes = self.new.nbytes / 1e9
        return {"bytes": float(size), **{what: one / gigabytes for what, one in seconds.items()}}


def measure(setting: Setting) -> Outcome:
    """Encode an update in each way; each of ours is applied, and what comes out compared."""
    updates = _updates(setting.scaled(1 << 23, 1 << 21))
    peers: Mapping[str, Encoder] = {XOR: _xor, XOR_PLANES: _xor_planes, INDEX: _index}
    contenders = [Contender(FULL, "floor", partial(updates[0].theirs, _full))]
    for update in updates:
        contenders += [
            Contender("milepost" + update.name, "milepost", update.ours),
            *(Contender(name + update.name, "peer", partial(update.theirs, peer)) for name, peer in peers.items()),
        ]
    units: Mapping[str, Any] = {"bytes": "bytes", CODED: "s/GB", ON_CORE: "s/GB", APPLIED: "s/GB"}
    rows = interleave(contenders, setting, rounds=5, budget_s=setting.scaled(20, 5), units=units, settle=gc.collect)
    words = f"{updates[0].new.nbytes / 1e6:.0f} MB of bf16, and half as many words of fp32; 1.8% of words changed, or as named"
    return Outcome("delta", words, rows, tuple(_notes(updates)))


def _updates(count: int) -> list[_Update]:
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 0.02, count).astype(np.float32)
    step = np.clip(rng.normal(0, 1, count), -1, 1).astype(np.float32)
    old = _bfloat16(weights)
    updates = [_Update(name, "bfloat16", old, _bfloat16(weights + np.float32(rate) * step)) for name, rate in RATES.items()]
    half = weights[: count // 2]
    moved = half + np.float32(FLOAT32_RATE) * step[: count // 2]
    return [*updates, _Update(", fp32", "float32", half.view(np.uint32), moved.view(np.uint32))]


def _bfloat16(weights: NDArray[np.float32]) -> Array:
    """Round to the nearest bfloat16, ties to even, as a cast does; there are no NaNs here."""
    bits = weights.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _notes(updates: Sequence[_Update]) -> list[str]:
    changed = ", ".join(f"{update.name.strip(', ') or '1.8%'}: {np.mean(update.old != update.new):.2%}" for update in updates)
    return [f"words that changed: {changed}", "milepost's encode hashes both versions; the others' hash nothing"]


def _pack(plane: Array) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(np.ascontiguousarray(plane).data)


def _full(_: Array, new: Array) -> list[bytes]:
    return [new.tobytes()]


def _xor(old: Array, new: Array) -> list[bytes]:
    return [_pack(old ^ new)]


def _xor_planes(old: Array, new: Array) -> list[bytes]:
    table = (old ^ new).view(np.uint8).reshape(len(new), new.itemsize)
    return [_pack(table[:, column]) for column in range(new.itemsize)]


def _index(old: Array, new: Array) -> list[bytes]:
    where = np.flatnonzero(old != new)
    gaps = np.diff(where, prepend=0).astype(np.int32)
    return [_pack(gaps), _pack(new[where])]
