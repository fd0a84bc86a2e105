"""Make runs to look at, through the store and publish layers, with a clock of the test's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from milepost.clock import FakeClock
from milepost.encode.digest import xxh3
from milepost.lifecycle.retain import Keep
from milepost.publish import layout
from milepost.publish.generation import Chain, chain_of, publish
from milepost.publish.retire import retire, sweep
from milepost.publish.term import Identity, claim
from milepost.records import (
    FORMAT_VERSION,
    BlobRecord,
    ComponentRecord,
    LeafRecord,
    Manifest,
    Metric,
    Provenance,
)
from milepost.store.local import LocalStore

BYTES = bytes(range(256)) * 16


class Run:
    """Write generations into a directory as a training process would."""

    def __init__(self, root: Path, keep: Keep | None = None) -> None:
        self.root = root
        self.clock = FakeClock(prefix=f"{len(list(root.glob('terms/*'))):04x}")
        self.store = LocalStore(root, self.clock)
        self.keep = keep or Keep(last=1000)
        claimed = claim(self.store, self.clock, Identity("host7", "boot", 4121))
        self.chain: Chain = chain_of(claimed)
        sweep(self.store, claimed)

    def save(self, step: int, **fields: object) -> Manifest:
        """Publish a generation of one leaf, with ``fields`` of the manifest as given."""
        self.clock.advance(seconds=60)
        name = layout.blob(self.chain.next, self.chain.term, self.clock.nonce())
        with self.store.open_blob(name) as blob:
            blob.write(BYTES)
            blob.commit()
        leaf = LeafRecord("policy/w", "numpy", "uint8", (len(BYTES),), 0, 0, len(BYTES), xxh3(BYTES))
        draft = Manifest(
            format_version=FORMAT_VERSION,
            run_id=self.chain.run_id,
            number=0,
            term=self.chain.term,
            write_id=self.clock.nonce(),
            parent=0,
            keep=(),
            rollback_to=None,
            term_head=0,
            term_next=0,
            step=step,
            commit_timestamp=0,
            blobs=(BlobRecord(name, len(BYTES), xxh3(BYTES)),),
            reason="every 1000 steps",
            provenance=Provenance(host="host7", pid=4121, versions={"numpy": "2.0"}),
            components=(ComponentRecord("policy", ["leaf", 0], (leaf,)),),
            fingerprint={"threads": "1"},
        )
        draft = dataclasses.replace(draft, **fields)  # type: ignore[arg-type]
        manifest = publish(self.store, self.chain, draft, self.keep.select, self.clock.wall_ns())
        retire(self.store, self.chain)
        return manifest

    def saves(self, steps: Iterable[int]) -> Run:
        """Publish one generation for each step."""
        for step in steps:
            self.save(step)
        return self


def measured(value: float, step: int, by: str = "eval/return", mode: str = "max") -> dict[str, object]:
    """Return the fields of a generation that carries a metric, under a `Keep` that judges by it."""
    return {"metrics": {by: Metric(value.hex() if value == value else "nan", step)}, "best_by": by, "best_mode": mode}
