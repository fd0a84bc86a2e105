"""Copy live state into the arena at a safe point: the part of a save that training waits for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from milepost.encode.blob import Item, alignment
from milepost.encode.digest import matches
from milepost.engine.arena import Arena, pages
from milepost.records import LeafSpec, Node, log_of
from milepost.state.late import Arrived, nothing_late, start_copies
from milepost.state.log import Have, LogMark
from milepost.state.tree import Flat, KeptLeaf, LiveLeaf, flatten, no_collection

log = logging.getLogger("milepost")

LAST = "rng"
"""The component that is captured and restored last: reading or setting other state may draw random numbers."""
PIECES_BYTES = 256 << 20
"""How much of logs is staged at once beside all else, and the most that one file of theirs holds."""
KEPT = -1
_NOTHING = memoryview(b"")


class StagedLeaf(NamedTuple):
    """Say what one leaf is, and where the private copy of its bytes is. Holds no live object."""

    path: str
    spec: LeafSpec
    size_bytes: int
    wave: int
    """Its bytes are in the arena while this wave is; `KEPT`: the base has them, and nothing was copied."""
    start: int
    """Where in the arena they begin."""
    digest: str = ""
    """That of a kept leaf."""
    piece: bool = False
    """It is a piece of a log."""


@dataclass(frozen=True, slots=True)
class StagedComponent:
    """Hold a private copy of one component: its tree, and where its leaves are."""

    name: str
    tree: Node
    leaves: tuple[StagedLeaf, ...]


class Log(NamedTuple):
    """Tie a log of the live state to the component that it is in."""

    component: str
    mark: LogMark
    rows_added: int
    """How many rows are new since what was saved last; all of them, where nothing is relied on."""


class Staged:
    """Hold the whole state as it was at one safe point, independent of whatever training does next (B9).

    What is larger than the arena comes in waves: each is copied once the writer has asked for it, by the thread that trains,
    which has to wait until the last one is there. ``bring`` puts a wave in the place of the one before.
    """

    def __init__(
        self,
        components: Sequence[StagedComponent] = (),
        memory: memoryview = _NOTHING,
        *,
        waves: int = 1,
        wave_bytes: int = 0,
        bring: Callable[[int], None] = lambda _: None,
        logs: Sequence[Log] = (),
    ) -> None:
        self.components = tuple(components)
        self.memory = memory
        self.logs = tuple(logs)
        self.bring = bring
        self.can_bring: Callable[[], bool] = lambda: True
        self.wave_count = waves
        self.wave_bytes = wave_bytes
        """How much the largest wave takes in the arena."""
        self.arrived: Arrived = nothing_late
        """Waits for what a device still copies of the wave. Who reads calls it first: an earlier save's bytes may lie there."""
        self._at = 0

    @property
    def size_bytes(self) -> int:
        """Return how many bytes of leaves are staged, all waves together."""
        return sum(leaf.size_bytes for component in self.components for leaf in component.leaves if leaf.wave != KEPT)

    def waves(self) -> Iterator[int]:
        """Have one wave after the other brought into the arena; the bytes of a wave are there until the next is asked for."""
        for wave in range(self.wave_count):
            if self._at != wave:
                self.bring(wave)
                self._at = wave
            self.arrived()
            yield wave

    @property
    def repeatable(self) -> bool:
        """Return whether all of it can be written once more: not if a wave has left the arena, and nobody can bring it again."""
        return self.wave_count == 1 or self.can_bring()

    def data(self, leaf: StagedLeaf) -> memoryview:
        """Return the bytes of a leaf of the wave that is in the arena."""
        return self.memory[leaf.start : leaf.start + leaf.size_bytes]


def in_order(state: Mapping[str, object]) -> list[str]:
    """Return the component names in the order of capture and restore: as given, generators of random numbers last."""
    return sorted(state, key=is_last)


def is_last(name: str) -> bool:
    """Return whether a component holds generators of random numbers."""
    return name.rpartition("/")[2] == LAST


def capture(
    state: Mapping[str, object],
    arena: Arena,
    *,
    allow_pickle: bool = False,
    have: Callable[[str], Have | None] = lambda _: None,
    staging_bytes: int | None = None,
) -> Staged:
    """Copy every component's leaves into ``arena``, which must not be in use. Raises `UsageError` for an object nobody knows.

    ``have(component)`` says of pieces of logs which of them the base has: these are not copied. Where the rest is larger than
    ``staging_bytes`` the first wave is copied, and the others when they are asked for.
    """
    with no_collection():
        flat: dict[str, Flat] = {}
        logs: list[Log] = []
        for name in in_order(state):
            flat[name] = found = flatten(state[name], name, allow_pickle=allow_pickle, have=have(name), matches=matches)
            logs += [Log(name, mark, _added(mark)) for mark in found.logs]
        return stage(flat, arena, staging_bytes=staging_bytes, logs=logs)


def _added(mark: LogMark) -> int:
    known = mark.log.known
    return int(mark.node[2]) - (known.count if known else 0)


class Copied(NamedTuple):
    """Name one leaf to copy, and where to."""

    leaf: LiveLeaf
    start: int


class Room(NamedTuple):
    """Say how leaves lie in an arena: in the order in which they will lie in files, so that they are written as they lie."""

    waves: list[list[Copied]]
    places: dict[str, dict[int, tuple[int, int]]]
    """By component and index of a leaf, its wave and start."""
    size_bytes: int
    """What the largest wave takes."""
    dense_bytes: int
    """What all that is no piece of a log takes."""
    logs: bool
    """There are logs in it, whatever of them is new."""


def copy_each(leaves: Sequence[Copied], memory: memoryview) -> Arrived:
    """Copy live leaves to where they belong; return what waits for those that a device still copies."""
    return start_copies((leaf, memory[start : start + leaf.size_bytes]) for leaf, start in leaves)


def stage(
    flat: Mapping[str, Flat],
    arena: Arena,
    *,
    staging_bytes: int | None = None,
    logs: Sequence[Log] = (),
    copy: Callable[[Sequence[Copied], memoryview], Arrived] = copy_each,
) -> Staged:
    """Copy leaves into ``arena``; the first wave of them, if they do not fit into ``staging_bytes``."""
    room = lay_out(flat, staging_bytes)
    arena.reserve(capacity(room, staging_bytes))

    arrived = nothing_late

    def bring(wave: int) -> None:
        nonlocal arrived
        arrived = copy(room.waves[wave], memory)

    memory = arena.memory
    bring(0)
    if len(room.waves) == 1:
        room.waves.clear()  # no live object is held on to while it is written
    components = [StagedComponent(name, found.node, _placed(found, room.places[name])) for name, found in flat.items()]
    staged = Staged(components, memory, waves=len(room.waves) or 1, wave_bytes=room.size_bytes, bring=bring, logs=logs)
    staged.arrived = lambda: arrived()
    return staged


def capacity(room: Room, staging_bytes: int | None) -> int:
    """Return how much to reserve at once, so that a steady state asks for memory once: some more than it takes now."""
    if staging_bytes is not None:
        return max(room.size_bytes, min(staging_bytes, room.size_bytes + room.size_bytes // 8))
    # How many rows are added differs from save to save. Only what is written to is real.
    pieces_bytes = PIECES_BYTES if room.logs else 0
    return max(room.size_bytes, room.dense_bytes + room.dense_bytes // 8 + pieces_bytes)


def lay_out(flat: Mapping[str, Flat], staging_bytes: int | None) -> Room:
    """Say where each live leaf goes: what is no piece first, in the order of `milepost.encode.blob.order`, then log by log."""
    dense: dict[int, list[tuple[str, int, LiveLeaf]]] = {16: [], 8: [], 4: [], 2: [], 1: []}
    pieces: dict[str, list[tuple[str, int, LiveLeaf]]] = {}
    elements: dict[str, int] = {}
    dense_bytes = 0
    for name, found in flat.items():
        for index, leaf in enumerate(found.leaves):
            if isinstance(leaf, KeptLeaf):
                continue
            if leaf.piece:
                pieces.setdefault(log_path(leaf.path), []).append((name, index, leaf))
                continue
            dense_bytes += leaf.size_bytes
            dense[_alignment(leaf, elements)].append((name, index, leaf))
    order = [each for part in dense.values() for each in part]
    filling = _Filling(pages(dense_bytes) + PIECES_BYTES if staging_bytes is None else staging_bytes, flat)
    filling.add(order)
    for each in pieces.values():
        for file in in_files([leaf.size_bytes for _, _, leaf in each], PIECES_BYTES):
            filling.begin_file()
            filling.add(sorted(each[file.start : file.stop], key=lambda found: -_alignment(found[2], elements)))
    logs = any(found.logs for found in flat.values())
    return Room(filling.waves, filling.places, filling.largest, pages(dense_bytes), logs)


def _alignment(leaf: LiveLeaf, elements: dict[str, int]) -> int:
    if not leaf.size_bytes:
        return 16
    dtype = leaf.spec.dtype
    if dtype not in elements:
        elements[dtype] = alignment(Item(leaf.path, dtype, leaf.spec.shape, leaf.size_bytes))
    return elements[dtype]


def log_path(path: str) -> str:
    """Return the path of the log which a leaf is a piece of a field of: ``replay`` of ``replay.observations[0:8]``."""
    return log_of(path).rpartition(".")[0]


def in_files(sizes: Sequence[int], most_bytes: int) -> Iterator[range]:
    """Cut leaves in their order into files of at most ``most_bytes``; one leaf may be larger."""
    start = size = 0
    for index, size_bytes in enumerate(sizes):
        if index > start and size + size_bytes > most_bytes:
            yield range(start, index)
            start, size = index, 0
        size += size_bytes
    if start < len(sizes):
        yield range(start, len(sizes))


class _Filling:
    """Put leaves one behind the other, and begin another wave where one is full."""

    def __init__(self, most_bytes: int, flat: Mapping[str, Flat]) -> None:
        self.waves: list[list[Copied]] = [[]]
        self.places: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in flat}
        self.largest = 0
        self._most_bytes = most_bytes
        self._end = 0

    def begin_file(self) -> None:
        self._end = pages(self._end)

    def add(self, leaves: Sequence[tuple[str, int, LiveLeaf]]) -> None:
        most, end, wave, copied = self._most_bytes, self._end, len(self.waves) - 1, self.waves[-1]
        for name, index, leaf in leaves:
            if end + leaf.size_bytes > most and copied:
                self.waves.append(copied := [])
                self.largest = max(self.largest, end)
                wave, end = wave + 1, 0
            copied.append(Copied(leaf, end))
            self.places[name][index] = (wave, end)
            end += leaf.size_bytes
        self._end, self.largest = end, max(self.largest, end)


def _placed(found: Flat, places: Mapping[int, tuple[int, int]]) -> tuple[StagedLeaf, ...]:
    made: list[Any] = []
    for index, leaf in enumerate(found.leaves):
        if isinstance(leaf, KeptLeaf):
            made.append(StagedLeaf(leaf.path, leaf.spec, leaf.size_bytes, KEPT, 0, leaf.digest, True))
        else:
            made.append(StagedLeaf(leaf.path, leaf.spec, leaf.size_bytes, *places[index], "", leaf.piece))
    return tuple(made)
