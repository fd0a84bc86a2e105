"""Hold what one claim of a run root knows while it lasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from milepost.clock import Clock
from milepost.encode.plan import NewLeaf, Plan, alone, plan
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
    distrusted: set[str] = field(default_factory=set)
    """Blobs that were found damaged: a name is added by any thread, and none is ever taken out."""
    apart: bool = False
    """The save under way writes everything anew, though it could share: for `Keep.independent`."""
    cramped: bool = False
    """The disk is full: a copy for `Keep.independent` waits until there is room."""

    def plan(self, leaves: Sequence[NewLeaf], *, complete: bool) -> Plan:
        """Say which leaves a save shares with the base. Called once at the start of each: here distrust takes effect."""
        planned, self.apart = plan(leaves, self.base), False
        if self.base is not None and self._is_doubtful(self.base):
            # Whatever is shared with it would be as damaged; the live state is not, and is written whole. Without a base
            # no trim is made either: it would retire sound older generations in favour of the damaged one.
            self.base = None
            return alone(planned)
        shared = {self.base.blobs[record.blob].name for record in planned.shared.values()} if self.base else set()
        # An incomplete generation is not one that a resume prefers: it need not stand alone.
        wanted = complete and self.keep.wants_copy(self.chain.live, self.chain.line, shared)
        self.apart = wanted and not self.cramped
        return alone(planned) if self.apart else planned

    def distrust(self, *blobs: str) -> None:
        """Share no more with a generation that stands on one of these blobs, from the next save on.

        The one method for other threads: a set takes a name in one step, and saves look before they plan.
        """
        for blob in blobs:
            self.distrusted.add(blob)

    @property
    def stands_on_its_head(self) -> bool:
        """Return whether the base is the head, and nothing of it was found damaged."""
        base, head = self.base, self.chain.head
        return base is not None and head is not None and base.number == head.number and not self._is_doubtful(base)

    def _is_doubtful(self, summary: Summary) -> bool:
        return not self.distrusted.isdisjoint(blob.name for blob in summary.blobs)

    def kept(self, live: Mapping[int, Summary], pinned: frozenset[int]) -> frozenset[int]:
        """Choose what a new manifest keeps. What is known to be damaged takes the place of nothing that is sound."""
        protected = pinned | self.protected
        trusted = {number: summary for number, summary in live.items() if not self._is_doubtful(summary)}
        kept = self.keep.select(live, protected)
        return kept if len(trusted) == len(live) else kept | self.keep.select(trusted, protected)

    def build_on(self, loaded: Manifest | None, *, share: bool = True) -> None:
        """Note what was loaded: the next save goes back to it. None: the state starts anew.

        Without ``share`` it was not verified whole, and nothing is shared with it: its blobs may hold the damage still.
        """
        number = loaded.number if loaded else 0
        build_on(self.chain, number)
        self.resumed_from = number or self.resumed_from
        # A generation that may be half deleted can be loaded, every byte of it verified, but its blobs may vanish later.
        self.base = loaded if share and number > self.chain.unsure else None

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
