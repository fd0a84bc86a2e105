"""Write the two hints beside the truth: ``LATEST`` after a publish, ``progress.json`` before a save's first byte.

`milepost.publish.hints` reads them.
"""

from __future__ import annotations

from milepost.clock import Clock, utc_text
from milepost.encode.digest import sha256
from milepost.publish import layout
from milepost.publish.generation import Chain
from milepost.publish.manifest import encode
from milepost.records import Latest, Progress, Summary
from milepost.store.base import Store


def point_at(store: Store, chain: Chain, newest: Summary, manifest: bytes) -> None:
    """Write ``LATEST``, with the digest of the manifest's bytes.

    A paused writer may write it late, so it may go backwards: pollers list as well (rule 21).
    """
    manifest_digest = sha256(manifest)
    latest = Latest(chain.run_id, newest.number, newest.step, manifest_digest)
    store.replace(layout.LATEST, encode(latest), durable=False, label=chain.label)


def note_progress(store: Store, chain: Chain, clock: Clock, *, attempt: int, step: int) -> None:
    """Record durably which step is about to be saved, so that after a crash the step reached is known (B18)."""
    progress = Progress(chain.run_id, chain.term, attempt, chain.next, step, utc_text(clock.wall_ns()))
    store.replace(layout.PROGRESS, encode(progress), label=chain.label)
