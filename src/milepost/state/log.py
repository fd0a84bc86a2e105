"""Remember what of a log is saved already, and what was changed since.

A log is an object whose parts have numbers that only rise: the rows of a ring, the items of a queue. What is *known* of its
live memory are the pieces of the last save that was committed, or of the last load. Whatever is changed after a save has
been staged is noted under the *tick* of the save to come; a commit forgets the changes up to its own tick. So a save that
fails forgets nothing, and one that is acknowledged late forgets no change that was made while it was being written ▲.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from milepost.errors import InternalError
from milepost.records import LeafRecord, LeafSpec, Node
from milepost.state.leaves import Leaf
from milepost.state.pieces import GAP_BYTES, PIECE_BYTES, Ranges, Span

Have = Callable[[str, LeafSpec, str], bool]
"""Says whether the base holds a leaf of this path, spec and digest."""
Matches = Callable[[memoryview, str], bool]
"""Says whether bytes have this digest, of whichever kind it is."""

TAGS = ("rows", "items")
_MOST_OLD_TICKS = 8


@dataclass(frozen=True, slots=True)
class KnownPiece:
    """Say what was saved of rows ``[start, stop)``, by field."""

    start: int
    stop: int
    leaves: Mapping[str, tuple[LeafSpec, str]]
    """Spec and digest of each field's leaf."""

    @property
    def span(self) -> Span:
        """Return the rows it holds."""
        return self.start, self.stop


@dataclass(frozen=True, slots=True)
class Known:
    """Say what a generation holds of a log: in pieces, a later one over an earlier."""

    era: int
    tick: int
    count: int
    """How many rows had been written: those from here on are new."""
    pieces: tuple[KnownPiece, ...]


class Log:
    """Keep the notes of one log. For the training thread only, but for `LogMark.settle`."""

    __slots__ = (
        "_changes",
        "_doubt",
        "_era",
        "_known",
        "_settled",
        "_staged",
        "_tick",
        "gap_bytes",
        "piece_bytes",
        "pieces_checked",
    )

    def __init__(self) -> None:
        self.piece_bytes = PIECE_BYTES
        self.gap_bytes = GAP_BYTES
        self.pieces_checked = 0
        """How many pieces were compared with live memory so far."""
        self._era = 0
        self._tick = 0
        self._staged = 0
        self._known: Known | None = None
        self._settled: Known | None = None
        self._changes: list[tuple[int, Ranges]] = []
        self._doubt = ""

    @property
    def known(self) -> Known | None:
        """Return what the last commit or load says, or None where nothing is to be relied on."""
        self.adopt()
        return self._known

    def adopt(self) -> None:
        """Take over what another thread has noted."""
        settled = self._settled  # once: another thread may replace it
        if settled is not None and settled.era == self._era and (self._known is None or settled.tick > self._known.tick):
            self._known = settled
            self._changes = [(tick, ranges) for tick, ranges in self._changes if tick > settled.tick]

    def touch(self, start: int, stop: int) -> None:
        """Note that rows were changed. Those that no save has seen yet are new anyway."""
        stop = min(stop, self._staged)
        if start >= stop:
            return
        if not self._changes or self._changes[-1][0] != self._tick:
            self._changes.append((self._tick, Ranges()))
            self._join_old()
        self._changes[-1][1].add(start, stop)

    def _join_old(self) -> None:
        """Move changes up to a later tick, where saves fail again and again: they are forgotten later, never earlier."""
        while len(self._changes) > _MOST_OLD_TICKS:
            (_, first), (_, second) = self._changes[0], self._changes[1]
            for span in first:
                second.add(*span)
            del self._changes[0]

    def changed(self) -> list[Span]:
        """Return the rows changed since what is `known`."""
        return [span for _, ranges in self._changes for span in ranges]

    def forget(self, reason: str = "") -> None:
        """Rely on nothing any more: the next saves take the whole, until one that begins after this is committed.

        The commit of a save that is in flight says nothing: it may have kept pieces that were wrong already.
        """
        self._era += 1
        self._staged = 0
        self._known = self._settled = None
        self._changes = []
        self._doubt = reason or self._doubt

    def mark(self, node: Node, count: int, ordinal: int, *, tell: bool = True) -> LogMark:
        """Return what the commit of the save that is being staged is told to. Rows below ``count`` are in it.

        Without ``tell`` nobody hears of a doubt yet: a tree is also flattened to look at it.
        """
        made = LogMark(self, self._era, self._tick, ordinal, node, self._doubt if tell else "")
        self._tick += 1
        self._staged = count
        self._doubt = "" if tell else self._doubt
        return made

    def unmark(self, doubt: str) -> None:
        """Note that what was staged under a mark is written by nobody: its doubt is told with the next. Else as a failed save."""
        self._doubt = self._doubt or doubt

    def settle(self, known: Known) -> None:
        """Note a commit. Called from any thread: one assignment, looked at by the next `known`."""
        self._settled = known


@dataclass(frozen=True, slots=True)
class LogMark:
    """Tie one staged log to the generation that will hold it."""

    log: Log
    era: int
    tick: int
    ordinal: int
    """Which of the component's logs it is, counted through its tree."""
    node: Node
    doubt: str = ""
    """Why nothing of it was kept in this save, if there is something to tell; else empty."""

    def settle(self, records: Sequence[LeafRecord], tree: Node | None = None) -> None:
        """Tell the log that it is saved: ``records`` are those of its component. Call once, after the commit, from any thread.

        ``tree`` is the component's tree as it was published; without one, as it was flattened. A save that failed is
        settled by nobody, and that is all there is to do about it.
        """
        node = self.node if tree is None else nth_log(tree, self.ordinal)
        self.log.settle(known_of(node, records, self.era, self.tick))

    def drop(self) -> None:
        """Tell the log that what was staged will not be written. Its rows are as unsaved as before. For the training thread."""
        self.log.unmark(self.doubt)


def known_of(node: Node, records: Sequence[LeafRecord], era: int, tick: int) -> Known:
    """Return what a sound node and its records say."""
    tag, _, count, spans, stored = node
    named: list[tuple[str, list[int]]]
    if tag == "rows":
        named = [(name, indices) for name, _, _, _, indices in stored]
    else:
        named = [(name, [pair[place] for pair in stored]) for place, name in enumerate(("index", "data"))]
    pieces = [
        KnownPiece(start, stop, {name: (records[at[place]].spec, records[at[place]].digest) for name, at in named})
        for place, (start, stop) in enumerate(spans)
    ]
    return Known(era, tick, count, tuple(pieces))


def children(node: Node) -> Iterator[Node]:
    """Return the nodes of the values within a sound node, in the order in which `flatten` writes them."""
    tag = node[0]
    if tag in ("list", "tuple", "deque"):
        yield from node[-1]
    elif tag in ("dict", "ordered-dict"):
        for pairs in node[1:]:
            yield from (pair[1] for pair in pairs)
    elif tag in ("object", "stateful"):
        yield node[-1]


def log_nodes(tree: Node) -> Iterator[Node]:
    """Return the nodes of a sound tree's logs, in the order in which `flatten` writes them."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if node[0] in TAGS:
            yield node
        else:
            waiting.extend(reversed(list(children(node))))


def nth_log(tree: Node, ordinal: int) -> Node:
    """Return a log's node by its place among them."""
    for place, node in enumerate(log_nodes(tree)):
        if place == ordinal:
            return node
    raise InternalError("a published tree has fewer logs than were staged", kind="lost-log", ordinal=ordinal)


@dataclass(slots=True)
class Sink:
    """Take the leaves and marks of one flattened value, and say what the base has."""

    have: Have | None = None
    matches: Matches | None = None
    leaves: list[Leaf] = field(default_factory=list)
    marks: list[LogMark] = field(default_factory=list)
    written: dict[int, Node] = field(default_factory=dict)
    """The nodes of the logs so far, by the identity of their `Log`."""

    def add(self, leaf: Leaf) -> int:
        """Append a leaf and return its index."""
        self.leaves.append(leaf)
        return len(self.leaves) - 1

    def has(self, path: str, spec: LeafSpec, digest: str) -> bool:
        """Return whether the base holds this leaf."""
        return self.have is not None and self.have(path, spec, digest)

    def mark(self, log: Log, node: Node, count: int) -> Node:
        """Note that a log was written as ``node``, and return that."""
        self.marks.append(log.mark(node, count, len(self.marks), tell=self.have is not None))
        self.written[id(log)] = node
        return node
