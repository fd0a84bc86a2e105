"""Rewrite small and half-dead pieces of logs as larger ones: which, and of what bytes. Reads and writes nothing itself.

Every save adds a piece. Left alone, a generation would come to stand on thousands of files, and a log with touched rows on
ever more bytes that nobody reads. How much is rewritten is bounded: a row goes into a merged piece at least half as large
again as the one it came from (or one that takes in at least half its weight in pieces too small to matter), until that is no
small one any more; and a piece is rewritten for its dead bytes, or for the pieces within it, only once there are enough.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from milepost.records import LeafSpec, Node
from milepost.state.items import joined, raw_spec
from milepost.state.log import TAGS, log_nodes
from milepost.state.pieces import PIECE_BYTES, Ranges, Run, Span, still_visible, visible
from milepost.state.stored import read_index

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Limits:
    """Say what is small, and what is many."""

    piece_bytes: int = PIECE_BYTES
    small_bytes: int = 1 << 20
    """A piece smaller than this, or than one of `most_pieces` parts of the window, is to grow."""
    floor_bytes: int = 64 << 10
    """Smaller ones count as this large: to rewrite them costs less than to keep the books."""
    most_pieces: int = 128
    fan: int = 8
    """So many small ones become one."""
    crowd: int = 64
    """A large piece with more runs than this between its first and last visible row is rewritten with what lies over it."""


DEFAULT = Limits()


class Described(Protocol):
    """Be a leaf of a component: live, kept, staged, planned or recorded."""

    @property
    def path(self) -> str:
        """Return what people call it."""

    @property
    def spec(self) -> LeafSpec:
        """Return what it is."""

    @property
    def size_bytes(self) -> int:
        """Return how many bytes it has."""


@dataclass(frozen=True, slots=True)
class Part:
    """Name bytes ``[start, stop)`` of a leaf that was there before."""

    leaf: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class MergedLeaf:
    """Describe a leaf of a merged piece: its bytes are those of ``parts``, one after the other."""

    path: str
    spec: LeafSpec
    size_bytes: int
    parts: tuple[Part | bytes, ...]

    def assemble(self, read: Callable[[int], Buffer]) -> bytearray:
        """Return its bytes; ``read(i)`` gives those of leaf ``i`` as it was before, and is asked once for each."""
        made = bytearray(self.size_bytes)
        taken: defaultdict[int, list[tuple[int, Part]]] = defaultdict(list)
        at = 0
        for part in self.parts:
            if isinstance(part, bytes):
                made[at : at + len(part)] = part
                at += len(part)
            else:
                taken[part.leaf].append((at, part))
                at += part.stop - part.start
        # Leaf by leaf, and not part by part: a large piece under many small ones has a part between any two of them, and would
        # be read from the disk once for each.
        for leaf, places in taken.items():
            data = memoryview(read(leaf))
            for at, part in places:
                made[at : at + part.stop - part.start] = data[part.start : part.stop]
        return made


@dataclass(frozen=True, slots=True)
class Merged:
    """Hold a component's tree after merging, and its leaves: an index among those before, or a new one."""

    tree: Node
    leaves: tuple[int | MergedLeaf, ...]


def merge(tree: Node, leaves: Sequence[Described], read: Callable[[int], Buffer], limits: Limits = DEFAULT) -> Merged | None:
    """Return a component with its logs' pieces merged; None if there is nothing to do, which takes no reading.

    ``tree`` is one that `milepost.state.tree.flatten` or this function made, and stays as it is. ``read(i)`` returns the bytes
    of leaf ``i``; it is asked only for the index leaves of queues: the rest is left to `MergedLeaf.assemble`.
    """
    rewritten: dict[int, _Log] = {}
    for node in log_nodes(tree):
        spans, at = _pieces(node)
        if at and at[0][0] in rewritten:
            continue  # one log at two places
        ranges = merges(spans, [sum(leaves[index].size_bytes for index in piece) for piece in at], *_window(node), limits)
        if ranges:
            rewritten[at[0][0]] = _rewrite(node, spans, at, ranges, leaves, read)
    if not rewritten:
        return None
    gone = frozenset(index for log in rewritten.values() for index in log.gone)
    order: list[int | MergedLeaf] = [index for index in range(len(leaves)) if index not in gone]
    renumbered = {old: new for new, old in enumerate(order) if isinstance(old, int)}
    for log in rewritten.values():
        log.first_new = len(order)
        order.extend(log.made)
    return Merged(_rebuilt(tree, renumbered, rewritten), tuple(order))


def merges(spans: Sequence[Span], sizes: Sequence[int], start: int, stop: int, limits: Limits = DEFAULT) -> list[Span]:
    """Return the ranges of rows to rewrite, each as one piece of at most ``piece_bytes`` (or of one run). They do not overlap."""
    runs = visible(spans, start, stop)
    weighed = [_Weighed(run, _bytes_of(run, spans, sizes)) for run in runs]
    window_bytes = sum(each.size for each in weighed)
    small = min(max(limits.small_bytes, window_bytes // limits.most_pieces), limits.piece_bytes // 2)
    worn = Ranges(_worn(weighed, sizes, window_bytes, small, limits))
    found: list[Span] = []
    inside = _within(weighed, worn)
    for group in inside:
        found.extend(_packed(group, limits.piece_bytes))
    covered = {id(each) for group in inside for each in group}
    for group in _groups(weighed, lambda each: sizes[each.run.piece] < small and id(each) not in covered):
        found.extend(_grown(group, limits))
    return sorted(found)


@dataclass(frozen=True, slots=True)
class _Weighed:
    run: Run
    size: int


def _bytes_of(run: Run, spans: Sequence[Span], sizes: Sequence[int]) -> int:
    first, last = spans[run.piece]
    return sizes[run.piece] * (run.stop - run.start) // (last - first)


def _worn(weighed: Sequence[_Weighed], sizes: Sequence[int], window_bytes: int, small: int, limits: Limits) -> Iterator[Span]:
    """Find pieces that are mostly dead, where more than half of all is, and large ones that are full of others."""
    live: defaultdict[int, int] = defaultdict(int)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for place, each in enumerate(weighed):
        live[each.run.piece] += each.size
        first.setdefault(each.run.piece, place)
        last[each.run.piece] = place
    wasteful = sum(sizes[piece] for piece in live) > 2 * window_bytes + limits.small_bytes
    for piece, size in live.items():
        crowded = sizes[piece] >= small and last[piece] - first[piece] >= limits.crowd
        if crowded or (wasteful and 2 * size < sizes[piece]):
            yield weighed[first[piece]].run.start, weighed[last[piece]].run.stop


def _within(weighed: Sequence[_Weighed], ranges: Ranges) -> list[list[_Weighed]]:
    groups, at = [], 0
    for start, stop in ranges:
        group = []
        while at < len(weighed) and weighed[at].run.start < stop:
            if weighed[at].run.start >= start:
                group.append(weighed[at])
            at += 1
        groups.append(group)
    return groups


def _groups(weighed: Iterable[_Weighed], wanted: Callable[[_Weighed], bool]) -> Iterator[list[_Weighed]]:
    group: list[_Weighed] = []
    for each in weighed:
        if wanted(each):
            group.append(each)
        elif group:
            yield group
            group = []
    if group:
        yield group


def _span(group: Sequence[_Weighed]) -> Span:
    return group[0].run.start, group[-1].run.stop


def _cut(group: Sequence[_Weighed], most: int) -> Iterator[list[_Weighed]]:
    """Cut into parts of at most ``most`` bytes, or of one run."""
    part: list[_Weighed] = []
    size = 0
    for each in group:
        if part and size + each.size > most:
            yield part
            part, size = [], 0
        part.append(each)
        size += each.size
    if part:
        yield part


def _packed(group: Sequence[_Weighed], most: int) -> Iterator[Span]:
    for part in _cut(group, most):
        yield _span(part)


def _grown(group: Sequence[_Weighed], limits: Limits) -> Iterator[Span]:
    """Find runs of small pieces to become one: enough of them, and none of them half of the whole.

    Where one is, what lies before and after it is looked at for itself: it waits until there is as much again beside it.
    """
    parts = list(_cut(group, limits.piece_bytes))
    waiting = [(part, part is not parts[-1]) for part in parts]
    while waiting:
        part, full = waiting.pop()
        if len(part) < (3 if full else limits.fan):
            continue
        weights = [max(each.size, limits.floor_bytes) for each in part]
        heaviest = max(range(len(part)), key=weights.__getitem__)
        if 2 * weights[heaviest] <= sum(weights):
            yield _span(part)
        else:
            waiting += [(part[:heaviest], False), (part[heaviest + 1 :], False)]


def _pieces(node: Node) -> tuple[list[Span], list[list[int]]]:
    """Return the ranges of a log's pieces, and for each the indices of its leaves; arrays of one memory count once."""
    spans = [(start, stop) for start, stop in node[3]]
    if node[0] == "items":
        return spans, node[4]
    groups = dict.fromkeys(tuple(at) for _, _, _, _, at in node[4])
    return spans, [list(piece) for piece in zip(*groups, strict=True)]


def _window(node: Node) -> Span:
    return (node[1] if node[0] == "items" else max(0, node[2] - node[1])), node[2]


@dataclass(slots=True)
class _Log:
    """Hold one rewritten log: which pieces stay, which leaves go, and what is new, piece by piece."""

    stays: list[int]
    gone: list[int]
    ranges: list[Span]
    made: list[MergedLeaf]
    first_new: int = 0


def _rewrite(
    node: Node,
    spans: Sequence[Span],
    at: Sequence[Sequence[int]],
    ranges: list[Span],
    leaves: Sequence[Described],
    read: Callable[[int], Buffer],
) -> _Log:
    runs = visible(spans, *_window(node))
    made: list[MergedLeaf] = []
    for start, stop in ranges:
        inside = [run for run in runs if start <= run.start and run.stop <= stop]
        make = _merged_items if node[0] == "items" else _merged_rows
        made.extend(make((start, stop), inside, spans, at, leaves, read))
    seen = still_visible(spans, ranges, *_window(node))
    stays = [piece for piece in range(len(spans)) if piece in seen]
    gone = [index for piece in range(len(spans)) if piece not in seen for index in at[piece]]
    return _Log(stays, gone, ranges, made)


def _merged_rows(
    span: Span,
    runs: Sequence[Run],
    spans: Sequence[Span],
    at: Sequence[Sequence[int]],
    leaves: Sequence[Described],
    _: Callable[[int], Buffer],
) -> Iterator[MergedLeaf]:
    rows = span[1] - span[0]
    for place, old in enumerate(at[0]):
        spec = leaves[old].spec
        row_bytes = leaves[old].size_bytes // spec.shape[0]
        parts = tuple(
            Part(at[run.piece][place], (run.start - first) * row_bytes, (run.stop - first) * row_bytes)
            for run in runs
            for first in (spans[run.piece][0],)
        )
        whole = LeafSpec(spec.kind, spec.dtype, (rows, *spec.shape[1:]))
        yield MergedLeaf(_renamed(leaves[old].path, span), whole, rows * row_bytes, parts)


def _merged_items(
    span: Span,
    runs: Sequence[Run],
    spans: Sequence[Span],
    at: Sequence[Sequence[int]],
    leaves: Sequence[Described],
    read: Callable[[int], Buffer],
) -> Iterator[MergedLeaf]:
    texts: list[bytes] = []
    parts: list[Part] = []
    for run in runs:
        (index, data), first = at[run.piece], spans[run.piece][0]
        lines = read_index(read(index), spans[run.piece], leaves[data].size_bytes, leaves[index].path)
        skipped, taken = lines[: run.start - first], lines[run.start - first : run.stop - first]
        begin = sum(line.size_bytes for line in skipped)
        texts.extend(line.text for line in taken)
        parts.append(Part(data, begin, begin + sum(line.size_bytes for line in taken)))
    text, size = joined(texts), sum(part.stop - part.start for part in parts)
    index, data = at[runs[0].piece]
    yield MergedLeaf(_renamed(leaves[index].path, span), raw_spec(len(text)), len(text), (text,))
    yield MergedLeaf(_renamed(leaves[data].path, span), raw_spec(size), size, tuple(parts))


def _renamed(path: str, span: Span) -> str:
    return f"{path.rpartition('[')[0]}[{span[0]}:{span[1]}]"


def _rebuilt(node: Node, renumbered: dict[int, int], rewritten: dict[int, _Log]) -> Node:
    """Return a tree with the new indices of its leaves."""

    def again(inner: Node) -> Node:
        return _rebuilt(inner, renumbered, rewritten)

    tag = node[0]
    if tag == "array":
        return ["array", renumbered[node[1]]]
    if tag in TAGS:
        return _rebuilt_log(node, renumbered, rewritten)
    if tag in ("list", "tuple", "deque"):
        return [*node[:-1], [again(child) for child in node[-1]]]
    if tag in ("dict", "ordered-dict"):
        return [tag, *([[key, again(child)] for key, child in pairs] for pairs in node[1:])]
    if tag in ("object", "stateful"):
        return [*node[:-1], again(node[-1])]
    return node


def _rebuilt_log(node: Node, renumbered: dict[int, int], rewritten: dict[int, _Log]) -> Node:
    _, at = _pieces(node)
    log = rewritten.get(at[0][0]) if at else None
    width = len(at[0]) if at else 0
    stays = range(len(node[3])) if log is None else log.stays
    ranges = [node[3][piece] for piece in stays] + ([] if log is None else [list(span) for span in log.ranges])

    def column(old: Sequence[int], place: int) -> list[int]:
        new = [] if log is None else [log.first_new + width * each + place for each in range(len(log.ranges))]
        return [renumbered[old[piece]] for piece in stays] + new

    if node[0] == "items":
        columns = [column([pair[place] for pair in node[4]], place) for place in (0, 1)]
        return [*node[:3], ranges, [list(pair) for pair in zip(*columns, strict=True)]]
    places = {index: place for place, index in enumerate(at[0])} if at else {}
    stored = [[*field[:4], column(field[4], places[field[4][0]] if field[4] else 0)] for field in node[4]]
    return [*node[:3], ranges, stored]
