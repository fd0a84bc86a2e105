"""Copy live state into the arena at a safe point: the part of a save that training waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from milepost.engine.arena import Arena, aligned
from milepost.records import LeafSpec, Node
from milepost.state.tree import Flat, LiveLeaf, flatten, no_collection

LAST = "rng"
"""The component that is captured and restored last: reading or setting other state may draw random numbers."""


@dataclass(frozen=True, slots=True)
class StagedLeaf:
    """Hold a private copy of one leaf's bytes."""

    path: str
    spec: LeafSpec
    data: memoryview


@dataclass(frozen=True, slots=True)
class StagedComponent:
    """Hold a private copy of one component."""

    name: str
    tree: Node
    leaves: tuple[StagedLeaf, ...]


@dataclass(frozen=True, slots=True)
class Staged:
    """Hold the whole state as it was at one safe point, independent of whatever training does next (B9)."""

    components: tuple[StagedComponent, ...]

    @property
    def size_bytes(self) -> int:
        """Return how many bytes of leaves were staged."""
        return sum(len(leaf.data) for component in self.components for leaf in component.leaves)


def in_order(state: Mapping[str, object]) -> list[str]:
    """Return the component names in the order of capture and restore: as given, generators of random numbers last."""
    return sorted(state, key=is_last)


def is_last(name: str) -> bool:
    """Return whether a component holds generators of random numbers."""
    return name.rpartition("/")[2] == LAST


def capture(state: Mapping[str, object], arena: Arena, *, allow_pickle: bool = False) -> Staged:
    """Copy every component's leaves into ``arena``, which must not be in use. Raises `UsageError` for an object nobody knows."""
    with no_collection():
        flat = {name: flatten(state[name], name, allow_pickle=allow_pickle) for name in in_order(state)}
        arena.reserve(_room(flat))
        return Staged(tuple(_stage(name, found, arena) for name, found in flat.items()))


def _room(flat: Mapping[str, Flat]) -> int:
    position = 0
    for found in flat.values():
        for leaf in found.leaves:
            position = aligned(position, leaf.size_bytes) + leaf.size_bytes
    return position


def _stage(name: str, flat: Flat, arena: Arena) -> StagedComponent:
    staged: list[StagedLeaf] = []
    for leaf in flat.leaves:
        assert isinstance(leaf, LiveLeaf)
        data = arena.take(leaf.size_bytes)
        leaf.copy_into(data)
        staged.append(StagedLeaf(leaf.path, leaf.spec, data))
    return StagedComponent(name, flat.node, tuple(staged))
