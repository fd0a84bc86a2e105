"""Know where the bytes of every commit lie: of those on their way, and of those that are visible.

Asked by the threads that move bytes, changed by the loop alone: each look-up is one read of a dictionary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition, Lock

from milepost.service.core.events import Caller, Refused
from milepost.service.core.records import Commit, Tier, Weights
from milepost.service.index import Chunks, Index, blob_of, place_of, place_of_weights

_DELTA = ".from-"


def slot_of(name: str) -> str:
    """Return which part a blob is of, or tells."""
    return name.partition(_DELTA)[0] if _DELTA in name else name.removesuffix(".safetensors")


def _is_blob(name: str, slot: str) -> bool:
    return name == blob_of(slot) or _DELTA in name


@dataclass(slots=True, eq=False)
class Incoming:
    """Be a commit on its way."""

    caller: Caller
    key: str
    step: int
    tier: Tier
    sizes: Mapping[str, int]
    """By slot."""
    chunks: dict[str, Chunks] = field(default_factory=dict)
    """Of the parts whose bytes were found to be right."""
    begun: set[str] = field(default_factory=set)
    """The blobs that were made, for bytes that come over a connection."""
    making: Lock = field(default_factory=Lock)
    _closed: set[str] = field(default_factory=set)
    """Slots that are being looked at, or were found to be right: nothing is written there any more."""
    _writers: Counter[str] = field(default_factory=Counter)
    _has_ended: bool = False
    _changed: Condition = field(default_factory=Condition)

    @property
    def place(self) -> str:
        """Return where its bytes lie."""
        return place_of(self.caller.component, self.key, self.step)

    @property
    def index(self) -> Index:
        """Return the record that is to lie beside its bytes."""
        return Index(self.caller.component, self.key, self.step, dict(self.chunks))

    @contextmanager
    def writing(self, slot: str) -> Iterator[bool]:
        """Write to a slot inside, if it yields True: else it is closed, or the commit has ended. For any thread."""
        with self._changed:
            may = not self._has_ended and slot not in self._closed
            self._writers[slot] += may
        try:
            yield may
        finally:
            with self._changed:
                self._writers[slot] -= may
                self._changed.notify_all()

    def close(self, slot: str) -> bool:
        """Let nobody write to a slot any more, once who does is done; return whether it was open."""
        with self._changed:
            was_open = slot not in self._closed
            self._closed.add(slot)
            self._changed.wait_for(lambda: not self._writers[slot])
            return was_open

    def reopen(self, slot: str) -> None:
        """Let it be written again: its bytes were not right."""
        with self._changed:
            self._closed.discard(slot)
            if self.tier == "disk":
                self.begun.discard(blob_of(slot))  # what a disk has taken in order is begun anew; of memory a chunk is enough

    def end(self) -> None:
        """Let nobody write any more, once who does is done. Without it bytes would come to where others are being erased."""
        with self._changed:
            self._has_ended = True
            self._changed.wait_for(lambda: not sum(self._writers.values()))


@dataclass(frozen=True, slots=True)
class Kept:
    """Be a version whose bytes are somewhere."""

    at: Commit
    weights: Weights
    chunks: Mapping[str, Chunks]


class Places:
    """Be all places that count. What lies elsewhere is nobody's."""

    def __init__(self) -> None:
        self._incoming: dict[str, Incoming] = {}
        self._by_key: dict[tuple[Caller, str], Incoming] = {}
        self._kept: dict[str, Kept] = {}

    def known(self) -> set[str]:
        """Return all places that count."""
        return {*self._incoming, *self._kept}

    def accept(self, incoming: Incoming) -> None:
        """Expect the bytes of a commit."""
        self._incoming[incoming.place] = self._by_key[incoming.caller, incoming.key] = incoming

    def incoming(self, component: str, key: str, step: int) -> Incoming | None:
        """Return a commit that is on its way."""
        return self._incoming.get(place_of(component, key, step))

    def of_key(self, caller: Caller, key: str) -> Incoming | None:
        """Return what a caller is bringing under a key."""
        return self._by_key.get((caller, key))

    def is_incoming(self, incoming: Incoming) -> bool:
        """Say whether a commit is still on its way."""
        return self._incoming.get(incoming.place) is incoming

    def discard(self, caller: Caller, key: str) -> Incoming | None:
        """Expect no bytes of a commit any more; return what it was."""
        incoming = self._by_key.pop((caller, key), None)
        return None if incoming is None else self._incoming.pop(incoming.place)

    def keep(self, weights: Weights, chunks: Mapping[str, Chunks]) -> None:
        """Know the bytes of a version that is visible."""
        self._kept[place_of_weights(weights)] = Kept(weights.at, weights, chunks)

    def forget(self, weights: Weights) -> None:
        """Know no more of a version whose bytes are nowhere."""
        self._kept.pop(place_of_weights(weights), None)

    def kept(self, place: str) -> Kept | None:
        """Return which version's bytes lie in a place."""
        return self._kept.get(place)

    def chunks(self, weights: Weights) -> Mapping[str, Chunks]:
        """Return the digests of a version's chunks, by slot."""
        kept = self._kept.get(place_of_weights(weights))
        return {} if kept is None else kept.chunks

    def may_write(self, place: str, name: str, start: int, size_bytes: int, caller: Caller | None = None) -> Incoming | Refused:
        """Say whether somebody may write bytes ``[start, start + size_bytes)`` of a blob. May be asked by any thread.

        ``name`` may be that of a delta, which is no longer than what it tells.
        """
        incoming = self._incoming.get(place)
        facts = {"place": place, "blob": name}
        if incoming is None or caller not in (None, incoming.caller):
            hint = "begin the commit first; if it was under way it was given up, and is begun anew"
            return Refused("unknown-commit", "nothing is being brought there", hint, facts)
        slot = slot_of(name)
        size = incoming.sizes.get(slot)
        if size is None or not _is_blob(name, slot):
            hint = "begin with the slots and sizes that are then brought"
            return Refused("not-announced", "this part was announced otherwise, or not at all", hint, facts)
        if start < 0 or size_bytes < 0 or start + size_bytes > size:
            facts |= {"start": str(start), "stop": str(start + size_bytes), "size_bytes": str(size)}
            return Refused("not-announced", "this part is larger than it was announced", "begin with its size", facts)
        return incoming

    def may_read(self, place: str, name: str) -> Kept | Refused:
        """Say whether there is such a blob of a version that is visible. May be asked by any thread."""
        kept = self._kept.get(place)
        slot = slot_of(name)
        if kept is None or slot not in kept.chunks or not _is_blob(name, slot):
            hint = "fetch again: its version may be kept no longer"
            return Refused("no-such-blob", "there are no such bytes here", hint, {"place": place, "blob": name})
        return kept
