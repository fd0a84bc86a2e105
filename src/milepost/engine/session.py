"""Hold what one claim of a run root knows while it lasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from milepost.clock import Clock
from milepost.encode.compress import Decisions
from milepost.encode.plan import NewLeaf, Plan, Stored, alone
from milepost.engine.events import Events
from milepost.lifecycle.retain import Keep
from milepost.publish.generation import Chain, build_on
from milepost.records import Exactness, LeafSpec, Manifest, Metric, Provenance, Summary, is_piece
from milepost.state.log import Have
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
    decisions: Decisions | None = None
    """What compression was worth; None: nothing is compressed."""
    cramped: bool = False
    """The disk is full: a copy for `Keep.independent` waits until there is room."""

    def planner(self, *, complete: bool, whole: bool) -> Planner:
        """Return what says which leaves a save shares with the base. Called at the start of each: here distrust takes effect.

        ``whole``: all leaves are planned at once, and not wave by wave.
        """
        planner, self.apart = Planner(self, Stored(self.base), complete, whole), False
        if self.base is not None and self._is_doubtful(self.base):
            # Whatever is shared with it would be as damaged; the live state is not, and is written whole. Without a base
            # no trim is made either: it would retire sound older generations in favour of the damaged one.
            self.base = None
            planner.distrusted = True
        return planner

    def have(self, component: str) -> Have | None:
        """Return what says which pieces of a component's logs are in the base, for the save to come; None: none are."""
        record = self.base.component(component) if self.base is not None and not self._is_doubtful(self.base) else None
        if record is None:
            return None
        had: set[tuple[str, LeafSpec, str]] | None = None

        def have(path: str, spec: LeafSpec, digest: str) -> bool:
            nonlocal had
            if had is None:  # made when it is first asked for: most components have no logs
                had = {(leaf.path, leaf.spec, leaf.digest) for leaf in record.leaves if is_piece(leaf.path)}
            return (path, spec, digest) in had

        return have

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


@dataclass(slots=True)
class Planner:
    """Say of one save's leaves which it shares with the base."""

    session: Session
    stored: Stored
    complete: bool
    whole: bool
    distrusted: bool = False
    """Nothing of the base is to be relied on, not even for reading it."""

    def plan(self, leaves: Sequence[NewLeaf]) -> Plan:
        """Return the plan for some leaves, or all of them."""
        planned, session = self.stored.plan(leaves), self.session
        if self.distrusted:
            return alone(planned)
        if session.base is not None and not session.apart and not session.cramped:
            records = planned.shared.values()
            blobs = session.base.blobs
            # Wave by wave it is not known what the others will share: then all that could be.
            shared = {blobs[record.blob].name for record in records} if self.whole else {blob.name for blob in blobs}
            # An incomplete generation is not one that a resume prefers: it need not stand alone.
            session.apart = self.complete and session.keep.wants_copy(session.chain.live, session.chain.line, shared)
        return alone(planned) if session.apart else planned


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
