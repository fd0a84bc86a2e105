"""Hold what one claim of a run root knows while it lasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from milepost.clock import Clock
from milepost.engine.events import Events
from milepost.lifecycle.retain import Keep
from milepost.publish.generation import Chain, build_on
from milepost.records import Exactness, Manifest, Metric, Provenance, Summary
from milepost.store.base import Store

BLOB_BYTES = 4 << 30
"""The size above which the new leaves of a save are split into several blobs."""
BALLAST_BYTES = 256 << 10
"""Held at least, so that a trim can be published on a full disk: twice the last manifest if that is more."""


@dataclass(slots=True)
class Session:
    """Be the writer's side of a claim. Used by one thread at a time: the engine hands it to the writer with each save."""

    store: Store
    clock: Clock
    run_id: str
    chain: Chain
    events: Events
    keep: Keep
    provenance: Provenance
    fingerprint: dict[str, str]
    base: Manifest | None = None
    """What unchanged leaves may be shared with: the generation last committed or loaded by this process, and nothing else."""
    resumed_from: int | None = None
    blob_bytes: int = BLOB_BYTES
    manifest_bytes: int = 0
    """The size of the manifest published last."""

    def kept(self, live: Mapping[int, Summary], pinned: frozenset[int]) -> frozenset[int]:
        """Choose what a new manifest keeps."""
        return self.keep.select(live, pinned | self.protected)

    def build_on(self, loaded: Manifest | None) -> None:
        """Note what was loaded: the next save goes back to it. None: the state starts anew."""
        number = loaded.number if loaded else 0
        build_on(self.chain, number)
        self.resumed_from = number or self.resumed_from
        # A generation that may be half deleted can be loaded, every byte of it verified, but its blobs may vanish later.
        self.base = loaded if number > self.chain.unsure else None

    @property
    def protected(self) -> frozenset[int]:
        """Return what retention may not take from this process: the generation that it resumed from."""
        return frozenset() if self.resumed_from is None else frozenset({self.resumed_from})


@dataclass(frozen=True, slots=True)
class Order:
    """Say what a save is to record beside the state."""

    step: int
    reason: str
    elapsed_s: float = 0.0
    counters: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, Metric] = field(default_factory=dict)
    complete: bool = True
    exactness: dict[str, tuple[Exactness, str]] = field(default_factory=dict)
