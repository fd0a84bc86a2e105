"""Say on which ways bytes come and go, the fastest first."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from milepost.service.core.records import Tier
from milepost.service.transports.base import Source


@dataclass(frozen=True, slots=True)
class Ways:
    """Be the ways that this service offers."""

    host: str
    memory: str
    """The directory of the memory tier."""
    disk: str | None
    """That of the disk tier; None where it is no directory."""
    bulk: str = ""
    """The bulk port, as ``:port``: at the host of the control connection. Empty where there is none."""
    transport: str = "auto"

    def sources(self, tiers: Collection[Tier]) -> list[Source]:
        """Return the ways to a version that lies in these tiers."""
        found: list[Source] = []
        if "memory" in tiers:
            found.append(Source("shm", self.memory, self.host))
        if "disk" in tiers and self.disk is not None:
            found.append(Source("files", self.disk))
        return self._offered([*found, *self._connections()])

    def sinks(self, tier: Tier) -> list[Source]:
        """Return the ways on which a version may be brought into a tier. To disk nobody but the service writes."""
        found = [Source("shm", self.memory, self.host)] if tier == "memory" else []
        return self._offered([*found, *self._connections()])

    def _connections(self) -> list[Source]:
        return [*([Source("bulk", self.bulk)] if self.bulk else []), Source("grpc", "")]

    def _offered(self, found: list[Source]) -> list[Source]:
        # The compatible way stays open: a setting that fits one client is not to lock the others out.
        return [each for each in found if self.transport in ("auto", each.transport) or each.transport == "grpc"]
