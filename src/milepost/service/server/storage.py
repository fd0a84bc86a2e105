"""Hold what a service keeps: its journal, and the bytes of versions in memory and on disk."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.service.core.records import Tier
from milepost.service.index import Index
from milepost.service.journal import Journal
from milepost.service.tiers.disk import DiskTier
from milepost.service.tiers.memory import MemoryTier
from milepost.service.tiers.spilling import spill


@dataclass(frozen=True, slots=True)
class Storage:
    """Be what a service keeps."""

    journal: Journal
    memory: MemoryTier
    disk: DiskTier

    def tier(self, tier: Tier) -> MemoryTier | DiskTier:
        """Return a tier by its name."""
        return self.memory if tier == "memory" else self.disk

    def spill(self, index: Index) -> None:
        """Write a version from memory to disk, durably."""
        spill(index, self.memory, self.disk)
