"""Decide which leaves a generation writes anew and which it shares with its base. Pure arithmetic on digests and sizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from milepost.encode.blob import PAGE_BYTES
from milepost.records import LeafRecord, LeafSpec, Manifest


@dataclass(frozen=True, slots=True)
class NewLeaf:
    """Describe one leaf of the state to be saved."""

    component: str
    path: str
    spec: LeafSpec
    size_bytes: int
    digest: str


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
    shared = _shared(leaves, base) if base else {}
    crowded = _mostly_unused(shared, base) if base else frozenset()
    moved = tuple(index for index, record in shared.items() if record.blob in crowded)
    fresh = tuple(index for index in range(len(leaves)) if index not in shared)
    return Plan({index: record for index, record in shared.items() if record.blob not in crowded}, fresh, moved)


def alone(planned: Plan) -> Plan:
    """Return the plan that writes all of it: what did not change to a blob of its own, as if it had moved there."""
    return Plan({}, planned.fresh, tuple(sorted((*planned.shared, *planned.moved))))


def _shared(leaves: Sequence[NewLeaf], base: Manifest) -> dict[int, LeafRecord]:
    # Paths are for people and may repeat: the digest is part of the key. Each stored leaf is shared once only, since no two
    # leaves of a manifest may lie over each other.
    known: defaultdict[tuple[str, str, LeafSpec, str], list[LeafRecord]] = defaultdict(list)
    for component in reversed(base.components):
        for old in reversed(component.leaves):
            known[component.name, old.path, old.spec, old.digest].append(old)
    shared: dict[int, LeafRecord] = {}
    for index, leaf in enumerate(leaves):
        if found := known.get((leaf.component, leaf.path, leaf.spec, leaf.digest)):
            shared[index] = found.pop()
    return shared


def _mostly_unused(shared: Mapping[int, LeafRecord], base: Manifest) -> frozenset[int]:
    used: defaultdict[int, int] = defaultdict(int)
    for blob, size in {(record.blob, record.start): record.size_bytes for record in shared.values()}.items():
        used[blob[0]] += size
    # Without the header, which alone is more than a small state: else every save would write all of that anew.
    return frozenset(blob for blob, size in used.items() if 2 * size < base.blobs[blob].raw_bytes - PAGE_BYTES)
