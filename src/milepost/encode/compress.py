"""Decide by sample what shrinks, and pack it into zstd frames beside the caller.

Frames of a game, integers and flags shrink to a fraction, weights and moments do not shrink at all. To know which is which
takes microseconds; to compress a gigabyte for nothing takes a second that training could have had.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from milepost.encode.crew import Crew
from milepost.encode.digest import Buffer
from milepost.encode.frames import MOST_RAW_BYTES, most_stored
from milepost.encode.runs import Pool, runs
from milepost.errors import InternalError
from milepost.records import LeafSpec, is_piece, log_of

if TYPE_CHECKING:
    import zstandard

    from milepost.encode.plan import NewLeaf

RATIO = 1.25
"""How much a sample must shrink. A disk here takes 1 to 2 GB/s, and zstd packs what hardly shrinks at about 1: below a fifth less
to write the time spent is not won back, neither now nor at each resume."""
FLOAT_RATIO = 2.0
"""The same for floats. Weights of bfloat16 shrink by a quarter, and are left alone: that is the slowest to pack, and new at each
save. Zeros, masks and pictures kept as floats shrink far more."""
LEAST_LEAF_BYTES = 4096
LEAST_BLOB_BYTES = 1 << 20
"""What shrinks goes to a file of its own, and to make a file durable takes as long as to write about this much."""
TRIFLE = 8
"""What is less than one part in so many of a log goes with the rest of it: rewards with pictures, flags with observations."""
FRAME_BYTES = MOST_RAW_BYTES
"""How much is packed at once."""
LOOK_AGAIN = 16
"""For how many saves a decision stands."""
_SAMPLE_BYTES = 16 << 10
_PLACES = 4
_NICE = 10
_FLOATS = re.compile(r"[<>=|]?(b?float|complex|c?longdouble|[fc]\d)")

Cut: TypeAlias = Callable[[bytes, Iterator[memoryview]], Iterator[memoryview]]
"""Turn a header and the leaves after it into the pieces to store."""


def worth(spec: LeafSpec, data: Buffer) -> bool:
    """Return whether ``data`` is likely to shrink by `RATIO`, floats by `FLOAT_RATIO`, from a few samples of it.

    Floats are looked at in one place: either they are noise everywhere, or (zeros, one value, a mask) nearly everywhere not.
    """
    view = memoryview(data)
    if view.nbytes < LEAST_LEAF_BYTES:
        return False
    places, ratio = (1, FLOAT_RATIO) if _is_float(spec) else (_PLACES, RATIO)
    sample = _sample(view if view.format == "B" and view.ndim == 1 else view.cast("B"), places)
    return len(_local.packer(1).compress(sample)) * ratio <= len(sample)


def _is_float(spec: LeafSpec) -> bool:
    return _FLOATS.match(spec.dtype) is not None


def _sample(view: memoryview, places: int) -> bytes:
    if len(view) <= places * _SAMPLE_BYTES:
        return bytes(view[: places * _SAMPLE_BYTES])
    step = (len(view) - _SAMPLE_BYTES) / places
    starts = (int(step * (place + 0.5)) for place in range(places))
    return b"".join(view[start : start + _SAMPLE_BYTES] for start in starts)


class Decisions:
    """Remember what was worth it, by component, path and dtype: the pieces of one log are one. For one engine."""

    __slots__ = ("_known", "_saves")

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], bool] = {}
        self._saves = 0

    def next_save(self) -> None:
        """Forget everything now and then: a buffer of zeros fills up, and what is gone need not be remembered."""
        if self._saves % LOOK_AGAIN == 0:
            self._known.clear()
        self._saves += 1

    def shrink(self, leaf: NewLeaf) -> bool:
        """Return whether the leaf was found to be worth it last."""
        return self._known.get((leaf.component, log_of(leaf.path), leaf.spec.dtype), False)

    def worth(self, leaf: NewLeaf, data: Buffer | Callable[[], Buffer]) -> bool:
        """Return whether the leaf is to be compressed. What would have to be read first is judged by what it is."""
        if leaf.size_bytes < LEAST_LEAF_BYTES:
            return False
        key = (leaf.component, log_of(leaf.path), leaf.spec.dtype)
        known = self._known.get(key)
        # Moments begin as zeros and are noise one step later: a float that shrank is looked at again each time.
        if known is not None and not (known and _is_float(leaf.spec)):
            return known
        if callable(data):
            return not _is_float(leaf.spec) if known is None else known
        found = self._known[key] = worth(leaf.spec, data)
        return found


def split(
    leaves: Sequence[NewLeaf], data: Sequence[Buffer | Callable[[], Buffer]], decisions: Decisions
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (plain, compressed): the indices of the leaves of one save by how they are to be stored, each in rising order.

    Pieces of logs are in files of their own anyway, best in one for each log. What else shrinks must be worth a file together.
    """
    decisions.next_save()
    worth_it = [decisions.worth(leaf, data[index]) for index, leaf in enumerate(leaves)]
    logs: dict[tuple[str, str], list[int]] = {}
    others: list[int] = []
    for index, leaf in enumerate(leaves):
        log = (leaf.component, log_of(leaf.path).rpartition(".")[0])
        (logs.setdefault(log, []) if is_piece(leaf.path) else others).append(index)
    if sum(leaves[index].size_bytes for index in others if worth_it[index]) < LEAST_BLOB_BYTES:
        _decide(worth_it, others, False)
    for pieces in logs.values():
        whole = sum(leaves[index].size_bytes for index in pieces)
        shrinks = sum(leaves[index].size_bytes for index in pieces if worth_it[index])
        if whole >= TRIFLE * min(shrinks, whole - shrinks):
            _decide(worth_it, pieces, 2 * shrinks > whole)
    return _where(worth_it, False), _where(worth_it, True)


def _decide(worth_it: list[bool], indices: Sequence[int], decision: bool) -> None:
    for index in indices:
        worth_it[index] = decision


def _where(worth_it: Sequence[bool], wanted: bool) -> tuple[int, ...]:
    return tuple(index for index, worth in enumerate(worth_it) if worth is wanted)


class Compressor:
    """Pack raw bytes into zstd frames in ``threads`` threads that stand back behind training."""

    def __init__(self, level: int = 1, threads: int = 1) -> None:
        self._level = level
        self._threads = threads

    @contextmanager
    def packing(self, pool: Pool, frames: list[tuple[int, int]]) -> Iterator[Cut]:
        """Hold the threads while one blob is packed; (raw, stored) of each frame is appended to ``frames`` as it is handed out.

        Buffers come from ``pool``, and whoever has stored a piece gives it back. At most ``threads + 2`` frames exist at once,
        beside those that the caller holds.
        """

        def pack(raw: memoryview) -> tuple[int, memoryview]:
            stored = self._pack(raw, pool.take())
            pool.give(raw)
            return len(raw), stored

        crew = Crew(pack, threads=self._threads, ahead=self._threads, name="milepost-pack", nice=_NICE)
        with crew, crew:

            def cut(header: bytes, leaves: Iterator[memoryview]) -> Iterator[memoryview]:
                for raw_bytes, stored in crew.map(_frames(header, leaves, pool)):
                    frames.append((raw_bytes, len(stored)))
                    yield stored

            yield cut

    def _pack(self, raw: memoryview, into: memoryview) -> memoryview:
        reader = _local.packer(self._level).stream_reader(raw, size=len(raw))
        size = reader.readinto(into)
        if size >= len(into) or reader.readinto(into[size:]):
            raise InternalError("a frame is larger than a frame can be", kind="frame-size", raw_bytes=len(raw))
        return into[:size]


def _frames(header: bytes, leaves: Iterator[memoryview], pool: Pool) -> Iterator[memoryview]:
    """Yield the raw bytes of each frame. A large leaf begins one of its own: it is unpacked in place, and damaged alone."""
    for start in range(0, len(header), FRAME_BYTES):
        yield memoryview(header)[start : start + FRAME_BYTES]
    parts: list[memoryview] = []
    size = 0
    for leaf in leaves:
        if size and size + len(leaf) > FRAME_BYTES:
            yield _one(parts, pool)
            parts, size = [], 0
        whole = len(leaf) - len(leaf) % FRAME_BYTES
        for start in range(0, whole, FRAME_BYTES):
            yield leaf[start : start + FRAME_BYTES]
        if whole < len(leaf):
            parts.append(leaf[whole:])
            size += len(leaf) - whole
    if size:
        yield _one(parts, pool)


def _one(parts: Sequence[memoryview], pool: Pool) -> memoryview:
    """Return the parts as one view: as they lie, if they lie side by side, else gathered."""
    joined = list(runs(parts, FRAME_BYTES))
    if len(joined) == 1:
        return joined[0]
    into, done = pool.take(), 0
    for run in joined:
        into[done : done + len(run)] = run
        done += len(run)
    return into[:done]


def buffers() -> Pool:
    """Return an empty pool of buffers, each for one frame, raw or stored."""
    return Pool(most_stored(MOST_RAW_BYTES) + 1)


class _Local(threading.local):
    """Keep zstd's tables, which one thread may use at a time."""

    def __init__(self) -> None:
        self._packers: dict[int, zstandard.ZstdCompressor] = {}

    def packer(self, level: int) -> zstandard.ZstdCompressor:
        if level not in self._packers:
            import zstandard

            self._packers[level] = zstandard.ZstdCompressor(level=level)
        return self._packers[level]


_local = _Local()
