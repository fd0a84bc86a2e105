"""Decide which leaves a generation writes anew and which it shares with its base. Pure arithmetic on digests and sizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from milepost.encode.blob import PAGE_BYTES
from milepost.records import LeafRecord, LeafSpec, Manifest, is_piece


@dataclass(frozen=True, slots=True)
class NewLeaf:
    """Describe one leaf of the state to be saved."""

    component: str
    path: str
    spec: LeafSpec
    size_bytes: int
    digest: str
    """Empty where it is not known yet: then there is nothing that it could be the same as."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Say where each leaf's bytes will be: indices into the sequence of leaves that was planned."""

    shared: Mapping[int, LeafRecord]
    """Leaves whose bytes are in a blob of the base, with the base's record of them."""
    fresh: tuple[int, ...]
    """Leaves that changed: they are written."""
    moved: tuple[int, ...]
    """Leaves that did not change but whose old blob is mostly unused, or not to be shared: they are written too, to a blob
    of their own, so that the next save finds them together in a blob that is wholly used."""


def plan(leaves: Sequence[NewLeaf], base: Manifest | None) -> Plan:
    """Share every leaf that the base has with the same path, spec and digest, unless its blob is less than half used."""
    return Stored(base).plan(leaves)


def alone(planned: Plan) -> Plan:
    """Return the plan that writes all of it: what did not change to a blob of its own, as if it had moved there."""
    return Plan({}, planned.fresh, tuple(sorted((*planned.shared, *planned.moved))))


class Stored:
    """Know the leaves of a base, for one save: each is shared once only, since no two of a manifest may lie over each other."""

    def __init__(self, base: Manifest | None) -> None:
        self._base = base
        self._known: dict[tuple[str, str, LeafSpec], list[LeafRecord]] = {}
        self._shared: set[int] = set()
        """The records that were given out, by identity."""
        for component in base.components if base else ():
            for old in component.leaves:
                self._known.setdefault((component.name, old.path, old.spec), []).append(old)

    def knows(self, component: str, path: str, spec: LeafSpec) -> bool:
        """Return whether the base has such a leaf, so that its digest is worth knowing."""
        return (component, path, spec) in self._known

    def record(self, leaf: NewLeaf) -> LeafRecord | None:
        """Return the base's record of a leaf that is the same, byte for byte, whether it is shared by now or not."""
        return next(self._alike(leaf), None)

    def _alike(self, leaf: NewLeaf) -> Iterator[LeafRecord]:
        # Paths are for people and may repeat: the digest decides.
        known = self._known.get((leaf.component, leaf.path, leaf.spec), ())
        return (old for old in known if old.digest == leaf.digest)

    def plan(self, leaves: Sequence[NewLeaf]) -> Plan:
        """Share every leaf that the base has with the same path, spec and digest, unless its blob is less than half used."""
        if self._base is None:
            return Plan({}, tuple(range(len(leaves))), ())
        shared: dict[int, LeafRecord] = {}
        for index, leaf in enumerate(leaves):
            record = next((old for old in self._alike(leaf) if id(old) not in self._shared), None)
            if record is not None:
                self._shared.add(id(record))
                shared[index] = record
        crowded = _mostly_unused(shared, self._base)
        moved = tuple(index for index, record in shared.items() if record.blob in crowded)
        fresh = tuple(index for index in range(len(leaves)) if index not in shared)
        return Plan({index: record for index, record in shared.items() if record.blob not in crowded}, fresh, moved)


def _mostly_unused(shared: Mapping[int, LeafRecord], base: Manifest) -> frozenset[int]:
    """Find the blobs of which less than half is in use.

    Those which hold nothing but pieces of logs are let be while all that is dead in them is less than what lives of the logs:
    a ring overwrites its rows in the order in which they were written, and soon the whole file goes.
    """
    used: defaultdict[int, int] = defaultdict(int)
    dense: set[int] = set()
    for record in {(record.blob, record.start): record for record in shared.values()}.values():
        used[record.blob] += record.size_bytes
        if not is_piece(record.path):
            dense.add(record.blob)
    # Without the header, which alone is more than a small state: else every save would write all of that anew.
    dead = {blob: base.blobs[blob].raw_bytes - PAGE_BYTES - size for blob, size in used.items()}
    crowded = frozenset(blob for blob, size in used.items() if size < dead[blob])
    wasted = sum(max(0, size) for blob, size in dead.items() if blob not in dense)
    living = sum(size for blob, size in used.items() if blob not in dense)
    return crowded if wasted > living else crowded & dense
