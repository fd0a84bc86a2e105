"""Hold what a service keeps: its journal, and the bytes of versions in memory and on disk."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.errors import InternalError
from milepost.service.adopting import Opened
from milepost.service.core.records import Tier, Weights
from milepost.service.index import Index, place_of_weights
from milepost.service.journal import Journal
from milepost.service.tiers.disk import DiskTier
from milepost.service.tiers.memory import MemoryTier
from milepost.service.tiers.spilling import spill
from milepost.store.base import Store


@dataclass(frozen=True, slots=True)
class Storage:
    """Be what a service keeps."""

    store: Store
    journal: Journal
    memory: MemoryTier
    disk: DiskTier

    @classmethod
    def of(cls, opened: Opened) -> Storage:
        """Return what was opened."""
        return cls(opened.store, opened.journal, opened.memory, opened.disk)

    def index(self, weights: Weights, tiers: tuple[Tier, ...]) -> Index:
        """Return the record of a version that was found in these tiers."""
        for tier in tiers:
            index = self.tier(tier).index(place_of_weights(weights))
            if index is not None:
                return index
        raise InternalError("a version that was found has no record", kind="no-index", version=str(weights.at))

    def tier(self, tier: Tier) -> MemoryTier | DiskTier:
        """Return a tier by its name."""
        return self.memory if tier == "memory" else self.disk

    def spill(self, index: Index) -> None:
        """Write a version from memory to disk, durably."""
        spill(index, self.memory, self.disk)
